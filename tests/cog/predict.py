"""A predictor controlled by its input, for the tests of the runner `cog`."""

import time

from cog import BasePredictor, Input


class Predictor(BasePredictor):
    def predict(
        self,
        text: str = Input(description="What comes back"),
        do: str = Input(default="echo", choices=["echo", "fail", "sleep"]),
        times: int = Input(default=1, ge=1, le=5),
    ) -> str:
        if do == "fail":
            raise ValueError("as it was asked to")
        if do == "sleep":
            # Sleep in short steps, because Cog cancels between two lines of Python.
            for _ in range(600):
                time.sleep(0.1)
        print(f"{len(text)} characters")
        return text * times
