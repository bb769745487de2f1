"""ollama of PyPI, with a key, against the host with Ollama's API."""

import base64

import ollama
from case import FAR, KEY, NEAR, NUMBER, OLLAMA, SEED, TEXT, TINY, VECTORS, WRONG_KEY, case, equal, holds, run
from pydantic import BaseModel

client = ollama.Client(host=OLLAMA, headers={"Authorization": f"Bearer {KEY}"})
HELLO = [{"role": "user", "content": "hello there"}]
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


class City(BaseModel):
    name: str
    people: int


def weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: the name of the city
    """
    return f"sunny in {city}"


@case
def chat():
    for model in (FAR, NEAR, f"{NEAR}:latest"):
        said = client.chat(model=model, messages=HELLO)
        equal(said.message.content, "You said: hello there")
        equal((said.model, said.done, said.done_reason, said.eval_count), (model, True, "stop", 7))
        holds(said.total_duration > 0 and said.eval_duration > 0, said)


@case
def stream():
    parts = list(client.chat(model=FAR, messages=HELLO, stream=True))
    equal("".join(part.message.content for part in parts), "You said: hello there")
    equal([part.done for part in parts][-2:], [False, True])


@case
def tools():
    messages = [*HELLO]
    for is_stream in (False, True):
        said = client.chat(model=FAR, messages=messages[:1], tools=[weather], stream=is_stream)
        message = next(part.message for part in said if part.message.tool_calls) if is_stream else said.message
        call = message.tool_calls[0]
        equal((call.function.name, call.function.arguments), ("weather", {"city": TEXT}))
        result = {"role": "tool", "tool_name": call.function.name, "content": weather(**call.function.arguments)}
        done = client.chat(model=FAR, messages=[*messages, message, result], tools=[weather])
        equal(done.message.content, f"done: sunny in {TEXT}")


@case
def formats():
    said = client.chat(model=FAR, messages=HELLO, format=City.model_json_schema())
    equal(City.model_validate_json(said.message.content), City(name=TEXT, people=NUMBER))
    said = client.generate(model=FAR, prompt="hello", format="json")
    equal(City.model_validate_json(said.response), City(name=TEXT, people=NUMBER))


@case
def thinking():
    messages = [{"role": "user", "content": "think about it"}]
    said = client.chat(model=FAR, messages=messages, think=True)
    equal(said.message.thinking, "hm, hm")
    said = client.chat(model=FAR, messages=messages, think=False)
    equal(said.message.thinking, None)
    parts = list(client.generate(model=FAR, prompt="think about it", think="low", stream=True))
    equal("".join(part.thinking or "" for part in parts), "hm, hm")


@case
def generate():
    said = client.generate(model=FAR, prompt="hello", system="be nice", options={"temperature": 0, "num_predict": 9})
    equal(said.response, "You said: hello")
    said = client.generate(model=FAR, prompt="look", images=[PIXEL])
    equal(said.response, "You said: look")
    equal(client.generate(model=FAR, prompt="").done_reason, "load")


@case
def embeddings():
    equal(client.embed(model=VECTORS, input=["a", "b"]).embeddings, [[0.5, 0.25]] * 2)
    equal(client.embed(model=VECTORS, input="a").embeddings, [[0.5, 0.25]])
    equal(client.embeddings(model=FAR, prompt="a").embedding, [0.5, 0.25])


@case
def models():
    names = {model.model for model in client.list().models}
    holds({FAR, NEAR, TINY, VECTORS} <= names, names)
    equal(client.show(TINY).details.format, "gguf")
    client.chat(model=TINY, messages=HELLO, options={"num_predict": 4, "seed": SEED})
    holds(TINY in {model.model for model in client.ps().models}, client.ps())


@case
def errors():
    wrong = ollama.Client(host=OLLAMA, headers={"Authorization": f"Bearer {WRONG_KEY}"})
    failing = [{"role": "user", "content": "fail with 429"}]
    for attempt, status in (
        (lambda: wrong.chat(model=FAR, messages=HELLO), 401),
        (lambda: client.show("nobody"), 404),
        (lambda: client.pull("llama3"), 501),
        (lambda: client.chat(model=VECTORS, messages=HELLO), 400),
        (lambda: client.chat(model=FAR, messages=failing), 429),
        (lambda: list(client.chat(model=FAR, messages=failing, stream=True)), 429),
    ):
        try:
            attempt()
        except ollama.ResponseError as error:
            equal(error.status_code, status)
            holds(error.error, error)
        else:
            raise AssertionError(f"{status} was expected")


run()
