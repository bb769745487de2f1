"""The official client of OpenAI's API against the agent's host, unchanged but for its `base_url`."""

import os

import openai

base_url, key = os.environ["ORRERY_TEST_URL"], os.environ["ORRERY_TEST_KEY"]
client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
models = [model.id for model in client.models.list()]
assert models == ["orrery/beta"], models

# A stream: the text, and the events in between.
messages = [{"role": "user", "content": "make a QR code"}]
text, types, urls, finish = "", [], [], None
stream = client.chat.completions.create(
    model=models[0], messages=messages, stream=True, extra_body={"session_id": "python"}
)
for chunk in stream:
    assert chunk.object == "chat.completion.chunk" and chunk.model == models[0], chunk
    types.append(chunk.type)
    text += chunk.choices[0].delta.content or ""
    finish = chunk.choices[0].finish_reason or finish
    if chunk.type == "generation_response":
        urls.append(chunk.url)
assert types == ["tool_call", "execution_progress", "execution_progress", "generation_response", "message", "complete"], types
assert (text, finish) == ("Here it is.", "stop"), (text, finish)
assert len(urls) == 1 and urls[0].startswith("http://"), urls

# The same without a stream.
said = client.chat.completions.create(
    model=models[0], messages=messages, extra_body={"session_id": "python", "stream": False}
)
assert said.choices[0].message.content == "Here it is.", said
assert said.session_id == "python" and said.usage.total_tokens == 20, said

# Errors from the service.
try:
    client.chat.completions.create(
        model=models[0], messages=messages, extra_body={"session_id": "a\n", "stream": False}
    )
    raise AssertionError("a session with a line break went unnoticed")
except openai.BadRequestError as error:
    assert error.param == "session_id", error
