"""openai-agents in its default mode, the Responses API."""

from agents import (
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from case import BASE, FAR, KEY, NUMBER, TEXT, case, equal, holds, run
from pydantic import BaseModel

set_tracing_disabled(True)



def client():
    return AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)


class City(BaseModel):
    name: str
    people: int


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def agent(**more):
    # The prefix of `vendor/far` would select another provider.
    return Agent("a", model=OpenAIResponsesModel(FAR, client()), **more)


@case
async def default():
    set_default_openai_client(client())
    equal((await Runner.run(Agent("a", model="near"), "hello there")).final_output, "You said: hello there")


@case
async def tools():
    equal((await Runner.run(agent(tools=[weather]), "how is it?")).final_output, "done: sunny in Rome")


@case
async def stream():
    run = Runner.run_streamed(agent(tools=[weather]), "how is it?")
    events = [event async for event in run.stream_events()]
    holds(events, events)
    equal(run.final_output, "done: sunny in Rome")


@case
async def output():
    equal((await Runner.run(agent(output_type=City), "a city")).final_output, City(name=TEXT, people=NUMBER))


@case
async def turns():
    first = await Runner.run(agent(), "think again")
    second = await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": "and now?"}])
    equal(second.final_output, "You said: and now?")
    third = await Runner.run(agent(), "and then?", previous_response_id=second.last_response_id)
    equal(third.final_output, "You said: and then?")


@case
async def unstored():
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    run = await Runner.run(agent(tools=[weather], model_settings=settings), "how is it?")
    equal(run.final_output, "done: sunny in Rome")


run()
