"""dspy with its own engine and that of litellm: predictions, reasoning, typed outputs, JSON, a tool."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
from case import BASE, FAR, KEY, NUMBER, TEXT, case, equal, run
from common import City

LMS = [
    dspy.LM(f"openai/{FAR}", api_base=f"{BASE}/openai/v1", api_key=KEY, cache=False, num_retries=0, engine=engine)
    for engine in ("lm15", "litellm")
]
dspy.configure(lm=LMS[0])


def fields(**values):
    """A question that the fake upstream repeats, and thereby answers with these fields in dspy's format."""
    return "".join(f"\n[[ ## {name} ## ]]\n{value}\n" for name, value in (values | {"completed": ""}).items())


@case
def predict():
    for lm in LMS:
        with dspy.context(lm=lm):
            equal(dspy.Predict("question -> answer")(question=fields(answer=TEXT)).answer, TEXT)
        equal(lm("hello there"), ["You said: hello there"])


@case
def chain_of_thought():
    said = dspy.ChainOfThought("question -> people: int")(question=fields(reasoning="hm, hm", people=NUMBER))
    equal((said.reasoning, said.people), ("hm, hm", NUMBER))


@case
def typed():
    class Describe(dspy.Signature):
        question: str = dspy.InputField()
        city: City = dspy.OutputField()
        size: float = dspy.OutputField()

    city = City(name=TEXT, people=NUMBER)
    said = dspy.Predict(Describe)(question=fields(city=city.model_dump_json(), size=1.5))
    equal((said.city, said.size), (city, 1.5))


@case
def as_json():
    for lm in LMS:
        equal(json.loads(lm("a city", response_format=City)[0]), {"name": TEXT, "people": NUMBER})
    with dspy.context(lm=LMS[1], adapter=dspy.JSONAdapter()):
        said = dspy.Predict("question -> name: str, people: int")(question="a city")
    equal((said.name, said.people), (TEXT, NUMBER))


@case
def react():
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    question = fields(
        next_thought="hm", next_tool_name="weather", next_tool_args=f'{{"city": "{TEXT}"}}', reasoning="hm, hm", answer="sunny",
    )
    said = dspy.ReAct("question -> answer", tools=[weather], max_iters=1)(question=question)
    equal((said.trajectory["observation_0"], said.answer), ("sunny in Rome", "sunny"))


run()
