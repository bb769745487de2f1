"""The PyPI package replicate against `/replicate/v1`, with only the base URL changed."""

import io
import os
import queue
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from case import AUTHORITY, BASE, KEY, NEAR, SECURE, SECURE_KEY, WRONG_KEY, case, equal, holds, run
from replicate import Client
from replicate.exceptions import ModelError, ReplicateError
from replicate.pagination import paginate
from replicate.webhook import Webhooks

client = Client(api_token=KEY, base_url=f"{BASE}/replicate")
# httpx reads the certificate authority of the service with TLS from the environment.
os.environ["SSL_CERT_FILE"] = AUTHORITY
secure = Client(api_token=SECURE_KEY, base_url=f"{SECURE}/replicate")
TEMPLATE = {"template": "Hello {{ name }}!", "values": {"name": "Ada"}}
arrived = queue.Queue()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        arrived.put((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=receiver.serve_forever, daemon=True).start()
HOOK = f"http://127.0.0.1:{receiver.server_address[1]}/hook"


def refuses(status, call):
    try:
        call()
    except ReplicateError as error:
        equal(error.status, status)
        holds(error.title and error.detail, error)
    else:
        raise AssertionError(f"no error {status}")


@case
def run_model():
    equal(client.run("local/text-template", input=TEMPLATE), "Hello Ada!")
    version = client.models.get("local/text-template").latest_version
    equal(client.run(f"local/text-template:{version.id}", input=TEMPLATE), "Hello Ada!")
    equal(client.run(version, input=TEMPLATE, wait=False), "Hello Ada!")
    equal(client.run(f"local/{NEAR}", input={"prompt": "hello there"}, wait=5), "You said: hello there")


@case
async def run_async():
    equal(await client.async_run("local/text-template", input=TEMPLATE), "Hello Ada!")
    made = await client.predictions.async_create(version="local/text-template", input=TEMPLATE)
    await made.async_wait()
    equal(made.output, "Hello Ada!")
    stream = await client.async_stream(f"local/{NEAR}", input={"prompt": "hello there"})
    equal("".join([str(event) async for event in stream]), "You said: hello there")


@case
def predictions():
    version = client.models.get("local", "text-template").latest_version
    made = client.predictions.create(version=version, input=TEMPLATE)
    made.wait()
    equal((made.status, made.output, made.model, made.version), ("succeeded", "Hello Ada!", "local/text-template", version.id))
    equal(client.predictions.get(made.id).output, "Hello Ada!")
    made.cancel()
    equal(made.status, "succeeded")
    at_once = client.predictions.create(model="local/text-template", input=TEMPLATE)
    holds(at_once.id in [one.id for page in paginate(client.predictions.list) for one in page], "it is listed")


@case
def cancel():
    made = client.models.predictions.create("local/slow", {"text": "x"})
    made.cancel()
    equal(made.status, "canceled")
    made.wait()
    equal(client.predictions.get(made.id).status, "canceled")


@case
def stream():
    events = list(client.stream(f"local/{NEAR}", input={"prompt": "hello there"}))
    equal("".join(str(event) for event in events), "You said: hello there")
    equal(events[-1].event.value, "done")
    holds(len(events) > 2, "it comes in parts")
    made = client.predictions.create(version="local/text-template", input=TEMPLATE)
    equal([str(event) for event in made.stream()], ["Hello Ada!", ""])


@case
def files():
    made = client.files.create(io.BytesIO(b"abc"), filename="a.txt", content_type="text/plain", metadata={"a": 1})
    equal((made.name, made.content_type, made.size, made.metadata), ("a.txt", "text/plain", 3, {"a": 1}))
    equal(client.files.get(made.id).etag, made.etag)
    holds(made.id in [file.id for file in client.files.list()], "it is listed")
    equal(httpx.get(made.urls["get"]).content, b"abc")
    holds(client.files.delete(made.id), "it is deleted")
    refuses(404, lambda: client.files.get(made.id))


@case
def file_inputs_and_outputs():
    qr = secure.run("local/image-qr", input={"text": "Hello", "format": "png"})
    png = qr.read()
    holds(png.startswith(b"\x89PNG"), png[:8])
    equal(httpx.get(qr.url).content, png)
    equal(b"".join(qr), png)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "qr.png"
        file.write_bytes(png)
        with file.open("rb") as opened:
            small = secure.run("local/image-resize", input={"image": opened, "width": 16})
        inline = secure.run("local/image-resize", input={"image": file, "width": 16}, file_encoding_strategy="base64")
    equal(small.read(), inline.read())
    holds(len(small.read()) < len(png), "it is smaller")


@case
def models():
    pages = list(paginate(client.models.list))
    names = [f"{model.owner}/{model.name}" for page in pages for model in page]
    holds("local/text-template" in names and f"local/{NEAR}" in names, names)
    model = client.models.get("local/text-template")
    versions = list(model.versions.list())
    equal([version.id for version in versions], [model.latest_version.id])
    schemas = model.versions.get(versions[0].id).openapi_schema["components"]["schemas"]
    equal((schemas["Output"]["type"], "template" in schemas["Input"]["properties"]), ("string", True))
    equal(client.accounts.current().type, "organization")


@case
def webhooks():
    made = client.predictions.create(
        version="local/text-template", input=TEMPLATE, webhook=HOOK, webhook_events_filter=["start", "completed"],
    )
    secret = client.webhooks.default.secret()
    seen = {}
    for _ in range(2):
        headers, body = arrived.get(timeout=60)
        Webhooks.validate(headers=headers, body=body, secret=secret, tolerance=300)
        sent = httpx.Response(200, text=body).json()
        equal(sent["id"], made.id)
        seen[sent["status"]] = sent["output"]
    equal(seen, {"processing": None, "succeeded": "Hello Ada!"})
    made = client.predictions.create(model=f"local/{NEAR}", input={"prompt": "hello"}, webhook=HOOK)
    deadline, status = time.monotonic() + 60, None
    while status != "succeeded":
        holds(time.monotonic() < deadline, status)
        _, body = arrived.get(timeout=60)
        status = httpx.Response(200, text=body).json()["status"]


@case
def errors():
    refuses(401, lambda: Client(api_token=WRONG_KEY, base_url=f"{BASE}/replicate").models.list())
    refuses(404, lambda: client.models.get("local/nobody"))
    refuses(404, lambda: client.predictions.get("none"))
    refuses(422, lambda: client.predictions.create(version="none", input={}))
    refuses(422, lambda: client.run("local/text-template", input={}))
    try:
        client.run("local/image-resize", input={"image": "data:image/png;base64,AAAA", "width": 16})
    except ModelError as error:
        equal(error.prediction.status, "failed")
        holds(str(error), error)
    else:
        raise AssertionError("no ModelError")


run()
