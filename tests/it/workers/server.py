"""A model server for tests: answers chat completions with its name and process id.

server.py PORT [--name NAME] [--wait SECONDS before it listens] [--exit CODE at once]
"""
import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("--name", default="server")
parser.add_argument("--wait", type=float, default=0)
parser.add_argument("--exit", type=int)
given = parser.parse_args()
if given.exit is not None:
    print("there is no model file", file=sys.stderr)
    sys.exit(given.exit)
time.sleep(given.wait)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind="application/json"):
        body = body.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(json.dumps({"object": "list", "data": []}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "messages" in asked and self.path != "/v1/chat/completions":
            return self.send_error(404)
        words = (asked.get("messages") or [{"content": asked.get("sleep", "0")}])[-1]["content"]
        time.sleep(float(words))
        said = f"{given.name} {os.getpid()} {os.environ['PORT']}"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if "messages" not in asked:
            return self.answer(json.dumps({"said": said}))
        if not asked.get("stream"):
            message = {"role": "assistant", "content": said}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            return self.answer(json.dumps({"choices": choices, "usage": usage}))
        first = {"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": None}]}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
        events = [json.dumps(first), json.dumps(last), "[DONE]"]
        self.answer("".join(f"data: {one}\n\n" for one in events), "text/event-stream")

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
