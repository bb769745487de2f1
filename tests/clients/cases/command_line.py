"""curl over HTTP/1.1 and HTTP/2, jq, and the programs' own command line, as the documentation uses them."""

import json
import os
import subprocess
import tempfile

from case import AUTHORITY, BASE, KEY, SECURE, SECURE_KEY, WORKFLOWS, case, equal, holds, run

BODY = '{"model":"text-language","version":"0.0.1","input":{"text":"What a beautiful night it is!"}}'
REFUSED = '{"error":"Invalid or missing API key"}'
ORRERY = [os.environ["ORRERY_TEST_PROGRAM"], "--config", os.environ["ORRERY_TEST_CONFIG"]]
VERSIONS = ("--http1.1", "--http2")


def curl(version, *arguments):
    done = subprocess.run(
        ["curl", "-sS", version, "--cacert", AUTHORITY, "-w", "\n%{http_version} %{http_code}", *arguments],
        capture_output=True, timeout=60, text=True,
    )
    equal(done.stderr, "")
    body, _, last = done.stdout.rpartition("\n")
    http, status = last.split()
    equal(http, "2" if version == "--http2" else "1.1")
    return int(status), body.strip()


@case
def curl_prediction():
    for version in VERSIONS:
        status, body = curl(version, f"{SECURE}/v1/prediction/run", "-H", f"X-API-Key: {SECURE_KEY}", "-d", BODY)
        equal((status, json.loads(body)["status"]), (200, "success"))


@case
def curl_refusals():
    key = ("-H", f"X-API-Key: {SECURE_KEY}")
    with tempfile.NamedTemporaryFile() as large:
        large.write(b" " * (9 << 20))
        large.flush()
        for version in VERSIONS:
            for _ in range(6):
                equal(curl(version, f"{SECURE}/v1/prediction/", "-d", "{}"), (401, REFUSED))
                equal(curl(version, f"{SECURE}/v1/nothing", *key, "-d", "{}")[0], 404)
                equal(curl(version, f"{SECURE}/v1/prediction/run", *key, "-X", "PUT", "-d", "{}")[0], 405)
                status, body = curl(version, f"{SECURE}/v1/prediction/", *key, "--data-binary", f"@{large.name}")
                equal(status, 413)
                holds(json.loads(body)["error"], body)


@case
def curl_upload():
    for version in VERSIONS:
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            file.write(b"hello" * 100_000)
            file.flush()
            status, body = curl(version, f"{SECURE}/v1/files", "-H", f"X-API-Key: {SECURE_KEY}", "-F", f"file=@{file.name}")
            holds(status in (200, 201), body)
            equal(curl(version, json.loads(body)["url"]), (200, "hello" * 100_000))


@case
def curl_stream():
    body = '{"model":"vendor/far","stream":true,"messages":[{"role":"user","content":"hello there"}]}'
    done = subprocess.run(
        ["curl", "-sSN", f"{BASE}/v1/chat/completions", "-H", f"Authorization: Bearer {KEY}", "-d", body],
        capture_output=True, timeout=60, text=True,
    )
    holds(done.stdout.rstrip().endswith("data: [DONE]"), done.stdout[-200:])


@case
def curl_and_jq():
    script = f"""
        set -euo pipefail
        curl -sSf '{BASE}/v1/models?name=text' | jq -er '.[].slug' | grep -x text-language
        ID=$(curl -sSf {BASE}/v1/prediction/ -H 'X-API-Key: {KEY}' -d '{BODY}' | jq -er .predictionID)
        curl -sSf "{BASE}/v1/prediction/$ID?wait=10" -H 'X-API-Key: {KEY}' | jq -e '.status == "success"'
        curl -sSf {BASE}/openapi.json | jq -e '.info.version == "1.0.0"'
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, text=True)
    equal((done.returncode, done.stderr), (0, ""))


@case
def event_of_curls_type():
    # Without `-H`, curl declares a body to be a form. An approval in JSON is treated as JSON nevertheless.
    wait = {"step_id": "ask", "type": "wait", "event": {"name": "approval", "timeout_seconds": 60}}
    body = {"name": "Asked", "description": "x", "definition": {"steps": [wait]}}
    key = ("-H", f"X-API-Key: {KEY}")
    made = json.loads(curl("--http1.1", f"{WORKFLOWS}/api/v1/workflows", *key, "-d", json.dumps(body))[1])
    made = json.loads(curl("--http1.1", f"{WORKFLOWS}/api/v1/{made['slug']}/trigger", *key, "-d", "{}")[1])
    execution = f"{WORKFLOWS}/api/v1/executions/{made['execution_id']}"
    status, body = curl("--http1.1", f"{execution}/events/approval", *key, "-d", '{"payload":{"approved":true}}')
    equal(status, 202)
    done = json.loads(curl("--http1.1", f"{execution}?timeout=10", *key)[1])
    holds('{"approved": true}' in json.dumps(done), done)


@case
def own_command_line():
    for arguments in (["model", "list"], ["key", "list"], ["doctor"]):
        done = subprocess.run([*ORRERY, *arguments], capture_output=True, timeout=60, text=True)
        holds(done.returncode == 0 or arguments == ["doctor"], done.stderr)
        holds(done.stdout, arguments)


run()
