"""langchain-anthropic: messages, streams, tools, structured output."""

from case import BASE, FAR, KEY, NUMBER, TEXT, case, equal, run
from common import City
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool

model = ChatAnthropic(model=FAR, base_url=BASE, api_key=KEY, max_tokens=256, max_retries=0)


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@case
def invoke():
    for name in (FAR, "claude-opus-9"):
        one = ChatAnthropic(model=name, base_url=BASE, api_key=KEY, max_retries=0)
        said = one.invoke([("system", "Be nice."), ("human", "hello there")])
        equal((said.content, said.response_metadata["stop_reason"]), ("You said: hello there", "end_turn"))
        equal((said.usage_metadata["input_tokens"], said.usage_metadata["output_tokens"]), (5, 7))


@case
def stream():
    chunks = list(model.stream("hello there"))
    equal("".join(chunk.text for chunk in chunks), "You said: hello there")
    equal(sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata), 7)


@case
def tools():
    bound = model.bind_tools([weather])
    messages = [HumanMessage("how is it in Rome?")]
    messages.append(bound.invoke(messages))
    call = messages[-1].tool_calls[0]
    equal((call["name"], call["args"]), ("weather", {"city": TEXT}))
    messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    equal(bound.invoke(messages).content, "done: sunny in Rome")


@case
def tools_in_stream():
    said = None
    for chunk in model.bind_tools([weather], tool_choice="any").stream("how is it in Rome?"):
        said = chunk if said is None else said + chunk
    equal([(call["name"], call["args"]) for call in said.tool_calls], [("weather", {"city": TEXT})])


@case
def structured():
    for method in ("function_calling", "json_schema"):
        equal(model.with_structured_output(City, method=method).invoke("a city"), City(name=TEXT, people=NUMBER))


run()
