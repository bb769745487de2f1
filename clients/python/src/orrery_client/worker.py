"""Turns functions into models: an HTTP server that the runner `http` calls. Needs only the standard library.

    from orrery_client.worker import model, serve

    @model
    def shout(text: str, times: int = 1) -> str:
        return " ".join([text.upper()] * times)

    serve(port=5000)

`python shout.py --manifest shout` prints the model's manifest for the models folder.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import select
import signal
import socket
import sys
import threading
import time
import traceback
import typing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Iterator, Optional, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
BODY_BYTES_MAX = 64 * 1024 * 1024
# A run that has begun may end before the server stops.
STOP_TIMEOUT_S = 60
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
OUTPUTS = {**TYPES, int: "number", bytes: "file"}

_models: Dict[str, Callable[..., Any]] = {}


class InvalidInput(ValueError):
    """Raise it for an input that cannot be processed: the prediction fails as `invalid_user_input`."""


class Unavailable(Exception):
    """Raise it if the model cannot run now: the prediction fails as `provider_unavailable`, which retries cover."""


@dataclass(frozen=True)
class File:
    """An output that is a file, of a model whose `output_type` is image, audio, video or file."""

    content: bytes
    content_type: str = "application/octet-stream"


@dataclass(frozen=True)
class Context:
    """The request of a run, for a function with a parameter of this type."""

    idempotency_key: str
    """The same if the run is repeated after a crash: use it so that an effect happens once."""
    request_id: Optional[str]
    _connection: socket.socket

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the output any more: the prediction was cancelled or timed out."""
        readable = select.select([self._connection], [], [], 0)[0]
        with contextlib.suppress(BlockingIOError):
            return bool(readable) and not self._connection.recv(1, socket.MSG_PEEK)
        return False


def model(function: Function) -> Function:
    """Serves the function as the model with its name, `-` for `_`. Its parameters are the fields of the input."""
    _models[function.__name__.replace("_", "-")] = function
    return function


def serve(port: int = 5000, host: str = "127.0.0.1") -> None:
    """Serves the models until SIGTERM or Ctrl+C. With `--manifest NAME` on the command line, prints a manifest instead."""
    if sys.argv[1:2] == ["--manifest"]:
        name = sys.argv[2] if len(sys.argv) > 2 else next(iter(_models))
        if name not in _models:
            sys.exit(f"no model {name}: there are {', '.join(_models)}")
        print(manifest(name, f"http://{host}:{port}"), end="")
        return
    server = Server((host, port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.finish()


class Server(ThreadingHTTPServer):
    """Counts runs, so that a stop waits for them but not for idle connections."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self.running = 0
        self.lock = threading.Lock()
        super().__init__(*arguments)

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        with self.lock:
            self.running += 1
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1

    def finish(self) -> None:
        self.server_close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        is_health = self.path == "/health"
        self.answer(200 if is_health else 404, {"models": list(_models)} if is_health else {"error": "not found"})

    def do_POST(self) -> None:
        with self.server.run():
            self.answer(*self.outcome())

    def outcome(self) -> "tuple[int, Any]":
        """The status, which decides how a failure is classified, and the output or error."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            return 400, {"error": f"a body of at most {BODY_BYTES_MAX} bytes with a Content-Length is needed"}
        body = self.rfile.read(int(length))
        function = _models.get(self.path[1:])
        if not function:
            # Not 404, which Orrery takes for an invalid input.
            return 501, {"error": f"no model at {self.path}: there are {', '.join(_models)}"}
        try:
            return 200, self.call(function, body)
        except InvalidInput as error:
            return 400, {"error": str(error)}
        except Unavailable as error:
            return 503, {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            return 500, {"error": f"{type(error).__name__}: {error}"}

    def call(self, function: Callable[..., Any], body: bytes) -> Any:
        try:
            fields = json.loads(body)
            bound = inspect.signature(function).bind(**fields, **self.context(function))
        except (TypeError, ValueError) as error:
            raise InvalidInput(str(error)) from error
        return function(*bound.args, **bound.kwargs)

    def context(self, function: Callable[..., Any]) -> Dict[str, Context]:
        key = self.headers.get("Idempotency-Key", "")
        context = Context(key, self.headers.get("X-Request-Id"), self.connection)
        return {name: context for name, kind in typing.get_type_hints(function).items() if kind is Context}

    def answer(self, status: int, output: Any) -> None:
        if isinstance(output, bytes):
            output = File(output)
        if isinstance(output, File):
            body, content_type = output.content, output.content_type
        else:
            body, content_type = json.dumps(output).encode(), "application/json"
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Writes nothing for each request: Orrery's log has them."""


def manifest(name: str, address: str) -> str:
    """The manifest of a model: its schema is that of the function's parameters."""
    function = _models[name]
    hints = typing.get_type_hints(function)
    parameters = [one for one in inspect.signature(function).parameters.values() if hints.get(one.name) is not Context]
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    properties: Dict[str, Dict[str, Any]] = {}
    for one in named:
        origin = typing.get_origin(hints.get(one.name)) or hints.get(one.name)
        properties[one.name] = {"type": TYPES[origin]} if origin in TYPES else {}
        if one.default not in (one.empty, None):
            properties[one.name]["default"] = one.default
    required = [one.name for one in named if one.default is one.empty]
    schema: Dict[str, Any] = {"type": "object", "required": required, "properties": properties}
    if len(named) == len(parameters):
        schema["additionalProperties"] = False
    returned = typing.get_origin(hints.get("return")) or hints.get("return")
    output = "file" if returned is File else OUTPUTS.get(typing.cast(type, returned), "object")
    lines = {"slug": name, "output_type": output, "concurrency": 1, "request_schema": schema}
    runner = f'[runner]\ntype = "http"\nurl = "{address}/{name}"\nhealth = "/health"\n'
    return "".join(f"{key} = {_toml(value)}\n" for key, value in lines.items()) + runner


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
