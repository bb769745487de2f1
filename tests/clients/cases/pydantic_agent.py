"""pydantic-ai with its chat-completions model."""

from case import BASE, FAR, KEY, NUMBER, SEED, TEXT, TINY, case, equal, holds, run
from common import City, Nested
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY)
model = OpenAIChatModel(FAR, provider=provider)


@case
def text():
    equal(Agent(model).run_sync("hello there").output, "You said: hello there")


@case
def tools():
    agent = Agent(model)

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    equal(agent.run_sync("how is it?").output, "done: sunny in Rome")


@case
def output():
    for form in (ToolOutput, NativeOutput):
        equal(Agent(model, output_type=form(City)).run_sync("a city").output, City(name=TEXT, people=NUMBER))


@case
async def stream():
    async with Agent(model).run_stream("hello there") as answer:
        parts = [part async for part in answer.stream_text(delta=True)]
    equal("".join(parts), "You said: hello there")


@case
def local_nested():
    local = OpenAIChatModel(TINY, provider=provider)
    settings = {"max_tokens": 300, "parallel_tool_calls": False, "seed": SEED}
    agent = Agent(local, output_type=ToolOutput(Nested), retries=0, model_settings=settings)
    said = agent.run_sync("answer").output
    holds(said.part.kind in ("yes", "no"), said)


run()
