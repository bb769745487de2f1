"""An OpenAI-compatible server with answers derived from the request: it calls the offered tools, fills schemas, reasons
or fails if the message asks for it, and otherwise repeats the message."""

import base64
import json
import re
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def value(schema, root):
    """The smallest value that matches a schema: "Rome" for a string, 3 for a number."""
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return value(target, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choices in ("anyOf", "oneOf"):
        if choices in schema:
            return value(schema[choices][0], root)
    if "allOf" in schema:
        return value(schema["allOf"][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: value(part, root) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [value(schema.get("items", {}), root)]
    return {"string": "Rome", "integer": 3, "number": 3, "boolean": True, "null": None}[kind]


def text_of(content):
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def message_for(body):
    messages = body["messages"]
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"done: {text_of(last['content'])}"}
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    said = text_of(last["content"])
    if tools and choice != "none":
        wanted = re.search(r"use (\S+)", said)
        wanted = choice["function"]["name"] if isinstance(choice, dict) else wanted and wanted[1]
        tool = next((tool for tool in tools if wanted and wanted in tool["function"]["name"]), tools[0])["function"]
        schema = tool.get("parameters") or {"type": "object"}
        given = re.search(r"with (\{.*\})", said)
        arguments = given[1] if given else json.dumps(value(schema, schema))
        call = {"name": tool["name"], "arguments": arguments}
        call = {"id": "call_1", "type": "function", "function": call}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    form = body.get("response_format") or {"type": "text"}
    if form["type"] == "json_schema":
        schema = form["json_schema"]["schema"]
        return {"role": "assistant", "content": json.dumps(value(schema, schema))}
    if form["type"] == "json_object":
        return {"role": "assistant", "content": json.dumps({"name": "Rome", "people": 3})}
    message = {"role": "assistant", "content": f"You said: {said}"}
    return message | {"reasoning_content": "hm, hm"} if said.startswith("think") else message


def failure_for(body):
    """The status with which a request asks to fail: `fail with 429`."""
    wanted = re.match(r"fail with (\d+)", text_of(body["messages"][-1]["content"]))
    return wanted and int(wanted[1])


def form_of(data, boundary):
    """The fields of a form, and the names of its files with their sizes."""
    fields = {"files": []}
    for part in data.split(b"--" + boundary)[1:-1]:
        head, _, content = part.removeprefix(b"\r\n").removesuffix(b"\r\n").partition(b"\r\n\r\n")
        names = dict(re.findall(r'(\w+)="([^"]*)"', head.decode()))
        if "filename" in names:
            fields["files"].append(f"{names['filename']}:{len(content)}")
        else:
            fields[names["name"]] = content.decode()
    return fields


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        models = [{"id": "vendor/far", "object": "model", "created": 1, "owned_by": "vendor"}]
        self.reply({"object": "list", "data": models} if self.path == "/v1/models" else {}, 200)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        form = self.headers["Content-Type"].partition("multipart/form-data; boundary=")[2]
        body = form_of(data, form.encode()) if form else json.loads(data)
        if self.path.startswith("/v1/audio/") or self.path.startswith("/v1/images/"):
            self.media(body)
        elif self.path == "/v1/embeddings":
            self.embeddings(body)
        elif self.path == "/v1/completions":
            self.complete(body)
        elif self.path == "/v1/rerank":
            self.rerank(body)
        elif self.path != "/v1/chat/completions":
            self.reply({"error": {"message": "no such path", "type": "invalid_request_error"}}, 404)
        elif status := failure_for(body):
            self.reply({"error": {"message": "as requested", "type": "requests"}}, status)
        elif body.get("stream"):
            self.stream(body, message_for(body))
        else:
            message = message_for(body)
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "message": message, "finish_reason": reason}
            usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
            head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
            self.reply(head | {"choices": [choice], "usage": usage})

    def stream(self, body, message):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

        def event(data):
            data = f"data: {data if isinstance(data, str) else json.dumps(head | data)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def choice(delta, reason=None):
            event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

        choice({"role": "assistant", "content": ""})
        for call in message.get("tool_calls") or []:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            begin = {"index": 0, **call, "function": {"name": name, "arguments": ""}}
            choice({"tool_calls": [begin]})
            for part in re.findall(r"(?s).{1,8}", arguments):
                choice({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
        for part in re.findall(r"(?s).{1,3}", message.get("reasoning_content") or ""):
            choice({"reasoning_content": part})
        for part in re.findall(r"(?s)\S+\s*|\s+", message["content"] or ""):
            choice({"content": part})
        choice({}, "tool_calls" if message.get("tool_calls") else "stop")
        if (body.get("stream_options") or {}).get("include_usage"):
            event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}})
        event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def complete(self, body):
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [
            {"index": index, "text": f"after {prompt}", "logprobs": None, "finish_reason": "stop"}
            for index, prompt in enumerate(prompts)
        ]
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
        if not body.get("stream"):
            return self.reply(head | {"choices": choices, "usage": usage})
        events = [head | {"choices": [choice]} for choice in choices]
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(head | {"choices": [], "usage": usage})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def raw(self, data, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def media(self, body):
        """Transcripts and images that repeat the request, and the text as its speech."""
        if self.path == "/v1/audio/speech":
            return self.raw(b"ID3" + body["input"].encode(), "audio/mpeg")
        if self.path.startswith("/v1/images/"):
            files = "".join(f" {name}" for name in body.get("files", []))
            image = base64.b64encode(f"{body['prompt']}{files}".encode()).decode()
            return self.reply({"created": 1, "data": [{"b64_json": image}] * int(body.get("n", 1))})
        text = f"{self.path.rsplit('/')[-1]} of {' '.join(body['files'])}"
        form = body.get("response_format", "json")
        if body.get("stream") == "true":
            events = ({"type": "transcript.text.delta", "delta": text}, {"type": "transcript.text.done", "text": text})
            return self.raw("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode(), "text/event-stream")
        if form in ("json", "verbose_json"):
            return self.reply({"text": text} | ({"duration": 1.5, "language": "english"} if form == "verbose_json" else {}))
        head = "WEBVTT\n\n" if form == "vtt" else ""
        times = "00:00:00,000 --> 00:00:01,000\n" if form in ("srt", "vtt") else ""
        return self.raw(f"{head}{times}{text}\n".encode(), "text/plain; charset=utf-8")

    def rerank(self, body):
        """Longer documents are more relevant."""
        scores = [{"index": index, "score": len(text)} for index, text in enumerate(body["documents"])]
        self.reply({"data": scores, "usage": {"total_tokens": 9}})

    def embeddings(self, body):
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vector = [0.5, 0.25]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack("<2f", *vector)).decode()
        data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(inputs))]
        self.reply({"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 2, "total_tokens": 2}})


def start():
    """Starts one on a free port and returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/v1"
