"""A worker for Orrery that draws images with Hugging Face's diffusers.

The environment variable MODEL names the model. Standard output is for the service; everything else
goes to standard error.
"""

import json
import os
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Libraries that print to standard output must not disturb the answers.


def say(**fields):
    print(json.dumps(fields), file=answers, flush=True)


import torch
from diffusers import AutoPipelineForText2Image

on_gpu = torch.cuda.is_available()
pipeline = AutoPipelineForText2Image.from_pretrained(
    os.environ["MODEL"], torch_dtype=torch.float16 if on_gpu else torch.float32
)
pipeline.to("cuda" if on_gpu else "cpu")
say(ready=True)

# The fields of the input whose names differ from those of the pipeline.
NAMES = {"steps": "num_inference_steps"}

for line in sys.stdin:
    job = json.loads(line)
    fields = dict(job["input"])
    seed = fields.pop("seed", None)
    options = {NAMES.get(name, name): value for name, value in fields.items()}
    if seed is not None:
        options["generator"] = torch.Generator("cpu").manual_seed(seed)
    try:
        image = pipeline(**options).images[0]
        image.save(os.path.join(job["folder"], "image.png"))
        say(id=job["id"], output={"path": "image.png", "content_type": "image/png"})
    except Exception as error:
        say(id=job["id"], error=f"{type(error).__name__}: {error}")
