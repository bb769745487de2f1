"""openai of PyPI: the Responses API, whole and streamed, with tools, schemas, stored and background responses."""

import time

import openai
from case import BASE, FAR, KEY, NEAR, NUMBER, TEXT, case, equal, holds, run
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "weather", "description": "Weather of a city", "parameters": WEATHER, "strict": True}]


class City(BaseModel):
    name: str
    people: int


@case
def create():
    for model in (FAR, NEAR):
        said = client.responses.create(model=model, input="hello there")
        equal(said.output_text, "You said: hello there")
        equal((said.status, said.usage.total_tokens), ("completed", 12))


@case
def stream():
    events = list(client.responses.create(model=FAR, input="think again", stream=True))
    equal([event.sequence_number for event in events], list(range(len(events))))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), "You said: think again")
    reasoning = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    equal("".join(reasoning), "hm, hm")
    equal(events[-1].response.output_text, "You said: think again")


@case
def stream_manager():
    with client.responses.stream(model=FAR, input="hello there") as stream:
        for _ in stream:
            pass
        equal(stream.get_final_response().output_text, "You said: hello there")


@case
def tools():
    items = [{"role": "user", "content": "how is it?"}]
    said = client.responses.create(model=FAR, input=items, tools=TOOLS)
    call = said.output[0]
    equal((call.type, call.name, call.arguments), ("function_call", "weather", '{"city": "Rome"}'))
    items += [item.model_dump() for item in said.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    equal(client.responses.create(model=FAR, input=items, tools=TOOLS).output_text, "done: sunny")


@case
def parse():
    said = client.responses.parse(model=FAR, input="a city", text_format=City)
    equal(said.output_parsed, City(name=TEXT, people=NUMBER))
    with client.responses.stream(model=FAR, input="a city", text_format=City) as stream:
        for _ in stream:
            pass
        equal(stream.get_final_response().output_parsed, City(name=TEXT, people=NUMBER))


@case
def stored():
    said = client.responses.create(model=FAR, input="hello there", metadata={"a": "b"})
    equal(client.responses.retrieve(said.id).model_dump(), said.model_dump())
    items = client.responses.input_items.list(said.id)
    equal([item.content[0].text for item in items], ["hello there"])
    again = list(client.responses.retrieve(said.id, stream=True))
    equal(again[-1].response.output_text, said.output_text)
    client.responses.delete(said.id)
    try:
        client.responses.retrieve(said.id)
        raise AssertionError("it is still there")
    except openai.NotFoundError as error:
        holds("no stored response" in error.message, error.message)


@case
def previous():
    first = client.responses.create(model=FAR, input="how is it?", tools=TOOLS)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
    said = client.responses.create(model=FAR, input=[output], previous_response_id=first.id)
    equal(said.output_text, "done: sunny")


@case
def background():
    said = client.responses.create(model=FAR, input="hello there", background=True)
    equal(said.status, "queued")
    deadline = time.monotonic() + 60
    while said.status in ("queued", "in_progress"):
        holds(time.monotonic() < deadline, said.status)
        time.sleep(0.1)
        said = client.responses.retrieve(said.id)
    equal((said.status, said.output_text), ("completed", "You said: hello there"))
    equal(client.responses.cancel(said.id).status, "completed")
    events = list(client.responses.create(model=FAR, input="hello there", background=True, stream=True))
    equal(events[-1].response.output_text, "You said: hello there")
    rest = list(client.responses.retrieve(events[-1].response.id, stream=True, starting_after=events[2].sequence_number))
    equal([event.sequence_number for event in rest], [event.sequence_number for event in events[3:]])


@case
def errors():
    for refused in ({"tools": [{"type": "web_search"}]}, {"input": []}):
        try:
            client.responses.create(**({"model": FAR, "input": "hi"} | refused))
            raise AssertionError("it was accepted")
        except openai.BadRequestError as error:
            equal(error.type, "invalid_request_error")


run()
