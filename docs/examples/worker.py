"""A worker in 40 lines, without Orrery on this machine: claims jobs of a model with the runner `pull`.

Usage: KEY=… python3 worker.py https://box.example.com:8080 caption
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

SERVER, MODEL = sys.argv[1:3]


def post(path, **fields):
    """Sends a request; returns the response, or None if it has no body."""
    headers = {"Authorization": f"Bearer {os.environ['KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{SERVER}/v1/workers/{path}", json.dumps(fields).encode(), headers)
    with urllib.request.urlopen(request, timeout=90) as response:
        return json.load(response) if response.status == 200 else None


def keep(job, ended):
    """Extends the lease until the job has ended. A model that can stop early should stop when this fails."""
    while not ended.wait(job["lease_seconds"] / 3):
        post(f"jobs/{job['job_id']}/heartbeat", attempt=job["attempt"])


def run(given):
    """Runs the model: replace this with your own code."""
    return f"{given['n']} squared is {given['n'] ** 2}"


while True:
    try:
        job = post(f"{MODEL}/claim?wait=30")
    except (urllib.error.URLError, OSError) as error:
        print(f"cannot claim a job: {error}", file=sys.stderr)
        time.sleep(5)
        continue
    if job is None:
        continue
    ended = threading.Event()
    threading.Thread(target=keep, args=(job, ended), daemon=True).start()
    try:
        report = {"output": run(job["input"])}
    except Exception as error:
        report = {"error": repr(error)}
    ended.set()
    what = "complete" if "output" in report else "fail"
    try:
        post(f"jobs/{job['job_id']}/{what}", attempt=job["attempt"], **report)
    except (urllib.error.URLError, OSError) as error:
        print(f"the service does not accept the result: {error}", file=sys.stderr)
