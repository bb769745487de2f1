"""Deliveries of a real service, genuine and not."""

from __future__ import annotations

import base64
import json
import time
from datetime import datetime, timezone
from typing import Any, Dict, Tuple

import pytest
from conftest import Fake
from orrery_client import Orrery, WebhookError, verify_webhook
from standardwebhooks import Webhook

SECRET = "whsec_" + base64.b64encode(b"twenty-four secret bytes").decode()


def delivery(client: Orrery, fake: Fake, secret: str) -> Tuple[str, bytes, Dict[str, str]]:
    input = {"template": "x"}
    id = client.predictions.create("text-template", input, webhook_url=fake.url, webhook_secret=secret)["predictionID"]
    received = fake.next()
    return id, received.body, received.headers


def test_real_deliveries_are_genuine(client: Orrery, fake: Fake) -> None:
    for secret in (SECRET, "a secret of yours", "whsec_no base64", "whsec_abd="):
        id, body, headers = delivery(client, fake, secret)
        result = verify_webhook(body, headers, secret)
        assert (result["execution_id"], result["status"], result["output"]) == (id, "completed", "x")
        assert verify_webhook(body.decode(), {name.title(): value for name, value in headers.items()}, secret) == result


def _signed(body: bytes, at: float = 0) -> Dict[str, str]:
    moment = datetime.fromtimestamp(at or time.time(), tz=timezone.utc)
    signature = Webhook(SECRET).sign("msg_1", moment, body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(moment.timestamp())), "webhook-signature": signature}


def test_signatures_of_the_reference_library_are_accepted() -> None:
    assert verify_webhook(b'{"a": 1}', _signed(b'{"a": 1}'), SECRET) == {"a": 1}
    # One of two secrets, while an endpoint's secret is rotated.
    headers = _signed(b"{}")
    headers["webhook-signature"] = "v1,AAAA v1a,ignored " + headers["webhook-signature"]
    assert verify_webhook(b"{}", headers, SECRET) == {}


def test_endpoints_rotated_secrets_are_both_accepted(client: Orrery, fake: Fake) -> None:
    made = client.request("POST", "/v1/webhook-endpoints", json={"url": fake.url, "events": ["prediction.completed"]})
    place = f"/v1/webhook-endpoints/{made['id']}"
    rotated = client.request("POST", f"{place}/rotate", json={"grace_seconds": 3600})
    client.predictions.create("text-template", {"template": "y"})
    received = fake.next()
    client.request("DELETE", place)
    for secret in (made["secret"], rotated["secret"]):
        assert verify_webhook(received.body, received.headers, secret)["type"] == "prediction.completed"


def test_forged_old_and_replayed_deliveries_are_rejected(client: Orrery, fake: Fake, monkeypatch: Any) -> None:
    _, body, headers = delivery(client, fake, SECRET)

    def rejected(reason: str, body: bytes = body, secret: str = SECRET, **changed: Any) -> None:
        sent = {**headers, **{name.replace("_", "-"): value for name, value in changed.items()}}
        with pytest.raises(WebhookError, match=reason):
            verify_webhook(body, {name: value for name, value in sent.items() if value is not None}, secret)

    rejected("no signature matches", secret="another")
    rejected("no signature matches", body=body.replace(b"completed", b"cancelled"))
    rejected("no signature matches", webhook_signature="v1," + base64.b64encode(bytes(32)).decode())
    rejected("no signature matches", webhook_signature="v1,not base64 v2,a")
    rejected("header webhook-signature is missing", webhook_signature=None)
    rejected("not a number", webhook_timestamp="yesterday")
    # A replay with a new time or a new id needs a new signature.
    rejected("no signature matches", webhook_timestamp=str(int(headers["webhook-timestamp"]) + 1))
    rejected("no signature matches", webhook_id="another")
    now = time.time()
    for later in (301, -301):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        rejected("too old or in the future")
    with pytest.raises(WebhookError, match="not valid JSON"):
        monkeypatch.undo()
        verify_webhook(b"{", _signed(b"{"), SECRET)
    assert json.loads(body) == verify_webhook(body, headers, SECRET)
