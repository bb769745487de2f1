"""Models of answers that several clients ask for."""

from typing import Literal

from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


class Part(BaseModel):
    kind: Literal["yes", "no"]


class Nested(BaseModel):
    """A model in a model, whose schema has `$defs`."""

    part: Part
