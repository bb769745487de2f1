"""The official client of OpenAI's API against a service, unchanged but for its `base_url`.

The test that starts this script has queued one answer per call, in the order of the calls below.
"""

import os
import sys

import openai
from pydantic import BaseModel

chat_model, embedding_model = sys.argv[1:]
base_url, key = os.environ["ORRERY_TEST_URL"], os.environ["ORRERY_TEST_KEY"]
client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
messages = [{"role": "user", "content": "hello"}]


class City(BaseModel):
    name: str
    people: int


# A complete answer, and its cost.
said = client.chat.completions.create(model=chat_model, messages=messages)
assert said.choices[0].message.content == "Hi!", said
assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (3, 4), said
assert said.usage.cost == 0.0043, said

# A stream, with its usage at the end.
parts, usage = [], None
with client.chat.completions.create(
    model=chat_model, messages=messages, stream=True, stream_options={"include_usage": True}
) as stream:
    for chunk in stream:
        usage = chunk.usage or usage
        parts += [choice.delta.content or "" for choice in chunk.choices]
assert "".join(parts) == "one two", parts
assert usage.cost == 0.0043, usage

# A stream without usage.
stream = client.chat.completions.create(model=chat_model, messages=messages, stream=True)
assert all(chunk.choices for chunk in stream), "a usage that nobody asked for"

# Tools.
function = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
tools = [{"type": "function", "function": function}]
said = client.chat.completions.create(model=chat_model, messages=messages, tools=tools)
call = said.choices[0].message.tool_calls[0]
assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Rome"}'), said

# An answer constrained by a JSON Schema.
said = client.chat.completions.parse(model=chat_model, messages=messages, response_format=City)
assert said.choices[0].message.parsed == City(name="Rome", people=3), said

# Embeddings.
vectors = client.embeddings.create(
    model=embedding_model, input=["a", "b"], encoding_format="float"
)
assert [vector.embedding for vector in vectors.data] == [[0.5, 0.25], [1.0, 0.0]], vectors

# Errors from the model's server.
try:
    client.chat.completions.create(model=chat_model, messages=messages)
    raise AssertionError("a refusal went unnoticed")
except openai.RateLimitError as error:
    assert error.response.headers["retry-after"] == "7", error.response.headers
    assert error.type == "tokens" and error.message.endswith("slow down"), error

# Errors from the service.
try:
    client.chat.completions.create(model=chat_model, messages=[])
    raise AssertionError("no messages went unnoticed")
except openai.BadRequestError as error:
    assert (error.param, error.type) == ("messages", "invalid_request_error"), error
try:
    stranger = client.with_options(api_key="smk_wrong")
    stranger.chat.completions.create(model=chat_model, messages=messages)
    raise AssertionError("a wrong key went unnoticed")
except openai.AuthenticationError as error:
    assert error.body == "Invalid or missing API key", error.body

# An aborted stream.
stream = client.chat.completions.create(model=chat_model, messages=messages, stream=True)
assert next(iter(stream)).choices[0].delta.content == "one"
stream.close()
