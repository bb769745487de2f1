"""Checks of webhooks that arrive, by Standard Webhooks. Needs only the standard library."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any, Mapping, Union

from .errors import WebhookError

TOLERANCE_S = 300


def verify_webhook(body: Union[bytes, str], headers: Mapping[str, str], secret: str, *, tolerance: float = TOLERANCE_S) -> Any:
    """Returns the JSON of a genuine delivery, and raises `WebhookError` for any other.

    `body` is what was received, byte for byte. A delivery whose timestamp is more than `tolerance` seconds away is
    rejected, so that an old one cannot be replayed later. Deliveries arrive at least once: ignore a `webhook-id` that
    was handled before.
    """
    body = body.encode() if isinstance(body, str) else bytes(body)
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp, signatures = (lower[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise WebhookError(f"the header {missing.args[0]} is missing: was the webhook requested with a secret?") from None
    if not (timestamp.isascii() and timestamp.isdecimal()):
        raise WebhookError("webhook-timestamp is not a number of seconds")
    expected = hmac.new(_key(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    # While a secret is rotated, there is a signature with each of the two.
    candidates = [one[3:] for one in signatures.split(" ") if one.startswith("v1,")]
    if not any([hmac.compare_digest(expected, _decoded(one)) for one in candidates]):
        raise WebhookError("no signature matches the secret and the body")
    if abs(time.time() - int(timestamp)) > tolerance:
        raise WebhookError("the timestamp is too old or in the future")
    try:
        return json.loads(body)
    except ValueError as error:
        raise WebhookError("the body is not valid JSON") from error


def _key(secret: str) -> bytes:
    """The bytes of the base64 after `whsec_`, or those of a secret in another form."""
    encoded = secret[len("whsec_") :]
    key = _decoded(encoded)
    is_standard = secret.startswith("whsec_") and base64.b64encode(key).decode() == encoded
    return key if is_standard else secret.encode()


def _decoded(encoded: str) -> bytes:
    """The bytes of base64; none if it is invalid."""
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        return b""
