"""The official client of OpenAI's API against local models: `local.py CHAT EMBEDDING`.

The chat model has random weights: its text is gibberish, so only the form of answers is checked.
"""

import json
import os
import sys

import openai
from pydantic import BaseModel

chat_model, embedding_model = sys.argv[1:]
base_url, key = os.environ["ORRERY_TEST_URL"], os.environ["ORRERY_TEST_KEY"]
client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
asked = {
    "model": chat_model,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 20,
    "seed": 5,
}


class City(BaseModel):
    is_large: bool
    name: str | None


# A complete answer, equal to a stream with the same seed.
said = client.chat.completions.create(**asked)
text = said.choices[0].message.content
assert text and said.usage.completion_tokens <= 20, said
parts, usage = [], None
with client.chat.completions.create(
    **asked, stream=True, stream_options={"include_usage": True}
) as stream:
    for chunk in stream:
        usage = chunk.usage or usage
        parts += [choice.delta.content or "" for choice in chunk.choices]
assert "".join(parts) == text, (parts, text)
assert usage.completion_tokens == said.usage.completion_tokens, usage

# Tools.
parameters = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
more = asked | {"max_tokens": 300}
said = client.chat.completions.create(**more, tools=tools, tool_choice="required")
call = said.choices[0].message.tool_calls[0]
assert call.function.name == "weather", said
assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), said
result = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
conversation = asked["messages"] + [said.choices[0].message.model_dump(exclude_none=True), result]
client.chat.completions.create(**(asked | {"messages": conversation}), tools=tools)

# An answer constrained by a JSON Schema. `name` may be any text: the token limit sometimes truncates it.
for seed in range(5):
    try:
        said = client.chat.completions.parse(
            **(more | {"seed": seed, "temperature": 0.5, "max_tokens": 1500}), response_format=City
        )
    except openai.LengthFinishReasonError:
        continue
    assert isinstance(said.choices[0].message.parsed, City), said

# Embeddings, which this client requests in base64.
vectors = client.embeddings.create(model=embedding_model, input=["a cat", "a dog"])
assert [len(vector.embedding) for vector in vectors.data] == [384, 384]
assert abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-4

# Errors.
try:
    client.chat.completions.create(
        **(asked | {"messages": [{"role": "user", "content": "x" * 10_000}]})
    )
    raise AssertionError("a prompt without end went unnoticed")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded" and error.param == "messages", error

# An aborted stream.
stream = client.chat.completions.create(**(asked | {"max_tokens": 1900}), stream=True)
next(iter(stream))
stream.close()
