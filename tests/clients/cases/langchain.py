"""langchain-openai: messages, streams, tools, structured output, embeddings."""

from case import BASE, FAR, KEY, NUMBER, TEXT, TINY, VECTORS, case, equal, holds, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

model = ChatOpenAI(model=FAR, base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)


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
    equal(model.invoke("hello there").content, "You said: hello there")


@case
def stream():
    equal("".join(chunk.content for chunk in model.stream("hello there")), "You said: hello there")


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
def structured():
    for method in ("json_schema", "function_calling", "json_mode"):
        equal(model.with_structured_output(City, method=method).invoke("a city"), City(name=TEXT, people=NUMBER))


@case
def embeddings():
    vectors = OpenAIEmbeddings(model=VECTORS, base_url=f"{BASE}/v1", api_key=KEY, check_embedding_ctx_length=False)
    equal(vectors.embed_documents(["a", "b"]), [[0.5, 0.25]] * 2)


@case
def local():
    local = ChatOpenAI(model=TINY, base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, max_tokens=8)
    holds(local.invoke("hello").usage_metadata["output_tokens"] <= 8, "too many tokens")


run()
