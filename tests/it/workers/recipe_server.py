#!/usr/bin/env python3
"""A server for tests of recipes: accepts the options of the program in whose place it is installed, and answers like it."""
import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The options of each program that the recipes use.
OPTIONS = {
    "llama-server": ["--model", "--alias", "--host", "--port"],
    "vllm": ["--served-model-name", "--host", "--port"],
    "text-embeddings-router": ["--model-id", "--hostname", "--port"],
    "whisper-server": ["--model", "--inference-path", "--host", "--port"],
    "http_server.py": ["--model", "--host", "--port"],
    "sd-server": ["--model", "--listen-ip", "--listen-port"],
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="

name = os.path.basename(sys.argv[0])
words = sys.argv[1:]
if name == "vllm":
    assert words[:2] == ["serve", "org/model"], words
    assert os.path.isdir(os.path.dirname(os.environ["VLLM_CACHE_ROOT"]))
    words = words[2:]
parser = argparse.ArgumentParser(allow_abbrev=False)
for option in OPTIONS[name]:
    parser.add_argument(option, required=True)
given = vars(parser.parse_args(words))
host = given.get("host") or given.get("hostname") or given.get("listen_ip")
port = int(given.get("port") or given.get("listen_port"))
if name in ("llama-server", "whisper-server", "http_server.py", "sd-server"):
    assert os.path.isabs(given["model"]) and os.path.isfile(given["model"]), given


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind="application/json", status=200):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        known = ["/health"] if name != "whisper-server" else []
        known += ["/v1/models"] if name not in ("whisper-server", "text-embeddings-router") else []
        self.answer({}, status=200 if self.path in known else 404)

    def body(self):
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers["content-length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def do_POST(self):
        body = self.body()
        if name == "whisper-server" and self.path == given["inference_path"]:
            assert b'name="file"' in body
            return self.answer({"text": "done"})
        asked = json.loads(body)
        if self.path == "/v1/chat/completions" and name in ("llama-server", "vllm"):
            assert asked["model"] == given.get("alias", given.get("served_model_name"))
            delta = {"choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}
            events = f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n"
            return self.answer(events.encode(), "text/event-stream")
        if self.path == "/v1/embeddings" and name == "text-embeddings-router":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return self.answer({"object": "list", "data": data, "model": "m", "usage": usage})
        if self.path == "/v1/images/generations" and name == "sd-server":
            return self.answer({"created": 1, "data": [{"b64_json": PNG}]})
        if self.path == "/synthesize" and name == "http_server.py":
            assert asked["text"]
            return self.answer(b"RIFF....WAVE", "text/html; charset=utf-8")
        self.answer({"error": "unexpected request"}, status=404)

    def log_message(self, *_):
        pass


ThreadingHTTPServer((host, port), Handler).serve_forever()
