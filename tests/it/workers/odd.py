"""A worker that behaves or misbehaves as its input says. Standard library only."""

import json
import os
import subprocess
import sys
import time


def say(**fields):
    print(json.dumps(fields), flush=True)


def spawn(own_session):
    """Leaves a child behind that does not hold the worker's pipes open."""
    nothing = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "1000"], stdin=nothing, stdout=nothing, stderr=nothing,
                             start_new_session=own_session)
    return child.pid


if sys.argv[1:] == ["broken"]:
    print("no such weights", file=sys.stderr, flush=True)
    sys.exit(3)
if sys.argv[1:] == ["flag"] and not os.path.exists("flag"):
    sys.exit(4)

for line in sys.stdin:
    job = json.loads(line)
    id, given = job["id"], job["input"]
    do = given.get("do", "echo")
    print(f"working on {do}", file=sys.stderr, flush=True)
    if do == "echo":
        say(id=id, output=given.get("value"), metrics=given.get("metrics", {}))
    elif do == "tell":
        say(id=id, log="one")
        say(id=id, part="a")
        say(id=id, log="two\nthree")
        say(id=id, part="b")
        say(id=id, output="ab")
    elif do == "fail":
        say(id=id, error=given.get("error", "no"), classification=given.get("class", "provider_error"))
    elif do == "garbage":
        print("Loading checkpoint shards: 100%", flush=True)
    elif do == "binary":
        sys.stdout.buffer.write(b"\xff\xfe\x00\n")
        sys.stdout.flush()
    elif do == "huge":
        block = "x" * (1 << 20)
        sys.stdout.write('{"id": "')
        for _ in range(100):
            sys.stdout.write(block)
        print('"}', flush=True)
    elif do == "stranger":
        say(id="another", output=1)
    elif do == "die":
        sys.exit(given.get("code", 9))
    elif do == "vanish":
        os.close(1)
        time.sleep(1000)
    elif do == "slow":
        time.sleep(1000)
    elif do == "hang":
        say(id=id, log=f"pid {os.getpid()} child {spawn(False)} child {spawn(True)}")
        time.sleep(1000)
    elif do == "leave":
        say(id=id, output=[os.getpid(), spawn(False), spawn(True)])
    elif do == "hog":
        held = bytearray(given["bytes"])
        say(id=id, output=len(held))
    elif do == "file":
        path = os.path.join(job["folder"], given["name"])
        with open(path, "w") as file:
            file.write(given["text"])
        say(id=id, output={"path": given.get("path", given["name"])})
    elif do == "environment":
        say(id=id, output={"names": sorted(os.environ), "pid": os.getpid(), "folder": os.getcwd(),
                           "secret": os.environ.get("TOKEN"), "model": os.environ.get("ORRERY_MODEL")})
