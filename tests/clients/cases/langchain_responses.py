"""langchain-openai with use_responses_api."""

from case import BASE, FAR, KEY, NUMBER, TEXT, case, equal, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model=FAR, base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, use_responses_api=True)


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@case
def invoke():
    equal(model.invoke("hello there").text, "You said: hello there")


@case
def stream():
    equal("".join(chunk.text for chunk in model.stream("hello there")), "You said: hello there")


@case
def tools():
    bound = model.bind_tools([weather])
    messages = [HumanMessage("how is it in Rome?")]
    messages.append(bound.invoke(messages))
    call = messages[-1].tool_calls[0]
    equal((call["name"], call["args"]), ("weather", {"city": TEXT}))
    messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    equal(bound.invoke(messages).text, "done: sunny in Rome")


@case
def structured():
    for method in ("json_schema", "function_calling"):
        equal(model.with_structured_output(City, method=method).invoke("a city"), City(name=TEXT, people=NUMBER))


@case
def previous():
    chained = ChatOpenAI(model=FAR, base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, use_previous_response_id=True)
    messages = [HumanMessage("hello there")]
    messages.append(chained.invoke(messages))
    messages.append(HumanMessage("and now?"))
    equal(chained.invoke(messages).text, "You said: and now?")


run()
