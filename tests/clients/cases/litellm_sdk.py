"""litellm, with the providers `openai/` and `hosted_vllm/`."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from case import BASE, FAR, KEY, VECTORS, WRONG_KEY, case, equal, run

litellm.telemetry = False
HELLO = [{"role": "user", "content": "hello there"}]
HOST = {"api_base": f"{BASE}/v1", "api_key": KEY, "num_retries": 0}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


@case
def completion():
    for provider in ("openai", "hosted_vllm"):
        said = litellm.completion(f"{provider}/{FAR}", HELLO, **HOST)
        equal(said.choices[0].message.content, "You said: hello there")


@case
def stream():
    for provider in ("openai", "hosted_vllm"):
        chunks = litellm.completion(f"{provider}/{FAR}", HELLO, stream=True, **HOST)
        equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "You said: hello there")


@case
def tools():
    said = litellm.completion(f"openai/{FAR}", HELLO, tools=TOOLS, **HOST)
    equal(said.choices[0].message.tool_calls[0].function.name, "weather")


@case
def embeddings():
    vectors = litellm.embedding(f"openai/{VECTORS}", ["a"], **HOST)
    equal(vectors.data[0]["embedding"], [0.5, 0.25])


@case
def errors():
    try:
        litellm.completion(f"openai/{FAR}", HELLO, **(HOST | {"api_key": WRONG_KEY}))
    except litellm.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key went unnoticed")


run()
