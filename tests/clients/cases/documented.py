"""Requests in the form of the vendor's documentation: predictions, workflows on each host, their definitions."""

import time

import requests
from case import BASE, FLOWS, KEY, WORKFLOWS, case, equal, holds, run

session = requests.Session()
session.headers.update({"X-API-Key": KEY, "Content-Type": "application/json"})
MODEL = {"step_id": "step1", "type": "model", "model": "text-language", "params": {"text": "{{inputs.text}}"}}
SCHEMA = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
TEXT = {"text": "What a beautiful night it is!"}


def definition(*steps):
    return {"version": "v1", "input_schema": SCHEMA, "steps": list(steps)}


def finished(url):
    for _ in range(500):
        got = session.get(url).json()
        if got["status"] in ("completed", "failed", "cancelled", "success", "error"):
            return got
        time.sleep(0.02)
    raise AssertionError(f"not finished: {got}")


def created(answer):
    holds(answer.status_code in (200, 201), answer.text)
    return answer.json()


@case
def prediction():
    body = {"model": "text-language", "version": "0.0.1", "input": TEXT, "webhook_url": ""}
    made = created(session.post(f"{BASE}/v1/prediction/", json=body))
    equal(set(made) - {"warnings"}, {"status", "message", "predictionID"})
    equal(finished(f"{BASE}/v1/prediction/{made['predictionID']}")["status"], "success")


@case
def models():
    holds(any(model["slug"] == "text-language" for model in session.get(f"{BASE}/v1/models?limit=100").json()), "list")
    equal(session.get(f"{BASE}/v1/model?slug=text-language").json()["version"], "0.0.1")


@case
def workflow():
    body = {"name": "Documented", "description": "x", "definition": definition(MODEL)}
    for host in (f"{WORKFLOWS}/api/v1", f"{BASE}/v1"):
        made = created(session.post(f"{host}/workflows", json=body))
        below = "/workflows" if host.startswith(BASE) else ""
        started = session.post(f"{host}{below}/{made['slug']}/trigger", json={"inputs": TEXT})
        holds(started.ok, started.text)
        done = finished(f"{WORKFLOWS}/api/v1/executions/{started.json()['execution_id']}")
        equal(done["status"], "completed")


@case
def workflow_without_description():
    made = created(session.post(f"{BASE}/v1/workflows", json={"name": "Plain", "definition": definition(MODEL)}))
    answer = session.put(f"{BASE}/v1/workflows/{made['slug']}/versions/v2", json={"definition": definition(MODEL)})
    holds(answer.ok, answer.text)


@case
def definitions():
    choice = {
        "step_id": "choose", "type": "choice",
        "condition": {"expression": "{{inputs.text}}", "operator": "string_matches", "value": "What*"},
        "condition_met_branch": {"steps": [{"step_id": "yes", "type": "pass", "result": 1}]},
        "default_branch": {"steps": [{"step_id": "no", "type": "pass", "result": 0}]},
    }
    http = {"step_id": "call", "type": "http", "method": "GET", "url": "https://example.com/", "timeout": 30}
    for number, step in enumerate([{**MODEL, "version": "0.0.1"}, choice, http]):
        body = {"name": f"Definition {number}", "description": "x", "definition": definition(step)}
        created(session.post(f"{WORKFLOWS}/api/v1/workflows", json=body))


@case
def older_host():
    body = {
        "name": "Older", "description": "x", "inputs": [{"name": "text", "type": "text", "default_value": "Hello"}],
        "outputs": [], "steps": [{"id": "s1", "name": "s", "type": "1019Model", "model_slug": "text-language",
                                  "model_version": "0.0.1", "params": {"text": "{{text}}"}}],
        "nodes_json": "[]", "edges_json": "[]",
    }
    made = created(session.post(f"{FLOWS}/api/v1/", json=body))
    equal(session.get(f"{FLOWS}/api/v1/{made['workflow_id']}").json()["name"], "Older")
    started = session.post(f"{FLOWS}/api/v1/{made['workflow_id']}/trigger", json={"parameters": {"text": "Hello"}})
    holds(started.ok and started.json()["trigger_id"], started.text)
    holds(session.get(f"{FLOWS}/api/v1/").json()["total"] > 0, "list")


@case
def paging():
    for number in range(12):
        created(session.post(f"{WORKFLOWS}/api/v1/workflows", json={"name": f"Page {number}", "description": "x", "definition": definition(MODEL)}))
    seen, offset = [], 0
    for _ in range(50):
        page = session.get(f"{WORKFLOWS}/api/v1/workflows?limit=5&offset={offset}").json()
        seen += [workflow["slug"] for workflow in page["workflows"]]
        if len(page["workflows"]) < 5:
            break
        offset = page["offset"]
    else:
        raise AssertionError("the list has no end")
    equal(len(seen), len(set(seen)))


run()
