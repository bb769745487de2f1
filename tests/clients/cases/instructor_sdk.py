"""instructor in all its modes for chat completions."""

import instructor
import openai
from case import BASE, FAR, KEY, NUMBER, SEED, TEXT, TINY, case, equal, holds, run
from common import City, Nested

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "a city"}]


def extract(mode):
    made = instructor.from_openai(client, mode=mode)
    said = made.chat.completions.create(model=FAR, messages=HELLO, response_model=City, max_retries=0)
    equal((said.name, said.people), (TEXT, NUMBER))


@case
def tools():
    extract(instructor.Mode.TOOLS)


@case
def tools_strict():
    extract(instructor.Mode.TOOLS_STRICT)


@case
def json():
    extract(instructor.Mode.JSON)


@case
def json_schema():
    extract(instructor.Mode.JSON_SCHEMA)


@case
def partial():
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = list(made.chat.completions.create_partial(model=FAR, messages=HELLO, response_model=City, max_retries=0))
    equal((parts[-1].name, parts[-1].people), (TEXT, NUMBER))


@case
def local_nested():
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    one = {"parallel_tool_calls": False, "max_tokens": 300, "seed": SEED}
    said = made.chat.completions.create(model=TINY, messages=HELLO, response_model=Nested, max_retries=0, **one)
    holds(said.part.kind in ("yes", "no"), said)


run()
