"""The requests that Open WebUI sends to a connection for OpenAI's API: with aiohttp for chats, images and speech, and
with requests for transcriptions and embeddings."""

import base64
import json

import aiohttp
import requests
from case import BASE, BRUSH, EARS, FAR, KEY, NEAR, TEXT, TINY, VECTORS, VOICE, WRONG_KEY, case, equal, holds, run

URL = f"{BASE}/v1"
USER = {
    "X-OpenWebUI-User-Name": "Ann%20Example", "X-OpenWebUI-User-Id": "d3b0", "X-OpenWebUI-User-Email": "ann@example.org",
    "X-OpenWebUI-User-Role": "admin", "X-OpenWebUI-Chat-Id": "5f1c",
}
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"} | USER
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": WEATHER}}]
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def hello(content="hello there"):
    return [{"role": "system", "content": "Be nice."}, {"role": "user", "content": content}]


async def get(path, headers=HEADERS):
    async with aiohttp.ClientSession() as session, session.get(f"{URL}{path}", headers=headers) as answer:
        return answer.status, await answer.json()


async def post(path, **body):
    """The status, type and content of an answer."""
    async with aiohttp.ClientSession() as session, session.post(f"{URL}{path}", data=json.dumps(body), headers=HEADERS) as answer:
        return answer.status, answer.content_type, await answer.read()


async def complete(**body):
    status, kind, content = await post("/chat/completions", stream=False, **body)
    equal((status, kind), (200, "application/json"))
    return json.loads(content)["choices"][0]["message"]


async def chunks(**body):
    """The chunks of a streamed answer, which ends with [DONE]."""
    status, kind, content = await post("/chat/completions", stream=True, stream_options={"include_usage": True}, **body)
    equal((status, kind), (200, "text/event-stream"))
    lines = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: ")]
    equal(lines.pop(), "[DONE]")
    return [json.loads(line) for line in lines]


def joined(events):
    """The text and the tool calls of a streamed answer. As in Open WebUI, the calls keep their `index`."""
    text, calls = "", []
    for delta in (event["choices"][0]["delta"] for event in events if event["choices"]):
        text += delta.get("content") or ""
        for part in delta.get("tool_calls") or []:
            if part["index"] == len(calls):
                calls.append(part)
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return text, calls


@case
async def models():
    status, listed = await get("/models")
    equal((status, listed["object"]), (200, "list"))
    holds({FAR, NEAR, TINY, VECTORS} <= {model["id"] for model in listed["data"]}, listed)
    status, refused = await get("/models", HEADERS | {"Authorization": f"Bearer {WRONG_KEY}"})
    equal(status, 401)
    holds(refused, "a reason")


@case
async def chat_stream():
    for model in (FAR, NEAR):
        events = await chunks(model=model, messages=hello(), temperature=0.7, max_tokens=64, user="d3b0")
        equal(joined(events), ("You said: hello there", []))
        equal(events[-1]["usage"]["total_tokens"], 12)


@case
async def chat_with_image():
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    equal(joined(await chunks(model=FAR, messages=hello(parts)))[0], "You said: what is this?")


@case
async def tool_calls():
    for model in (FAR, NEAR):
        messages = hello("how is it?")
        text, calls = joined(await chunks(model=model, messages=messages, tools=TOOLS))
        equal([(call["index"], json.loads(call["function"]["arguments"])) for call in calls], [(0, {"city": TEXT})])
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"})
        equal(joined(await chunks(model=model, messages=messages, tools=TOOLS))[0], "done: sunny")


@case
async def title():
    task = [{"role": "user", "content": "### Task:\nGenerate a concise title."}]
    for limit in ("max_tokens", "max_completion_tokens"):
        said = await complete(model=FAR, messages=task, **{limit: 1000})
        equal(said["content"], f"You said: {task[0]['content']}")


@case
async def errors():
    for path, body, expected in (
        ("/chat/completions", {"model": FAR, "messages": hello("fail with 429")}, 429),
        ("/chat/completions", {"model": FAR, "messages": []}, 400),
        ("/audio/speech", {"model": NEAR, "input": "Hello", "voice": "alloy"}, 400),
    ):
        status, _, content = await post(path, **body)
        equal(status, expected)
        holds(json.loads(content)["error"]["message"], content)


@case
def embeddings():
    body = {"input": ["search_document: a", "search_document: b"], "model": VECTORS}
    answer = requests.post(f"{URL}/embeddings", headers=HEADERS, json=body, timeout=60)
    equal([item["embedding"] for item in answer.json()["data"]], [[0.5, 0.25]] * 2)


@case
def transcriptions():
    bearer = {"Authorization": f"Bearer {KEY}"}
    for model in (FAR, EARS):
        for more in ({}, {"language": "en"}):
            file, data = {"file": ("7c9e.wav", b"x" * 1000)}, {"model": model, **more}
            answer = requests.post(f"{URL}/audio/transcriptions", headers=bearer, files=file, data=data, timeout=60)
            equal((answer.status_code, answer.json()["text"]), (200, "transcriptions of 7c9e.wav:1000"))


@case
async def speech():
    for model in (FAR, VOICE):
        status, kind, content = await post("/audio/speech", model=model, input="Hello", voice="alloy")
        equal((status, kind, content), (200, "audio/mpeg", b"ID3Hello"))
    # Open WebUI asks every server but OpenAI's for these lists, without a key, and has its own if that fails.
    for path in ("/audio/models", "/audio/voices"):
        status, answer = await get(path, {})
        holds(status in (401, 404), answer)


@case
async def images():
    for model in (FAR, BRUSH):
        status, _, content = await post(
            "/images/generations", model=model, prompt="a cat", n=1, size="512x512", response_format="b64_json"
        )
        equal((status, base64.b64decode(json.loads(content)["data"][0]["b64_json"])), (200, b"a cat"))


run()
