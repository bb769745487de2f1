"""Against a fake server: what is repeated, with which key, and what is not."""

from __future__ import annotations

import io
import json
import socket
import time

import httpx
import pytest
from conftest import Fake
from orrery_client import ApiError, NotConnected, Orrery, Retries, Timeouts

ACCEPTED = (200, {"status": "success", "message": "", "predictionID": "1"})
BUSY = (429, {"error": "queue is full", "status": 429})


def test_refused_and_lost_creates_are_repeated_with_one_key(fake: Fake, of_fake: Orrery) -> None:
    for refused in (BUSY, (503, {"error": "stopping"}), (502, b"<html>"), None):
        fake.will(refused, ACCEPTED)
        assert of_fake.predictions.create("a", {})["predictionID"] == "1"
        first, second = fake.next(), fake.next()
        assert first.body == second.body and first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert fake.received.empty()


def test_a_repetition_waits_for_the_first_attempt(fake: Fake, of_fake: Orrery) -> None:
    fake.will(None, (409, {"error": "still being answered"}), ACCEPTED)
    assert of_fake.predictions.create("a", {})["predictionID"] == "1"
    fake.will((409, {"error": "the execution has not failed"}), ACCEPTED)
    with pytest.raises(ApiError) as error:
        of_fake.workflows.redrive("1")
    assert error.value.status == 409


def test_nothing_that_may_have_run_is_repeated_without_a_key(fake: Fake, of_fake: Orrery) -> None:
    fake.will(None, (202, {"accepted": True}))
    with pytest.raises(NotConnected):
        of_fake.workflows.send_event("1", "approval", {})
    assert fake.next() and fake.received.empty()
    fake.answers.clear()
    # Nothing was done: repeated all the same.
    fake.will(BUSY, (202, {"accepted": True}))
    assert of_fake.workflows.send_event("1", "approval", {})["accepted"]


def test_retry_after_is_kept_and_bounded(fake: Fake, of_fake: Orrery) -> None:
    fake.will((429, {"error": "x"}, {"Retry-After": "1"}), ACCEPTED)
    started = time.monotonic()
    of_fake.predictions.create("a", {})
    assert time.monotonic() - started >= 1
    fake.will((429, {"error": "x"}, {"Retry-After": "31"}), ACCEPTED)
    with pytest.raises(ApiError):
        of_fake.predictions.create("a", {})


def test_attempts_are_bounded(fake: Fake, of_fake: Orrery) -> None:
    fake.will(*[BUSY] * 9)
    with pytest.raises(ApiError) as error:
        of_fake.predictions.create("a", {})
    assert (error.value.status, error.value.message, fake.received.qsize()) == (429, "queue is full", 3)
    retries = Retries()
    assert retries.delay(5) is None and retries.delay(1, "31") is None and 20 <= (retries.delay(2, "20") or 0)


def test_an_upload_is_repeated_from_its_beginning(fake: Fake, of_fake: Orrery) -> None:
    fake.will(BUSY, (201, {"id": "1"}))
    of_fake.files.upload(io.BytesIO(b"all of it"), filename="a.txt")
    assert b"all of it" in fake.next().body and b"all of it" in fake.next().body


def test_a_response_that_does_not_arrive_ends_at_its_timeout() -> None:
    retries = Retries(attempts=1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Orrery(url, "k", timeouts=Timeouts(response=0.1), retries=retries) as client, pytest.raises(NotConnected) as error:
            client.request("GET", "/slow")
    assert isinstance(error.value.__cause__, httpx.ReadTimeout)


def test_a_broken_stream_is_resumed(fake: Fake, of_fake: Orrery) -> None:
    kind = {"Content-Type": "text/event-stream"}
    part = b'retry: 1000\n\nid: 1\nevent: output\ndata: {"part": "a"}\n\nid: 2\nevent: output\ndata: {"pa'
    fake.will((200, part, kind), (503, {"error": "restarting"}), (200, b'event: end\ndata: {"id":\ndata: "x"}\n\n', kind))
    events = list(of_fake.predictions.stream("1"))
    assert [(event.type, event.data) for event in events] == [("output", {"part": "a"}), ("end", {"id": "x"})]
    assert "last-event-id" not in fake.next().headers
    assert [fake.next().headers["last-event-id"] for _ in range(2)] == ["1", "1"]
    # After the end, the service answers 204.
    fake.will((204, b""))
    assert list(of_fake.predictions.stream("1")) == []
    fake.will(*[(200, b"", kind)] * 3)
    with pytest.raises(NotConnected):
        list(of_fake.predictions.stream("1"))


def test_the_key_is_sent_to_the_service_only(fake: Fake, of_fake: Orrery) -> None:
    fake.will((200, b"bytes"), (200, b"bytes"))
    assert of_fake.files.download(f"{fake.url}/v1/files/1/content?token=t") == b"bytes"
    assert "x-api-key" not in fake.next().headers
    of_fake.files.download("1")
    assert fake.next().headers["x-api-key"] == "smk_fake"


def test_push_reads_again_if_somebody_else_has_changed_the_workflow(fake: Fake, of_fake: Orrery) -> None:
    old, new = {"steps": [{"step_id": "a"}]}, {"steps": [{"step_id": "b"}]}
    workflow = {"workflow_id": "w", "slug": "s", "name": "n", "latest_version_id": "v9", "versions": [{"version_id": "v9"}]}
    version = (200, {"definition": old}, {"ETag": '"1"'})
    read_again = (200, {"definition": new}, {"ETag": '"2"'})
    page = {"workflows": [workflow], "total_count": 1}
    fake.will((200, page), (200, workflow), version, (412, {"error": "changed"}), (200, workflow), read_again)
    assert of_fake.workflows.push("n", new)["slug"] == "s"
    put = [fake.next() for _ in range(6)][3]
    assert (put.method, put.path, put.headers["if-match"]) == ("PUT", "/v1/workflows/w/versions/v10", '"1"')
    assert json.loads(put.body) == {"definition": new}
