"""The command `codex exec`, with its own home folder and the settings of `docs/clients.md`."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from case import BASE, FAR, KEY, case, equal, holds, run

PROGRAM = Path(os.environ["ORRERY_TEST_MODULES"], "node_modules/.bin/codex")
SETTINGS = f"""
model = "{FAR}"
model_provider = "orrery"
web_search = "disabled"
check_for_update_on_startup = false

[features]
multi_agent = false

[analytics]
enabled = false

[model_providers.orrery]
name = "Orrery"
base_url = "{BASE}/v1"
env_key = "ORRERY_API_KEY"
wire_api = "responses"
"""
folder = tempfile.TemporaryDirectory()
home, work = Path(folder.name, "home"), Path(folder.name, "work")
home.mkdir()
work.mkdir()
(home / "config.toml").write_text(SETTINGS)
# A proxy that accepts no connection: the program reaches only this service.
ENVIRONMENT = os.environ | {
    "CODEX_HOME": str(home), "HOME": str(home), "ORRERY_API_KEY": KEY,
    "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1",
}


def codex(*arguments):
    """The items of a turn."""
    options = ["--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--cd", work]
    command = [PROGRAM, "exec", *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    equal((done.returncode, events[-1]["type"]), (0, "turn.completed"))
    equal(events[-1]["usage"]["output_tokens"] % 7, 0)
    return [event["item"] for event in events if event["type"] == "item.completed"]


@case
def tools():
    """The model runs a command, whose output is in its answer."""
    items = codex('use exec_command with {"cmd": "echo made > made.txt && cat made.txt"}')
    equal((work / "made.txt").read_text(), "made\n")
    ran = next(item for item in items if item["type"] == "command_execution")
    equal((ran["exit_code"], ran["aggregated_output"]), (0, "made\n"))
    answer = next(item for item in items if item["type"] == "agent_message")["text"]
    holds(answer.startswith("done: ") and "made" in answer, answer)


@case
def resume():
    """A second turn repeats the calls, results and reasoning of the first one."""
    items = codex("resume", "--last", 'use exec_command with {"cmd": "cat made.txt"}')
    ran = next(item for item in items if item["type"] == "command_execution")
    equal(ran["aggregated_output"], "made\n")


run()
