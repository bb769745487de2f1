"""A model controlled by its input, for the tests of the runner `oip`."""

import asyncio

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceRequest, InferenceResponse


class Echo(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        inputs = {one.name: one for one in payload.inputs}
        order = StringCodec.decode_input(inputs["order"])
        if order[0] == "fail":
            raise MLServerError("as it was asked to", 500)
        if order[0] == "slow":
            await asyncio.sleep(60)
        numbers = NumpyCodec.decode_input(inputs["numbers"])
        small = NumpyCodec.decode_input(inputs["small"])
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output("sums", numbers.sum(axis=1)),
                StringCodec.encode_output("said", order),
                NumpyCodec.encode_output("small", small),
            ],
        )
