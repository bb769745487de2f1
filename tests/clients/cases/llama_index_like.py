"""llama-index-llms-openai-like."""

from case import BASE, FAR, KEY, NUMBER, TEXT, case, equal, run
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

model = OpenAILike(
    model=FAR, api_base=f"{BASE}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True, max_retries=0
)
HELLO = [ChatMessage(role="user", content="hello there")]


class City(BaseModel):
    """A city."""

    name: str
    people: int


@case
def chat():
    equal(model.chat(HELLO).message.content, "You said: hello there")


@case
def stream():
    equal("".join(part.delta or "" for part in model.stream_chat(HELLO)), "You said: hello there")


@case
def completion():
    model = OpenAILike(model=FAR, api_base=f"{BASE}/v1", api_key=KEY, is_chat_model=False, max_retries=0)
    equal(model.complete("hello").text, "after hello")
    equal("".join(part.delta or "" for part in model.stream_complete("hello")), "after hello")


@case
def tools():
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    said = model.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="how is it?")
    call = model.get_tool_calls_from_response(said)[0]
    equal((call.tool_name, call.tool_kwargs), ("weather", {"city": TEXT}))


@case
def structured():
    equal(model.as_structured_llm(City).chat(HELLO).raw, City(name=TEXT, people=NUMBER))


run()
