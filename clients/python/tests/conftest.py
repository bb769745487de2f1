"""The service that `clients/test` has started, servers to fake its failures, and a receiver of webhooks."""

from __future__ import annotations

import json
import os
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import pytest
from orrery_client import Orrery, Retries

URL, KEY = os.environ["ORRERY_URL"], os.environ["ORRERY_API_KEY"]
PATIENCE_S = 60


@pytest.fixture()
def client() -> Iterator[Orrery]:
    with Orrery(URL, KEY) as client:
        yield client


class Received(NamedTuple):
    method: str
    path: str
    headers: Dict[str, str]
    body: bytes


class Fake:
    """A server that answers with the given responses in turn: a status with headers and a body, or `None` for a lost
    connection after the request was read."""

    def __init__(self) -> None:
        self.received: "queue.Queue[Received]" = queue.Queue()
        self.answers: List[Optional[Tuple[int, Dict[str, str], bytes]]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fake.received.put(Received(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                answer = fake.answers.pop(0) if fake.answers else (204, {}, b"")
                if answer:
                    status, headers, content = answer
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next(self) -> Received:
        return self.received.get(timeout=PATIENCE_S)

    def will(self, *answers: Any) -> None:
        for answer in answers:
            if isinstance(answer, tuple):
                status, body, *headers = answer
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.answers.append((status, headers[0] if headers else {}, content))
            else:
                self.answers.append(answer)


@pytest.fixture()
def fake() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture()
def of_fake(fake: Fake) -> Iterator[Orrery]:
    with Orrery(fake.url, "smk_fake", retries=Retries(attempts=3, first_delay=0.01)) as client:
        yield client
