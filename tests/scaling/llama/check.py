"""Tests two models on llama.cpp's server. Their group has room for only one: `check.py BINARY`."""

import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "ray"))
from check import free_port, get, until  # noqa: E402

HERE = pathlib.Path(__file__).parent
CLIENTS, SECONDS, SWAP_AFTER = 8, 40, 4
MODELS = ["a", "b"]


class Service:
    def __init__(self, binary, folder):
        self.folder = folder
        names = ["base", "workflows", "flows", "agent", "dashboard"]
        self.ports = {name: free_port() for name in names}
        (folder / "models").mkdir()
        gguf = folder / "tiny.gguf"
        subprocess.run([sys.executable, "tests/clients/model.py", gguf], check=True)
        for slug in MODELS:
            command = [sys.executable, str(HERE / "server.py"), str(gguf), "${PORT}"]
            (folder / "models" / f"{slug}.toml").write_text(
                f"""slug = "{slug}"
output_type = "string"
concurrency = 8
[runner]
type = "openai"
kind = "chat"
model = "{slug}"
start = {json.dumps(command)}
health = "/health"
group = "gpu0"
memory = "600MiB"
"""
            )
        lines = [f'data_dir = "{folder}/data"', f'models_dir = "{folder}/models"']
        for name, port in self.ports.items():
            lines += [f"[hosts.{name}]", f'listen = "127.0.0.1:{port}"']
        lines += ["[groups.gpu0]", 'memory = "1GiB"', f'swap_after = "{SWAP_AFTER}s"']
        self.config = folder / "config.toml"
        self.config.write_text("\n".join(lines) + "\n")
        self.command = [binary, "--config", str(self.config)]
        log = (folder / "orrery.log").open("wb")
        self.process = subprocess.Popen([*self.command, "serve"], stdout=log, stderr=log)
        until("service", lambda: get(self.ports["base"], "/health")[0] == 200)
        create = [*self.command, "key", "create", "--name", "load", "--json"]
        made = subprocess.run(create, check=True, capture_output=True)
        self.key = json.loads(made.stdout)["key"]

    def ask(self, connection, model):
        body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.ports["base"], timeout=300)

    def servers(self):
        """Returns the processes of llama.cpp's servers, without the guard process that is each server's parent."""
        parents = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, UnicodeDecodeError):
                continue
            if str(HERE / "server.py") in words and str(self.folder / "tiny.gguf") in words:
                parents[int(entry.name)] = parent
        return [pid for pid, parent in parents.items() if parent in parents]


class Client(threading.Thread):
    def __init__(self, service, end):
        super().__init__()
        self.service, self.end, self.answers = service, end, []

    def run(self):
        connection = self.service.connect()
        while time.monotonic() < self.end:
            for model in MODELS:
                asked = time.monotonic()
                status, said = self.service.ask(connection, model)
                self.answers.append((model, status, time.monotonic() - asked, said))


def load(service, seconds, meanwhile):
    """Calls the models in turn from several clients; returns the answers and how often the running server changed."""
    end = time.monotonic() + seconds
    clients = [Client(service, end) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    seen = set()
    while any(client.is_alive() for client in clients):
        running = service.servers()
        seen.update(running)
        meanwhile(running)
        time.sleep(0.05)
    return [answer for client in clients for answer in client.answers], len(seen)


def judge(what, answers):
    failed = [said for _, status, _, said in answers if status != 200]
    slowest = max(took for *_, took, _ in answers)
    counts = ", ".join(f"{sum(one[0] == model for one in answers)} to {model}" for model in MODELS)
    print(f"{what}: {len(answers)} calls ({counts}), {len(failed)} failed, slowest {slowest:.1f} s")
    if failed:
        sys.exit(f"FAILED: {failed[0][:300]}")


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="llama-", dir="/tmp"))
    service = Service(binary, folder)
    try:
        answers, servers = load(service, SECONDS, lambda _: None)
        judge(f"A B A B from {CLIENTS} clients for {SECONDS} s", answers)
        most = SECONDS // SWAP_AFTER + 2
        print(f"  {servers} servers were started; one per {SWAP_AFTER} s would be {most}")
        if servers > most:
            sys.exit("FAILED: the group thrashes")

        killed = []

        def kill(running):
            if len(killed) < 3 and running and running[0] not in killed:
                killed.append(running[0])
                time.sleep(1)
                os.kill(running[0], signal.SIGKILL)

        answers, _ = load(service, 15, kill)
        judge(f"servers killed: {len(killed)}", answers)

        service.process.kill()
        service.process.wait()
        until("end of the servers", lambda: not service.servers(), 10)
        print("no server outlives the killed service")
        print("all good")
    finally:
        service.process.kill()
        for pid in service.servers():
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
