"""A node of Ray Serve with one replica of a model: `node.py PORT FOLDER`. Runs until killed."""

import sys
import time

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=32, ray_actor_options={"num_cpus": 0.5})
class Reverse:
    def __init__(self, node: str):
        self.node = node

    async def __call__(self, request: Request) -> dict:
        text = (await request.json())["text"]
        # The duration of a run of a small model.
        time.sleep(0.01)
        return {"output": {"text": text[::-1], "node": self.node}}


port, folder = int(sys.argv[1]), sys.argv[2]
ray.init(
    num_cpus=2,
    include_dashboard=False,
    log_to_driver=False,
    object_store_memory=100 * 1024 * 1024,
    _temp_dir=folder,
    _node_ip_address="127.0.0.1",
)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(Reverse.bind(str(port)), route_prefix="/reverse")
while True:
    time.sleep(3600)
