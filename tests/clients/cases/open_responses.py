"""The requests of the compliance suite of Open Responses, with the types of its specification."""

import json
from typing import get_args

import openresponses_types.types as types
import requests
from case import BASE, FAR, KEY, case, equal, holds, run

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


def kind_of(event):
    """The value of an event's `type`."""
    kind = event.model_fields["type"].annotation
    return (get_args(kind) or [kind])[0] if isinstance(kind, str) else next(iter(kind)).value


EVENTS = {kind_of(event): event for name, event in vars(types).items() if name.endswith("StreamingEvent")}


def message(role, content):
    return {"type": "message", "role": role, "content": content}


def ask(given, **more):
    body = {"model": FAR, "input": given, **more}
    answer = requests.post(f"{BASE}/v1/responses", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    equal((answer.status_code, "" if answer.ok else answer.text), (200, ""))
    return answer


def respond(given, **more):
    """A response that matches the specification."""
    response = types.ResponseResource.model_validate(ask(given, **more).json())
    equal((response.status, response.error), ("completed", None))
    holds(response.output, response)
    return response


def text_of(response):
    return response.output[0].content[0].text


@case
def basic_text():
    response = respond([message("user", "Say hello in exactly 3 words.")])
    equal(text_of(response), "You said: Say hello in exactly 3 words.")


@case
def streaming():
    answer = ask([message("user", "Count from 1 to 5.")], stream=True)
    holds(answer.headers["content-type"].startswith("text/event-stream"), answer.headers)
    numbers, kinds = [], []
    for text in answer.text.split("\n\n")[:-1]:
        name, data = text.split("\n", 1)
        data = json.loads(data.removeprefix("data: "))
        equal(name, f"event: {data['type']}")
        EVENTS[data["type"]].model_validate(data)
        numbers.append(data["sequence_number"])
        kinds.append(data["type"])
    equal(numbers, list(range(len(numbers))))
    equal((kinds[0], kinds[-1]), ("response.created", "response.completed"))
    holds("response.output_text.delta" in kinds, kinds)
    equal(data["response"]["output"][0]["content"][0]["text"], "You said: Count from 1 to 5.")


@case
def system_prompt():
    given = [message("system", "You are a pirate."), message("user", "Say hello.")]
    equal(text_of(respond(given)), "You said: Say hello.")


@case
def tool_calling():
    response = respond([message("user", "What's the weather in Rome?")], tools=[WEATHER])
    call = response.output[0]
    equal((call.type, call.name, json.loads(call.arguments)), ("function_call", "get_weather", {"location": "Rome"}))


@case
def tool_calling_in_a_stream():
    answer = ask([message("user", "What's the weather in Rome?")], tools=[WEATHER], stream=True)
    data = [json.loads(text.split("data: ", 1)[1]) for text in answer.text.split("\n\n")[:-1]]
    for event in data:
        EVENTS[event["type"]].model_validate(event)
    equal(data[-1]["response"]["output"][0]["name"], "get_weather")


@case
def image_input():
    content = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PIXEL}]
    equal(text_of(respond([message("user", content)])), "You said: What is this?")


@case
def multi_turn():
    turns = [message("user", "My name is Alice."), message("assistant", "Hello Alice!"), message("user", "What is my name?")]
    equal(text_of(respond(turns)), "You said: What is my name?")


run()
