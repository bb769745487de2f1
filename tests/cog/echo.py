"""A predictor that answers at once, several at a time: for the benchmark of the runner `cog`."""

from cog import BasePredictor, Input


class Predictor(BasePredictor):
    async def predict(self, text: str = Input(description="What comes back")) -> str:
        return text
