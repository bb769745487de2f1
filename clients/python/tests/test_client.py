"""Against a real service: predictions, workflows, files, errors."""

from __future__ import annotations

import asyncio
import io
import uuid
from pathlib import Path
from typing import Any, Dict

import pytest
from conftest import KEY, URL
from orrery_client import ApiError, AsyncOrrery, ExecutionFailed, NotConnected, Orrery, PredictionFailed, Retries, WaitTimeout

HELLO = {"template": "Hello {{ name }}!", "values": {"name": "Ada"}}


def definition(text: str = "hello {{inputs.name}}") -> Dict[str, Any]:
    return {"steps": [{"step_id": "say", "type": "pass", "result": text}]}


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


def test_models_list_and_get(client: Orrery) -> None:
    assert "text-template" in [model["slug"] for model in client.models.list("text", limit=500)]
    assert client.models.get("text-template")["request_schema"]["required"] == ["template"]
    with pytest.raises(ApiError) as error:
        client.models.get("of/nobody")
    assert error.value.status == 404


def test_prediction_create_and_wait(client: Orrery) -> None:
    accepted = client.predictions.create("text-template", HELLO)
    prediction = client.predictions.wait(accepted["predictionID"], timeout=60)
    assert (prediction["status"], prediction["output"]) == ("success", "Hello Ada!")
    assert client.predictions.get(prediction["id"]) == prediction


def test_prediction_run_raises_the_failure(client: Orrery) -> None:
    assert client.predictions.run("text-template", HELLO)["output"] == "Hello Ada!"
    with pytest.raises(PredictionFailed) as failure:
        client.predictions.run("text-template", {"template": "{{ 1 / 'a' }}"})
    assert failure.value.prediction["status"] == "error"
    assert failure.value.prediction["error_classification"] == "invalid_user_input"


def test_prediction_key_creates_once(client: Orrery) -> None:
    key = str(uuid.uuid4())
    first = client.predictions.create("text-template", HELLO, idempotency_key=key)
    assert client.predictions.create("text-template", HELLO, idempotency_key=key) == first
    assert client.predictions.create("text-template", HELLO)["predictionID"] != first["predictionID"]
    with pytest.raises(ApiError) as error:
        client.predictions.create("text-template", {"template": "x"}, idempotency_key=key)
    assert error.value.status == 422


def test_prediction_stream_and_cancel(client: Orrery) -> None:
    id = client.predictions.create("shout", {"text": "a b"})["predictionID"]
    events = list(client.predictions.stream(id))
    assert [event.type for event in events if event.type != "log"][0] == "status"
    assert (events[-1].type, events[-1].data["output"]) == ("end", "A! B!")
    id = client.predictions.create("slow", {})["predictionID"]
    with pytest.raises(WaitTimeout) as still:
        client.predictions.wait(id, timeout=0)
    assert still.value.last["id"] == id
    assert client.predictions.cancel(id)["status"] == "cancelled"
    assert client.predictions.cancel(id)["status"] == "cancelled"
    assert client.predictions.wait(id)["status"] == "cancelled"


def test_errors_have_status_hint_details_and_request_id(client: Orrery) -> None:
    with pytest.raises(ApiError) as error:
        client.predictions.create("text-template", {"template": 1})
    assert error.value.status == 400 and error.value.details[0]["path"] == "/template"
    assert "template" in str(error.value) and error.value.request_id
    with Orrery(URL, "smk_wrong") as stranger, pytest.raises(ApiError) as error:
        stranger.predictions.get(str(uuid.uuid4()))
    assert error.value.status == 401 and error.value.hint and "key" in error.value.hint
    assert str(error.value) == f"401: Invalid or missing API key ({error.value.hint})"
    with Orrery("http://127.0.0.1:9", KEY, retries=Retries(attempts=2, first_delay=0.01)) as lost, pytest.raises(NotConnected):
        lost.models.list()


def test_workflow_push_changes_only_what_differs(client: Orrery) -> None:
    name = unique("Greeting")
    made = client.workflows.push(name, definition(), description="Says hello")
    assert (made["latest_version_id"], made["description"]) == ("v1", "Says hello")
    assert client.workflows.push(name, definition())["latest_version_id"] == "v1"
    assert client.workflows.push(made["slug"], definition("hi"))["latest_version_id"] == "v2"
    assert client.workflows.get(made["slug"])["workflow_id"] == made["workflow_id"]


def test_workflow_run_and_follow(client: Orrery) -> None:
    slug = client.workflows.push(unique("Run"), definition())["slug"]
    execution = client.workflows.run(slug, {"name": "Ada"}, timeout=60)
    assert execution["output"] == "hello Ada"
    events = list(client.workflows.follow(client.workflows.trigger(slug, {"name": "Bo"})["execution_id"]))
    assert (events[-1].type, events[-1].data["output"]) == ("end", "hello Bo")
    assert [event.data["step_id"] for event in events if event.type == "step"] == ["say"]


def test_workflow_event_cancel_and_redrive(client: Orrery) -> None:
    wait = {"step_id": "ask", "type": "wait", "event": {"name": "approval", "timeout_seconds": 3600}}
    slug = client.workflows.push(unique("Ask"), {"steps": [wait]})["slug"]
    id = client.workflows.trigger(slug)["execution_id"]
    assert client.workflows.send_event(id, "approval", {"approved": True})["accepted"]
    assert client.workflows.wait(id, timeout=60)["output"] == {"approved": True}
    id = client.workflows.trigger(slug)["execution_id"]
    assert client.workflows.cancel(id)["status"] == "cancelled"
    assert client.workflows.execution(id)["status"] == "cancelled"
    again = client.workflows.redrive(id)
    assert again["redriven_from"] == id
    client.workflows.send_event(again["execution_id"], "approval", 7)
    assert client.workflows.wait(again["execution_id"], timeout=60)["output"] == 7


def test_workflow_run_raises_the_failure(client: Orrery) -> None:
    slug = client.workflows.push(unique("Fail"), definition("{{inputs.missing}}"))["slug"]
    with pytest.raises(ExecutionFailed) as failure:
        client.workflows.run(slug, {})
    assert failure.value.execution["error"] == "ReferenceError"


def test_file_upload_download_delete(client: Orrery, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(b"some bytes")
    for content in (b"some bytes", io.BytesIO(b"some bytes"), str(source), source):
        file = client.files.upload(content, content_type="text/plain", expires_in_seconds=3600)
        assert (file["size"], file["content_type"]) == (10, "text/plain")
        assert client.files.download(file["id"]) == client.files.download(file["url"]) == b"some bytes"
    assert client.files.get(file["id"])["filename"] == "a.txt"
    assert client.files.download(file["id"], to=tmp_path / "b.txt") == b""
    assert (tmp_path / "b.txt").read_bytes() == b"some bytes"
    client.files.delete(file["id"])
    client.files.delete(file["id"])
    with pytest.raises(ApiError) as error:
        client.files.download(file["id"])
    assert error.value.status == 404


def test_request_reaches_every_route(client: Orrery) -> None:
    assert "queued" in client.request("GET", "/v1/limits")


def test_asynchronous_client_has_the_same_methods(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncOrrery(URL, KEY) as client:
            both = await asyncio.gather(*[client.predictions.run("text-template", HELLO) for _ in range(2)])
            assert [one["output"] for one in both] == ["Hello Ada!"] * 2
            slug = (await client.workflows.push(unique("Async"), definition()))["slug"]
            id = (await client.workflows.trigger(slug, {"name": "Ada"}))["execution_id"]
            assert [event.type async for event in client.workflows.follow(id)][-1] == "end"
            assert (await client.workflows.wait(id))["output"] == "hello Ada"
            file = await client.files.upload(b"x")
            await client.files.download(file["id"], to=tmp_path / "x")
            assert (tmp_path / "x").read_bytes() == b"x"
            with pytest.raises(WaitTimeout):
                id = (await client.predictions.create("slow", {}))["predictionID"]
                await client.predictions.wait(id, timeout=0)
            await client.predictions.cancel(id)

    asyncio.run(main())
