"""A worker for Orrery: reads jobs from standard input, writes answers to standard output.

One JSON object on each line. What is written to standard error is for the operator.
"""

import json
import sys
import time


def say(**fields):
    """Writes one line; the service waits for it, so it must not stay in a buffer."""
    print(json.dumps(fields), flush=True)


# Whatever takes long, such as reading a model into memory, is done once, here.
say(ready=True)

for line in sys.stdin:
    job = json.loads(line)
    id, text = job["id"], job["input"]["text"]
    say(id=id, log=f"{len(text)} character(s) came in")
    try:
        words = []
        for word in text.split():
            words.append(word.upper() + "!")
            # A part of the output, for those who follow the prediction.
            say(id=id, part=(" " if len(words) > 1 else "") + words[-1])
            time.sleep(job["input"].get("pause", 0))
        if not words:
            say(id=id, error="there is nothing to shout", classification="invalid_user_input")
        else:
            say(id=id, output=" ".join(words), metrics={"input_tokens": len(words)})
    except Exception as error:
        say(id=id, error=str(error), classification="internal_error")
