"""Webhooks that standardwebhooks and svix verify with their own code."""

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
import standardwebhooks
import svix
from case import BASE, KEY, WORKFLOWS, case, holds, run

HEADERS = {"X-API-Key": KEY}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = {"model": "text-language", "version": "0.0.1", "input": {"text": "What a beautiful night it is, caf\u00e9!"}}
arrived = queue.Queue()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        arrived.put((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=receiver.serve_forever, daemon=True).start()
HOOK = {"webhook_url": f"http://127.0.0.1:{receiver.server_address[1]}/hook", "webhook_secret": SECRET}


def verify():
    headers, body = arrived.get(timeout=60)
    for library in (standardwebhooks, svix):
        library.Webhook(SECRET).verify(body, headers)
        try:
            library.Webhook(SECRET).verify(body + b" ", headers)
        except library.webhooks.WebhookVerificationError:
            continue
        raise AssertionError(f"{library.__name__} accepts a changed body")


@case
def prediction():
    holds(requests.post(f"{BASE}/v1/prediction/", json=BODY | HOOK, headers=HEADERS).ok, "not created")
    verify()


@case
def workflow():
    steps = [{"step_id": "p", "type": "pass", "result": {"city": "Rome"}}]
    made = requests.post(
        f"{WORKFLOWS}/api/v1/workflows",
        json={"name": "Hooked", "description": "x", "definition": {"steps": steps}},
        headers=HEADERS,
    ).json()
    answer = requests.post(f"{WORKFLOWS}/api/v1/{made['workflow_id']}/trigger", json={"inputs": {}} | HOOK, headers=HEADERS)
    holds(answer.ok, answer.text)
    verify()


@case
def test_delivery():
    test = {"url": HOOK["webhook_url"], "webhook_secret": SECRET}
    answer = requests.post(f"{BASE}/v1/webhooks/test", json=test, headers=HEADERS)
    holds(answer.ok, answer.text)
    verify()


run()
