"""A worker in a process of its own, called by a real service."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Iterator

import pytest
from orrery_client import ApiError, Orrery, PredictionFailed

MODELS = Path(os.environ["ORRERY_TEST_MODELS"])
PATIENCE_S = 60
PROGRAM = '''
import os, sys, time
from orrery_client.worker import Context, File, InvalidInput, Unavailable, model, serve

@model
def kit_shout(text: str, times: int = 1) -> str:
    return " ".join([text.upper()] * times)

@model
def kit_fails(how: str) -> dict:
    if how == "input": raise InvalidInput("no such thing")
    if how == "busy": raise Unavailable("no memory")
    raise KeyError(how)

@model
def kit_dot() -> bytes:
    return File(b"dot", "image/png")

@model
def kit_waits(context: Context, note: str, seconds: float = 600.0) -> str:
    open(note, "w").write(context.idempotency_key)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if context.is_cancelled():
            open(note + ".cancelled", "w").close()
            return "nobody hears this"
        time.sleep(0.02)
    return "done"

serve(port=int(os.environ["PORT"]))
'''


def until(condition: "callable[[], bool]") -> None:  # type: ignore[valid-type]
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[misc]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[subprocess.Popen[bytes]]":
    program = tmp_path_factory.mktemp("worker") / "kit.py"
    program.write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {**os.environ, "PORT": str(port)}
    process = subprocess.Popen([sys.executable, str(program)], env=environment, stderr=subprocess.DEVNULL)
    names = ("kit-shout", "kit-fails", "kit-dot", "kit-waits")
    for name in names:
        command = [sys.executable, str(program), "--manifest", name]
        (MODELS / f"{name}.toml").write_bytes(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)

    def is_up() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
        except OSError:
            return False

    until(is_up)
    yield process
    for name in names:
        (MODELS / f"{name}.toml").unlink()
    process.kill()
    process.wait()


def known(client: Orrery, slug: str) -> bool:
    try:
        return bool(client.models.get(slug))
    except ApiError:
        return False


def test_functions_are_models(client: Orrery, worker: object, tmp_path: Path) -> None:
    for name in ("kit-shout", "kit-fails", "kit-dot", "kit-waits"):
        until(lambda: known(client, name))
    assert client.predictions.run("kit-shout", {"text": "a", "times": 2})["output"] == "A A"
    assert client.predictions.run("kit-shout", {"text": "ü"})["output"] == "Ü"
    with pytest.raises(ApiError) as error:
        client.predictions.create("kit-shout", {"text": "a", "times": "two"})
    assert error.value.status == 400
    for how, classification, text in [
        ("input", "invalid_user_input", "no such thing"),
        ("busy", "provider_unavailable", "no memory"),
        ("else", "provider_error", "KeyError"),
    ]:
        with pytest.raises(PredictionFailed) as failure:
            client.predictions.run("kit-fails", {"how": how})
        prediction = failure.value.prediction
        assert prediction["error_classification"] == classification, prediction
        assert text in str(prediction["error"])
    assert client.files.download(client.predictions.run("kit-dot", {})["output"]) == b"dot"
    note = tmp_path / "note"
    assert client.predictions.run("kit-waits", {"note": str(note), "seconds": 0})["output"] == "done"
    assert note.read_text().endswith(":prediction:1")


def test_cancelled_runs_are_told_and_a_stop_waits_for_the_others(
    client: Orrery, worker: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    note = tmp_path / "note"
    id = client.predictions.create("kit-waits", {"note": str(note)})["predictionID"]
    until(note.exists)
    client.predictions.cancel(id)
    until(Path(f"{note}.cancelled").exists)
    last = tmp_path / "last"
    id = client.predictions.create("kit-waits", {"note": str(last), "seconds": 1})["predictionID"]
    until(last.exists)
    worker.send_signal(signal.SIGTERM)
    assert client.predictions.wait(id)["output"] == "done"
    assert worker.wait(PATIENCE_S) == 0
