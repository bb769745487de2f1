"""Structured answers requested by several clients."""

from typing import Literal

from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


class Part(BaseModel):
    kind: Literal["yes", "no"]


class Nested(BaseModel):
    """A nested model, whose schema has `$defs`."""

    part: Part
