"""anthropic of PyPI: messages, streams, tools, reasoning, schemas, token counts, models and errors."""

import anthropic
from case import BASE, FAR, KEY, NEAR, NUMBER, TEXT, TINY, VECTORS, WRONG_KEY, case, equal, holds, run
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "hello there"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "Weather of a city", "input_schema": WEATHER}]


class City(BaseModel):
    name: str
    people: int


@case
def messages():
    for model in (FAR, NEAR, "claude-opus-9"):
        said = client.messages.create(model=model, max_tokens=64, system="Be nice.", messages=HELLO)
        equal((said.model, said.role, said.stop_reason), (model, "assistant", "end_turn"))
        equal(said.content[0].text, "You said: hello there")
        equal((said.usage.input_tokens, said.usage.output_tokens), (5, 7))
        holds(said._request_id, said)


@case
def stream():
    for model in (FAR, NEAR):
        with client.messages.stream(model=model, max_tokens=64, messages=HELLO) as stream:
            equal("".join(stream.text_stream), "You said: hello there")
            said = stream.get_final_message()
        equal((said.stop_reason, said.usage.input_tokens, said.usage.output_tokens), ("end_turn", 5, 7))


@case
def tools():
    for model in (FAR, NEAR):
        said = client.messages.create(model=model, max_tokens=64, messages=HELLO, tools=TOOLS)
        equal(said.stop_reason, "tool_use")
        call = said.content[0]
        equal((call.name, call.input), ("weather", {"city": "Rome"}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
        messages = [*HELLO, {"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
        said = client.messages.create(model=model, max_tokens=64, messages=messages, tools=TOOLS)
        equal(said.content[0].text, "done: sunny")


@case
def tools_in_stream():
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    with client.messages.stream(model=FAR, max_tokens=64, messages=HELLO, tools=TOOLS, tool_choice=choice) as stream:
        said = stream.get_final_message()
    equal((said.stop_reason, said.content[0].input), ("tool_use", {"city": "Rome"}))


@case
def thinking():
    options = {"model": FAR, "max_tokens": 2048, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    think = [{"role": "user", "content": "think about it"}]
    said = client.messages.create(messages=think, **options)
    equal([block.type for block in said.content], ["thinking", "text"])
    equal(said.content[0].thinking, "hm, hm")
    with client.messages.stream(messages=think, **options) as stream:
        streamed = stream.get_final_message()
    equal((streamed.content[0].thinking, streamed.content[0].signature), ("hm, hm", said.content[0].signature))
    again = [*think, {"role": "assistant", "content": said.content}, *HELLO]
    equal(client.messages.create(messages=again, **options).content[-1].text, "You said: hello there")
    silent = client.messages.create(model=FAR, max_tokens=64, messages=think)
    equal([block.type for block in silent.content], ["text"])


@case
def parse():
    said = client.messages.parse(model=FAR, max_tokens=64, messages=HELLO, output_format=City)
    equal(said.parsed_output, City(name=TEXT, people=NUMBER))


@case
def local():
    said = client.messages.create(model=TINY, max_tokens=8, messages=HELLO)
    holds(said.usage.output_tokens <= 8 and said.stop_reason, said)
    with client.messages.stream(model=TINY, max_tokens=8, messages=HELLO) as stream:
        holds(stream.get_final_message().usage.output_tokens <= 8, stream)


@case
def count_tokens():
    for model in (FAR, NEAR, TINY, "claude-opus-9", "orrery/beta"):
        counted = client.messages.count_tokens(model=model, messages=HELLO, tools=TOOLS)
        holds(counted.input_tokens > 0, counted)


@case
def models():
    ids = {model.id for model in client.models.list(limit=1)}
    holds({NEAR, TINY, FAR} <= ids and VECTORS not in ids, ids)
    equal(client.models.retrieve(NEAR).display_name, NEAR)


@case
def bearer():
    by_token = anthropic.Anthropic(base_url=BASE, api_key=None, auth_token=KEY, max_retries=0)
    equal(by_token.messages.create(model=FAR, max_tokens=64, messages=HELLO).stop_reason, "end_turn")
    holds(list(by_token.models.list()), "no models")


@case
def errors():
    def create(model=FAR, messages=HELLO, by=client, **more):
        return lambda: by.messages.create(model=model, max_tokens=64, messages=messages, **more)

    fail = [{"role": "user", "content": "fail with 429"}]
    web_search = [{"type": "web_search_20250305", "name": "web_search"}]
    for attempt, expected in (
        (create(by=client.with_options(api_key=WRONG_KEY)), anthropic.AuthenticationError),
        (create(messages=[]), anthropic.BadRequestError),
        (create(tools=web_search), anthropic.BadRequestError),
        (create(model=VECTORS), anthropic.BadRequestError),
        (lambda: client.models.retrieve("nobody"), anthropic.NotFoundError),
        (create(messages=fail), anthropic.RateLimitError),
    ):
        try:
            attempt()
        except expected as error:
            equal(error.body["type"], "error")
            holds(error.body["error"]["message"] and error.request_id, error)
        else:
            raise AssertionError(f"{expected.__name__} was expected")


@case
async def at_once():
    import asyncio

    many = anthropic.AsyncAnthropic(base_url=BASE, api_key=KEY, max_retries=0)
    calls = [many.messages.create(model=FAR, max_tokens=64, messages=HELLO) for _ in range(10)]
    for said in await asyncio.gather(*calls):
        equal(said.content[0].text, "You said: hello there")


run()
