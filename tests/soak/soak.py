#!/usr/bin/env python3
"""Runs N executions through the API of a private service and samples it: soak.py BINARY N CSV.

Nine of ten requests run a prediction to its end, one triggers a workflow. Uses only Python's standard library;
connections are kept alive, each with one request at a time."""

import asyncio
import csv
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

CONNECTIONS = 32
# Executions per second: a steady load below the capacity of two cores, so that the amount of retained data stays
# constant.
RATE = 2000
SAMPLE_EVERY_S = 5
# A run must last longer than this to show that deletions make room for new executions.
RETENTION_S = 120
# Maximum growth from the first deletions to the end.
GROWTH_MAX = 4 / 3
PREDICTION = {"model": "text-template", "version": "1",
              "input": {"template": "hello {{ name }}", "values": {"name": "a soak"}}}
WORKFLOW = {"name": "Soak", "description": "One step", "definition": {
    "steps": [{"step_id": "p", "type": "pass", "result": "{{inputs.n}}"}]}}
FIELDS = ["seconds", "executions", "per_second", "failed", "p50_ms", "p99_ms", "max_ms", "rss_mib", "workers_mib",
          "descriptors", "threads", "disk_mib"]


def free_port():
    """The first of six ports in a row that are free."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        try:
            held = [socket.create_server(("127.0.0.1", port + offset)) for offset in range(6)]
        except (OSError, OverflowError):
            continue
        for server in held:
            server.close()
        return port


class Service:
    """The binary on a private data folder."""

    def __init__(self, binary, folder, port):
        self.binary, self.folder, self.port = binary, folder, port
        self.data = folder / "data"
        self.config = folder / "config.toml"
        (folder / "models.d").mkdir()
        text = f'data_dir = "{self.data}"\nmodels_dir = "{folder}/models.d"\nlog.level = "warn"\n'
        for offset, host in enumerate(["base", "workflows", "flows", "agent", "dashboard"]):
            text += f'hosts.{host}.listen = "127.0.0.1:{port + offset}"\n'
        text += f'metrics.listen = "127.0.0.1:{port + 5}"\n'
        text += f'[retention]\nexecutions = "{RETENTION_S}s"\npayloads = "{RETENTION_S}s"\n'
        text += f'deliveries = "{RETENTION_S}s"\n'
        self.config.write_text(text)
        self.log = open(folder / "log", "w")
        self.process = subprocess.Popen([binary, "--config", self.config, "serve"], stderr=self.log,
                                        stdout=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if self.get(port, "/ready")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.stop()
        sys.exit("the service did not start:\n" + (folder / "log").read_text())

    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def key(self):
        made = subprocess.run([self.binary, "--config", self.config, "key", "create", "--name", "soak"], check=True,
                              capture_output=True, text=True)
        return made.stdout.strip()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def memory(self):
        """Resident MiB of the service and of its workers, and its thread count."""
        own, workers, threads = 0.0, 0.0, 0
        children = {self.process.pid}
        for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
            try:
                fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
            except (OSError, ValueError):
                continue
            mib = int(fields.get("VmRSS", "0 kB").split()[0]) / 1024
            if pid == self.process.pid:
                own, threads = mib, int(fields["Threads"])
            elif int(fields["PPid"]) in children:
                children.add(pid)
                workers += mib
        return own, workers, threads

    def disk_mib(self):
        """Disk usage without the ballast, which depends on the disk reserve."""
        total = 0
        for folder, _, names in os.walk(self.data):
            for name in set(names) - {"ballast"}:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    continue
        return total / 2**20


def request(port, path, key, body):
    text = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-API-Key: {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n")
    return head.encode() + text


class Load:
    def __init__(self, port, key, count):
        self.port, self.left = port, count
        self.requests = [request(port, "/v1/prediction/run", key, PREDICTION)] * 9
        self.requests.append(request(port, "/v1/workflows/soak/trigger", key, {"inputs": {"n": 1}}))
        self.done, self.failed, self.took = 0, 0, []
        self.first_failure = None
        self.begun = time.perf_counter()
        self.count = count

    async def connection(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while self.left > 0:
            self.left -= 1
            due = self.begun + (self.count - self.left) / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            begun = time.perf_counter()
            writer.write(self.requests[self.left % 10])
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n")
                          if line.lower().startswith(b"content-length:"))
            body = await reader.readexactly(length)
            self.took.append(time.perf_counter() - begun)
            self.done += 1
            is_good = head[9:12] == b"202" or head[9:12] == b"200" and b'"status":"success"' in body
            if not is_good:
                self.failed += 1
                self.first_failure = self.first_failure or (head + body)[:1000].decode(errors="replace")
        writer.close()


def percentile(ordered, part):
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000 if ordered else 0.0


async def soak(service, key, count, out):
    load = Load(service.port, key, count)
    work = [asyncio.create_task(load.connection()) for _ in range(CONNECTIONS)]
    begun = last = time.monotonic()
    before, samples = 0, []
    while True:
        finished, _ = await asyncio.wait(work, timeout=SAMPLE_EVERY_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()
        now = time.monotonic()
        took, load.took = sorted(load.took), []
        own, workers, threads = service.memory()
        row = {
            "seconds": round(now - begun, 1), "executions": load.done,
            "per_second": round((load.done - before) / (now - last)), "failed": load.failed,
            "p50_ms": round(percentile(took, 0.5), 2), "p99_ms": round(percentile(took, 0.99), 2),
            "max_ms": round(percentile(took, 1), 2), "rss_mib": round(own, 1), "workers_mib": round(workers, 1),
            "descriptors": len(os.listdir(f"/proc/{service.process.pid}/fd")), "threads": threads,
            "disk_mib": round(service.disk_mib(), 1),
        }
        last, before = now, load.done
        samples.append(row)
        out.writerow(row)
        print("  ".join(f"{name} {row[name]}" for name in FIELDS), flush=True)
        if len(finished) == CONNECTIONS:
            return load, samples


def verdict(load, samples):
    """Problems: failed responses, and growth since the first deletions."""
    problems = []
    if load.failed:
        problems.append(f"{load.failed} responses failed; the first: {load.first_failure}")
    settled = [row for row in samples if row["seconds"] > 2 * RETENTION_S]
    part = len(settled) // 5
    if part == 0:
        print(f"too short to detect growth: {samples[-1]['seconds']} s, but deletions start only after "
              f"{RETENTION_S} s")
        return problems
    for name in ["rss_mib", "workers_mib", "descriptors", "disk_mib"]:
        first, end = (sorted(row[name] for row in rows)[part // 2] for rows in (settled[:part], settled[-part:]))
        print(f"{name}: {first} after the first deletions, {end} at the end")
        if end > first * GROWTH_MAX:
            problems.append(f"{name} grew from {first} to {end}")
    return problems


def main():
    binary, count, into = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory(dir=pathlib.Path(into).parent) as folder, open(into, "w", newline="") as file:
        out = csv.DictWriter(file, FIELDS)
        out.writeheader()
        service = Service(binary, pathlib.Path(folder).resolve(), free_port())
        try:
            key = service.key()
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
            connection.request("POST", "/v1/workflows", json.dumps(WORKFLOW), {"X-API-Key": key})
            made = connection.getresponse()
            if made.status != 201:
                sys.exit(f"the workflow was not made: {made.read().decode()}")
            load, samples = asyncio.run(soak(service, key, count, out))
            problems = verdict(load, samples)
        finally:
            service.stop()
        checked = subprocess.run([binary, "--config", service.config, "verify"], capture_output=True, text=True)
        if checked.returncode != 0:
            problems.append("the store is not whole: " + checked.stdout + checked.stderr)
    print("\n".join(problems) if problems else f"{count} executions, all responses good, the store undamaged")
    sys.exit(1 if problems else 0)


main()
