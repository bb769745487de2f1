"""Models for the conformance suite: `model.py text`, `model.py error`, and `model.py progress`, which reports
its progress slowly, so that each line is a separate notification. Standard library only."""

import json
import sys
import time


def say(**fields):
    print(json.dumps(fields), flush=True)


for line in sys.stdin:
    job = json.loads(line)
    if sys.argv[1] == "error":
        say(id=job["id"], error="This tool intentionally fails.", classification="invalid_user_input")
        continue
    if sys.argv[1] == "progress":
        for number in range(5):
            say(id=job["id"], log=f"part {number}")
            time.sleep(0.3)
    say(id=job["id"], output="This is a simple text.")
