#!/usr/bin/env python3
"""Measures the resident memory of a service at its start, at the peak of a storm of html-to-text runs and large
JSON bodies, and once it is idle again.

usage: memory.py PATH/TO/orrery [--seconds 15] [--clients 48] [--idle 30]
"""
import argparse, json, os, random, signal, subprocess, sys, tempfile, threading, time
import http.client

parser = argparse.ArgumentParser()
parser.add_argument("binary")
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--clients", type=int, default=16)
parser.add_argument("--idle", type=float, default=30)
parser.add_argument("--port", type=int, default=18080)
options = parser.parse_args()

folder = tempfile.TemporaryDirectory()
config = os.path.join(folder.name, "config.toml")
os.mkdir(os.path.join(folder.name, "models.d"))
with open(config, "w") as file:
    file.write('data_dir = "data"\nmodels_dir = "models.d"\nlog.level = "error"\n')
    for offset, host in enumerate(["base", "workflows", "flows", "agent", "dashboard"]):
        file.write(f'hosts.{host}.listen = "127.0.0.1:{options.port + offset}"\n')
    file.write(f'metrics.listen = "127.0.0.1:{options.port + 5}"\n')


def orrery(*arguments):
    return subprocess.run([options.binary, "--config", config, *arguments],
                          check=True, capture_output=True, text=True).stdout


def running():
    """The number of running and queued executions."""
    connection = http.client.HTTPConnection("127.0.0.1", options.port + 5, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    names = ("orrery_executions_running ", "orrery_executions_queued ")
    return sum(float(line.split()[1]) for line in lines if line.startswith(names))


def resident_mib():
    """Resident memory of the service and its built-in workers."""
    total = 0.0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/status") as file:
                fields = dict(line.split(":", 1) for line in file)
        except OSError:
            continue
        if int(pid) == service.pid or int(fields["PPid"]) == service.pid:
            total += int(fields.get("VmRSS", "0 kB").split()[0]) / 1024
    return total


made = orrery("key", "create", "--name", "memory")
key = next(word for word in made.split() if word.startswith("smk_") and len(word) > 20)
service = subprocess.Popen([options.binary, "--config", config, "serve"], stderr=subprocess.DEVNULL)
try:
    for _ in range(200):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=5)
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                break
        except OSError:
            pass
        time.sleep(0.1)
    time.sleep(1)
    start = resident_mib()

    page = "".join(f"<div><p class=a{n}>word <b>{n}</b> <a href='http://x/{n}'>link</a></p></div>"
                   for n in range(6500))[:490_000]
    page_body = json.dumps({"model": "html-to-text", "version": "1", "input": {"html": page}})
    list_body = json.dumps({"model": "text-template", "version": "1", "input": {
        "template": "x", "values": {"list": list(range(400_000))}}})
    bodies = [page_body, page_body, page_body, list_body]
    done, statuses, lock = 0, {}, threading.Lock()
    until = time.monotonic() + options.seconds

    def client(number):
        global done
        rng = random.Random(number)
        connection = None
        while time.monotonic() < until:
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", options.port, timeout=60)
                connection.request("POST", "/v1/prediction/run", rng.choice(bodies), {"X-API-Key": key})
                answer = connection.getresponse()
                answer.read()
                with lock:
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1
            except (OSError, http.client.HTTPException):
                connection = None

    clients = [threading.Thread(target=client, args=(number,)) for number in range(options.clients)]
    for thread in clients:
        thread.start()
    peak = start
    while any(thread.is_alive() for thread in clients):
        peak = max(peak, resident_mib())
        time.sleep(0.05)
    while running():
        peak = max(peak, resident_mib())
        time.sleep(0.2)
    at_end = resident_mib()
    idle, began = [], time.monotonic()
    while time.monotonic() - began < options.idle:
        time.sleep(options.idle / 6)
        idle.append(round(resident_mib()))
    with open(f"/proc/{service.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    print(json.dumps({"start_mib": round(start), "peak_mib": round(peak), "at_end_mib": round(at_end),
                      "idle_mib": idle, "answers": statuses, "cpu_seconds": round(cpu, 1)}))
finally:
    service.send_signal(signal.SIGTERM)
    try:
        service.wait(30)
    except subprocess.TimeoutExpired:
        service.kill()
