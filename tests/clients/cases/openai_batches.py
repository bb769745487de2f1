"""openai of PyPI: files with a purpose, and batches, at /v1 and at /openai/v1."""

import json
import time

import openai
from case import BASE, FAR, KEY, case, equal, holds, run

client = openai.OpenAI(base_url=f"{BASE}/openai/v1", api_key=KEY, max_retries=0)


def lines(url, bodies):
    texts = (json.dumps({"custom_id": str(n), "method": "POST", "url": url, "body": body}) for n, body in enumerate(bodies))
    return "\n".join(texts).encode()


def ended(batch):
    deadline = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "cancelled"):
        holds(time.monotonic() < deadline, batch.status)
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


@case
def files():
    for prefix in ("v1", "openai/v1"):
        client = openai.OpenAI(base_url=f"{BASE}/{prefix}", api_key=KEY, max_retries=0)
        made = client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
        equal((made.object, made.bytes, made.purpose, made.status), ("file", 2, "fine-tune", "processed"))
        holds(prefix == "v1" or isinstance(made.created_at, int), made.created_at)
        equal(client.files.retrieve(made.id).filename, "a.jsonl")
        holds(made.id in [file.id for file in client.files.list(purpose="fine-tune")], "it is listed")
        equal(client.files.content(made.id).read(), b"{}")
    listed = [file.id for file in client.files.list(limit=1)]
    equal(len(listed), len(set(listed)))
    holds(made.id in listed, "the pages have all files")
    holds(client.files.delete(made.id).deleted, "it is deleted")


@case
def batches():
    chat = {"model": FAR, "messages": [{"role": "user", "content": "hello there"}]}
    for url, bodies in (("/v1/chat/completions", [chat, {}]), ("/v1/responses", [{"model": FAR, "input": "hello there"}, {}])):
        file = client.files.create(file=("in.jsonl", lines(url, bodies)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h", metadata={"a": "b"})
        equal((batch.status, batch.metadata), ("validating", {"a": "b"}))
        batch = ended(batch)
        counts = batch.request_counts
        equal((batch.status, counts.total, counts.completed, counts.failed), ("completed", 2, 1, 1))
        answered = json.loads(client.files.content(batch.output_file_id).text)
        equal(answered["response"]["status_code"], 200)
        holds("You said: hello there" in json.dumps(answered["response"]["body"]), answered)
        refused = json.loads(client.files.content(batch.error_file_id).text)
        equal(refused["response"]["body"]["error"]["type"], "invalid_request_error")
        holds(batch.id in [one.id for one in client.batches.list()], "it is listed")


@case
def invalid():
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    batch = ended(batch)
    equal((batch.status, batch.errors.data[0].line), ("failed", 1))
    try:
        client.batches.cancel(batch.id)
        raise AssertionError("it was cancelled")
    except openai.ConflictError as error:
        holds("already ended" in str(error), error)


run()
