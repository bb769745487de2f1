"""Collects and runs the cases of one client, and prints one JSON object per case: its name, and the error or null."""

import asyncio
import inspect
import json
import os
import traceback

BASE, WORKFLOWS, FLOWS, AGENT = (os.environ[f"ORRERY_TEST_{host}"] for host in ("BASE", "WORKFLOWS", "FLOWS", "AGENT"))
SECURE, AUTHORITY = os.environ["ORRERY_TEST_SECURE"], os.environ["ORRERY_TEST_AUTHORITY"]
OLLAMA = os.environ["ORRERY_TEST_OLLAMA"]
KEY, SECURE_KEY = os.environ["ORRERY_TEST_KEY"], os.environ["ORRERY_TEST_SECURE_KEY"]
WRONG_KEY = "smk_wrong"
# A model of the upstream, a model on a server with a manifest, a local model, and one for embeddings.
FAR, NEAR, TINY, VECTORS = "vendor/far", "near", "tiny", "vectors"
# Models for audio and images on a server with manifests.
EARS, VOICE, BRUSH = "ears", "voice", "brush"
# The fake upstream's tool arguments and structured answers: see `value` in `upstream.py`.
TEXT, NUMBER = "Rome", 3
# Options for the random model. Without a seed, it might reach `max_tokens` before a call or an object is complete.
SEED = 2

_cases = []


def case(function):
    _cases.append(function)
    return function


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def holds(condition, context):
    assert condition, f"unexpected: {context!r}"


def run():
    for function in _cases:
        error = None
        try:
            outcome = function()
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        except Exception as caught:
            place = traceback.extract_tb(caught.__traceback__)
            own = [frame for frame in place if "/cases/" in frame.filename and not frame.filename.endswith("/case.py")]
            line = own[-1].lineno if own else 0
            error = f"line {line}: {type(caught).__name__}: {' '.join(str(caught).split())[:400]}"
        # A client may have written to standard output without ending the line.
        print("\n" + json.dumps({"case": function.__name__, "error": error}), flush=True)
