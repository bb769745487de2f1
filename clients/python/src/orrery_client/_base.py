"""What both clients share and no network touches: settings, the decision to retry, errors, server-sent events."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, List, Optional, Union
from urllib.parse import quote

import httpx

from .errors import ApiError

FINAL = frozenset({"success", "error", "completed", "failed", "cancelled"})
# What the service holds a response for, in seconds, at most.
PREDICTION_HOLD_S, EXECUTION_HOLD_S = 60, 30
# Methods whose repetition changes nothing.
REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
# Nothing was created, whatever the method.
REFUSED = frozenset({429, 503})
# A proxy lost the response: the request may have had an effect.
LOST = frozenset({502, 504})
# Errors before a request is sent.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Upload = Union[bytes, str, Path, BinaryIO]


@dataclass(frozen=True)
class Timeouts:
    """Time limits in seconds."""

    connect: float = 5
    """Until a connection is established, also from the pool."""
    send: float = 60
    """Until the connection accepts the next part of a request."""
    response: float = 60
    """Until the next part of a response arrives, in addition to the time for which the service holds a response."""
    stream: float = 45
    """Until the next byte of a stream arrives, which the service sends every 15 seconds; then it is resumed."""

    def of_httpx(self, hold: float = 0, is_stream: bool = False) -> httpx.Timeout:
        read = self.stream if is_stream else self.response + hold
        return httpx.Timeout(connect=self.connect, pool=self.connect, write=self.send, read=read)


@dataclass(frozen=True)
class Retries:
    """When and how often a request is repeated that certainly had no effect, or that has the same effect once more."""

    attempts: int = 5
    """In all. 1 means no retry."""
    first_delay: float = 0.5
    """Before the second attempt, in seconds; doubled before each further one, ±25 %."""
    max_delay: float = 30
    """The longest delay, also the longest `Retry-After` that is waited for."""

    def delay(self, attempt: int, retry_after: Optional[str] = None) -> Optional[float]:
        """Seconds until the attempt after this one (from 1); `None` means that there is none."""
        if attempt >= self.attempts:
            return None
        delay: float = min(self.first_delay * 2 ** (attempt - 1), self.max_delay) * random.uniform(0.75, 1.25)
        try:
            wanted = float(retry_after or 0)
        except ValueError:
            wanted = 0
        return None if wanted > self.max_delay else max(delay, wanted)


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

    type: str
    """Such as `status`, `output` or `end`. After a `reset`, discard all earlier events."""
    data: Any
    id: Optional[str] = None


class Events:
    """Parses server-sent events from lines."""

    def __init__(self) -> None:
        self.last_id: Optional[str] = None
        """Of the last complete event: an incomplete one arrives again."""
        self.clear()

    def clear(self) -> None:
        self.type = "message"
        self.data: List[str] = []
        self.id = self.last_id

    def line(self, line: str) -> Optional[Event]:
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            self.type = value
        elif name == "data":
            self.data.append(value)
        elif name == "id":
            self.id = value
        elif not line and self.data:
            self.last_id = self.id
            event = Event(self.type, json.loads("\n".join(self.data)), self.last_id)
            self.clear()
            return event
        return None


def is_retried(method: str, has_key: bool, attempt: int, result: Union[httpx.Response, httpx.HTTPError]) -> bool:
    """Whether a repetition cannot run anything twice. `has_key` means that the request has an `Idempotency-Key`."""
    if isinstance(result, httpx.HTTPError):
        return isinstance(result, UNSENT) or method in REPEATABLE or has_key
    # The first attempt, whose response was lost, is still in progress.
    is_in_progress = result.status_code == 409 and has_key and attempt > 1
    is_lost = result.status_code in LOST and (method in REPEATABLE or has_key)
    return result.status_code in REFUSED or is_in_progress or is_lost


def error_of(response: httpx.Response) -> ApiError:
    """The error of a response whose body has been read."""
    try:
        body = response.json()
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {"error": response.text.strip()[:300]}
    message, details = body.get("error"), body.get("details")
    if isinstance(message, dict):
        # Chat and embeddings answer in OpenAI's form.
        message, details = message.get("message"), message
    hint = response.headers.get("x-error-hint") or (details.get("hint") if isinstance(details, dict) else None)
    request_id = response.headers.get("x-request-id")
    return ApiError(response.status_code, str(message or response.reason_phrase), hint, details, request_id)


def given(**fields: Any) -> Dict[str, Any]:
    """The fields that are not `None`."""
    return {name: value for name, value in fields.items() if value is not None}


def path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def new_version(existing: Iterable[str]) -> str:
    """`v` and the number after the highest."""
    numbers = [int(name[1:]) for name in existing if name[:1] == "v" and name[1:].isdecimal()]
    return f"v{max(numbers, default=0) + 1}"
