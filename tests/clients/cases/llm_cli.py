"""The command `llm` with models of a host configured in its own file."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from case import BASE, FAR, KEY, case, equal, run

folder = tempfile.TemporaryDirectory()
MODELS = f"- model_id: far\n  model_name: {FAR}\n  api_base: {BASE}/v1\n  api_key_name: orrery\n  supports_tools: true\n  supports_schema: true\n"
Path(folder.name, "extra-openai-models.yaml").write_text(MODELS)
ENVIRONMENT = os.environ | {"LLM_USER_PATH": folder.name}


def llm(*arguments):
    command = [sys.executable, "-m", "llm", "-m", "far", "--key", KEY, "--no-log", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    equal((done.returncode, done.stderr), (0, ""))
    return done.stdout.strip()


@case
def prompt():
    equal(llm("hello there"), "You said: hello there")
    equal(llm("--no-stream", "hello there"), "You said: hello there")


@case
def schema():
    equal(llm("--schema", "name, people int", "a city"), '{"name": "Rome", "people": 3}')


@case
def tools():
    equal(llm("--functions", "def weather(city: str) -> str:\n    return f'sunny in {city}'", "how is it?"), "done: sunny in Rome")


run()
