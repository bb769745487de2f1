"""A concurrent predictor that answers at once, for the benchmark of the runner `cog`."""

from cog import BasePredictor, Input


class Predictor(BasePredictor):
    async def predict(self, text: str = Input(description="What comes back")) -> str:
        return text
