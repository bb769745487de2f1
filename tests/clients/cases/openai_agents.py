"""openai-agents in its chat-completions mode, and with this service as its MCP server."""

from agents import Agent, AsyncOpenAI, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from case import AGENT, BASE, FAR, KEY, NUMBER, TEXT, case, equal, holds, run
from pydantic import BaseModel

set_tracing_disabled(True)


def model():
    return OpenAIChatCompletionsModel(FAR, AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0))


class City(BaseModel):
    name: str
    people: int


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@case
async def text():
    equal((await Runner.run(Agent("a", model=model()), "hello there")).final_output, "You said: hello there")


@case
async def tools():
    agent = Agent("a", model=model(), tools=[weather])
    equal((await Runner.run(agent, "how is it?")).final_output, "done: sunny in Rome")


@case
async def stream():
    run = Runner.run_streamed(Agent("a", model=model(), tools=[weather]), "how is it?")
    events = [event async for event in run.stream_events()]
    holds(events, events)
    equal(run.final_output, "done: sunny in Rome")


@case
async def output():
    agent = Agent("a", model=model(), output_type=City)
    equal((await Runner.run(agent, "a city")).final_output, City(name=TEXT, people=NUMBER))


@case
async def mcp():
    params = {"url": f"{AGENT}/mcp", "headers": {"Authorization": f"Bearer {KEY}"}}
    async with MCPServerStreamableHttp(params=params, name="orrery") as server:
        agent = Agent("a", model=model(), mcp_servers=[server])
        said = (await Runner.run(agent, "use model_text-language")).final_output
        holds(said.startswith("done: ") and "language" in said, said)


run()
