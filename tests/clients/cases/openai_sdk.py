"""openai of PyPI: chat, streams, tools, schemas, embeddings and the list of models."""

import openai
from case import AGENT, BASE, FAR, KEY, NEAR, NUMBER, SEED, TEXT, TINY, VECTORS, WRONG_KEY, case, equal, holds, run
from common import Nested
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "hello there"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": WEATHER}}]


class Place(BaseModel):
    country: str
    people: int


class City(BaseModel):
    name: str
    place: Place


@case
def chat():
    for model in (FAR, NEAR):
        said = client.chat.completions.create(model=model, messages=HELLO)
        equal(said.choices[0].message.content, "You said: hello there")
        equal(said.usage.total_tokens, 12)


@case
def stream():
    for model in (FAR, NEAR):
        options = {"include_usage": True}
        chunks = list(client.chat.completions.create(model=model, messages=HELLO, stream=True, stream_options=options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        equal(text, "You said: hello there")
        equal(chunks[-1].usage.total_tokens, 12)


@case
def stream_manager():
    with client.chat.completions.stream(model=FAR, messages=HELLO) as stream:
        for _ in stream:
            pass
        equal(stream.get_final_completion().choices[0].message.content, "You said: hello there")


@case
def tools():
    for model in (FAR, NEAR):
        said = client.chat.completions.create(model=model, messages=HELLO, tools=TOOLS).choices[0]
        equal(said.finish_reason, "tool_calls")
        call = said.message.tool_calls[0]
        equal((call.function.name, call.function.arguments), ("weather", '{"city": "Rome"}'))
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        messages = [*HELLO, said.message.model_dump(), result]
        said = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        equal(said.choices[0].message.content, "done: sunny")


@case
def parse():
    said = client.chat.completions.parse(model=FAR, messages=HELLO, response_format=City)
    equal(said.choices[0].message.parsed, City(name=TEXT, place=Place(country=TEXT, people=NUMBER)))


@case
def pydantic_tools():
    tool = openai.pydantic_function_tool(City)
    said = client.chat.completions.parse(model=FAR, messages=HELLO, tools=[tool])
    equal(said.choices[0].message.tool_calls[0].function.parsed_arguments.place.people, NUMBER)


@case
def embeddings():
    for model in (FAR, VECTORS):
        vectors = client.embeddings.create(model=model, input=["a", "b"])
        equal([vector.embedding for vector in vectors.data], [[0.5, 0.25]] * 2)


@case
def models():
    ids = {model.id for model in client.models.list()}
    holds({NEAR, TINY, VECTORS} <= ids, ids)
    equal(client.models.retrieve(NEAR).id, NEAR)


@case
def local_chat():
    said = client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=8)
    holds(said.usage.completion_tokens <= 8, said.usage)
    chunks = client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=8, stream=True)
    holds(len(list(chunks)) > 1, "an empty stream")


@case
def local_parse():
    said = client.chat.completions.parse(model=TINY, messages=HELLO, response_format=Nested, max_tokens=200, seed=SEED)
    holds(said.choices[0].message.parsed.part.kind in ("yes", "no"), said)


@case
def local_tools():
    tool = openai.pydantic_function_tool(Nested)
    one = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "seed": SEED}
    said = client.chat.completions.parse(model=TINY, messages=HELLO, tools=[tool], **one)
    message = said.choices[0].message
    holds(message.tool_calls[0].function.parsed_arguments.part.kind in ("yes", "no"), said)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [*HELLO, message.model_dump(), result]
    said = client.chat.completions.create(model=TINY, messages=messages, tools=[tool], max_tokens=8)
    holds(said.usage.prompt_tokens > 0, said)


@case
def errors():
    wrong = client.with_options(api_key=WRONG_KEY)
    for attempt, expected in (
        (lambda: wrong.chat.completions.create(model=FAR, messages=HELLO), openai.AuthenticationError),
        (lambda: client.chat.completions.create(model=FAR, messages=[]), openai.BadRequestError),
        (lambda: client.embeddings.create(model=TINY, input="secret"), openai.APIStatusError),
    ):
        try:
            attempt()
        except expected as error:
            holds(str(error), error)
        else:
            raise AssertionError(f"{expected.__name__} was expected")


@case
async def at_once():
    import asyncio

    many = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
    calls = [many.chat.completions.create(model=FAR, messages=HELLO) for _ in range(10)]
    for said in await asyncio.gather(*calls):
        equal(said.choices[0].message.content, "You said: hello there")


@case
def agent():
    agent = openai.OpenAI(base_url=f"{AGENT}/v1", api_key=KEY, max_retries=0)
    stream = agent.chat.completions.create(
        model="orrery/beta", stream=True, messages=[{"role": "user", "content": "use adder__add"}]
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    holds("done: " in text and "6" in text, text)


@case
def agent_on_base_host():
    for path in ("/v1", "/openai/v1"):
        agent = openai.OpenAI(base_url=f"{BASE}{path}", api_key=KEY, max_retries=0)
        said = agent.chat.completions.create(
            model="orrery/beta", messages=[{"role": "user", "content": "use adder__add"}], temperature=0, max_tokens=99
        )
        holds("done: " in said.choices[0].message.content, said)


@case
def completions():
    for model in (FAR, TINY):
        said = client.completions.create(model=model, prompt="one", max_tokens=8, seed=SEED)
        holds(said.choices[0].text and said.usage.completion_tokens > 0, said)
        chunks = list(client.completions.create(model=model, prompt=["one", "two"], max_tokens=8, stream=True))
        equal({choice.index for chunk in chunks for choice in chunk.choices}, {0, 1})
    equal(client.completions.create(model=FAR, prompt="one").choices[0].text, "after one")
    body = {"model": FAR, "query": "x", "documents": ["a", "abc", "ab"], "top_n": 2}
    said = client.post("/rerank", body=body, cast_to=object)
    equal([result["index"] for result in said["results"]], [1, 2])


@case
def place():
    client = openai.OpenAI(base_url=f"{BASE}/openai/v1", api_key=KEY, max_retries=0)
    ids = {model.id for model in client.models.list()}
    holds({NEAR, TINY, VECTORS} <= ids, ids)
    equal(client.models.retrieve(FAR).id, FAR)
    said = client.chat.completions.create(model=NEAR, messages=HELLO, extra_query={"api-version": "1"})
    equal(said.choices[0].message.content, "You said: hello there")
    equal(client.embeddings.create(model=VECTORS, input="a").data[0].embedding, [0.5, 0.25])
    equal(client.completions.create(model=FAR, prompt="one").choices[0].text, "after one")
    for attempt, expected, code in (
        (lambda: client.with_options(api_key=WRONG_KEY).models.list(), openai.AuthenticationError, "invalid_api_key"),
        (lambda: client.models.retrieve("nobody"), openai.NotFoundError, "model_not_found"),
        (lambda: client.moderations.create(input="x"), openai.NotFoundError, None),
        (lambda: client.embeddings.create(model=TINY, input="secret"), openai.BadRequestError, "invalid_value"),
    ):
        try:
            attempt()
        except expected as error:
            equal(error.code, code)
            holds(error.body["message"], error.body)
        else:
            raise AssertionError(f"{expected.__name__} was expected")


run()
