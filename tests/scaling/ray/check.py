"""Predictions through two nodes of Ray Serve while one of them is killed: `check.py BINARY`."""

import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
CLIENTS = 8
# Seconds from the start of the load until a node is killed, and until it is started again.
KILL, BACK = 8, 12
# Seconds for which the load continues after that node answers again.
MORE = 20


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def family(pid):
    """The process and all its descendants."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def kill(process):
    """Kills a node like a power cut."""
    for pid in family(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def until(what, ready, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"FAILED: no {what} within {seconds} s")


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


class Node:
    def __init__(self, folder):
        self.port, self.folder, self.count = free_port(), folder, 0
        self.start()

    def start(self):
        self.count += 1
        folder = self.folder / f"{self.port}-{self.count}"
        folder.mkdir()
        with (self.folder / f"{self.port}.log").open("ab") as log:
            command = [sys.executable, HERE / "node.py", str(self.port), folder]
            # Otherwise Ray would write its token to the home folder.
            env = {
                **os.environ,
                "RAY_AUTH_MODE": "disabled",
                "RAY_USAGE_STATS_ENABLED": "0",
                # The start takes long on a busy machine.
                "RAY_raylet_start_wait_time_s": "240",
            }
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def is_ready(self):
        return get(self.port, "/-/healthz")[0] == 200


class Load(threading.Thread):
    def __init__(self, number, port, key, begin):
        super().__init__()
        self.number, self.port, self.key, self.begin = number, port, key, begin
        self.is_over = threading.Event()
        # A tuple per request: start time, duration, node, and response.
        self.answers = []

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        headers = {"X-API-Key": self.key, "Content-Type": "application/json"}
        n = 0
        while not self.is_over.is_set():
            n += 1
            asked = time.monotonic() - self.begin
            text = f"{self.number}-{n}"
            body = {"model": "reverse", "version": "1", "input": {"text": text}}
            connection.request("POST", "/v1/prediction/run", json.dumps(body), headers)
            answer = connection.getresponse()
            said = json.loads(answer.read())
            took = time.monotonic() - self.begin - asked
            output = said.get("output") or {}
            is_good = answer.status == 200 and output.get("text") == text[::-1]
            self.answers.append((asked, took, output.get("node") if is_good else None, said))


def serve(binary, folder, nodes):
    """Starts the service with the model; returns its process, the port and a key."""
    ports = {name: free_port() for name in ["base", "workflows", "flows", "agent", "dashboard"]}
    metrics = free_port()
    lines = [f'data_dir = "{folder}/data"', f'models_dir = "{folder}/models"']
    for name, port in ports.items():
        lines += [f"[hosts.{name}]", f'listen = "127.0.0.1:{port}"']
    lines += ["[metrics]", f'listen = "127.0.0.1:{metrics}"']
    config = folder / "config.toml"
    config.write_text("\n".join(lines) + "\n")
    (folder / "models").mkdir()
    urls = ", ".join(f'"http://127.0.0.1:{node.port}/reverse"' for node in nodes)
    (folder / "models" / "reverse.toml").write_text(
        f"""slug = "reverse"
output_type = "object"
concurrency = 16
timeout = "30s"
[retry]
max_attempts = 4
initial_delay_seconds = 0.2
[runner]
type = "http"
urls = [{urls}]
health = "/-/healthz"
output = "/output"
"""
    )
    log = (folder / "orrery.log").open("wb")
    command = [binary, "--config", str(config)]
    process = subprocess.Popen([*command, "serve"], stdout=log, stderr=log)
    until("service", lambda: get(ports["base"], "/health")[0] == 200)
    made = subprocess.run(
        [*command, "key", "create", "--name", "load", "--json"], check=True, capture_output=True
    )
    return process, ports["base"], metrics, json.loads(made.stdout)["key"]


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    nodes = [Node(folder), Node(folder)]
    service = None
    try:
        for node in nodes:
            until(f"node {node.port}", node.is_ready)
        service, port, metrics, key = serve(binary, folder, nodes)
        begin = time.monotonic()
        load = [Load(number, port, key, begin) for number in range(CLIENTS)]
        for one in load:
            one.start()
        time.sleep(KILL)
        kill(nodes[1].process)
        time.sleep(BACK - KILL)
        nodes[1].start()
        try:
            until(f"node {nodes[1].port} again", nodes[1].is_ready)
            time.sleep(MORE)
        finally:
            for one in load:
                one.is_over.set()
            for one in load:
                one.join()
        report(load, nodes, metrics, folder)
    finally:
        for node in nodes:
            kill(node.process)
        if service:
            service.terminate()
            service.wait()


def report(load, nodes, metrics, folder):
    answers = sorted((answer for one in load for answer in one.answers), key=lambda one: one[0])
    failed = [said for *_, node, said in answers if node is None]
    times = sorted(took for _, took, *_ in answers)
    attempts = [len(said.get("attempts") or []) for *_, said in answers]
    after = [asked for asked, _, node, _ in answers if node == str(nodes[1].port) and asked > BACK]
    seconds = answers[-1][0]
    print(f"predictions: {len(answers)} in {seconds:.0f} s, {len(failed)} failed")
    for node in nodes:
        count = sum(1 for *_, by, _ in answers if by == str(node.port))
        print(f"  answered by the node at {node.port}: {count}")
    print(f"  with a second attempt: {sum(count > 1 for count in attempts)}")
    print(
        f"  median {statistics.median(times) * 1000:.0f} ms,"
        f" p99 {times[int(len(times) * 0.99)] * 1000:.0f} ms, slowest {times[-1] * 1000:.0f} ms"
    )
    if after:
        print(f"  the killed node, restarted after {BACK} s, answered again from {after[0]:.1f} s on")
    log = (folder / "orrery.log").read_text()
    for line in log.splitlines():
        if "rotation" in line:
            print(" ", line)
    for line in get(metrics, "/metrics")[1].splitlines():
        if line.startswith("orrery_endpoint"):
            print(" ", line)
    if failed or not after:
        sys.exit(f"FAILED: {json.dumps(failed[:1])}")
    print("all good")


if __name__ == "__main__":
    main()
