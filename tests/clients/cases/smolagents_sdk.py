"""smolagents with its model for OpenAI's API: an agent that calls tools, and one that writes code."""

from case import BASE, FAR, KEY, case, equal, holds, run
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(FAR, api_base=f"{BASE}/openai/v1", api_key=KEY, client_kwargs={"max_retries": 0})


@tool
def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: the name of the city.
    """
    # The fake upstream calls the tool that the last message names, with the arguments given there.
    return f'use final_answer with {{"answer": "sunny in {city}"}}'


@case
def tools():
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=3, verbosity_level=0)
    equal(agent.run("how is it in Rome?"), "sunny in Rome")
    called = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or []]
    equal(called, ["weather", "final_answer"])


@case
def tools_in_stream():
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=3, verbosity_level=0, stream_outputs=True)
    equal(agent.run("how is it in Rome?"), "sunny in Rome")


@case
def code():
    # The fake upstream repeats the task, and thereby answers with its code.
    agent = CodeAgent(tools=[weather], model=model, max_steps=1, verbosity_level=0)
    said = agent.run('run this:\n<code>\nfinal_answer(weather("Rome") + "!")\n</code>')
    holds(said.endswith('"sunny in Rome"}!'), said)


run()
