"""A service to test clients with, and the installation of the packages that the tests need.

`tests/clients/run` and `clients/test` use it.
"""

import contextlib
import hashlib
import random
import shutil
import socket
import subprocess
import sys
import time

HOSTS = ("base", "workflows", "flows", "agent", "dashboard", "ollama")
START_TIMEOUT_S, INSTALL_TIMEOUT_S = 60, 900


class NotInstalled(Exception):
    pass


def install(cache, requirements, package):
    """Installs the packages of `requirements` (pip, with `constraints.txt` beside it) and of the folder `package` (npm)
    into the folder `cache`, unless they are installed there. Returns Python and npm's folder."""
    lists = [requirements, requirements.with_name("constraints.txt"), package / "package.json", package / "package-lock.json"]
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in lists)).hexdigest()
    python, modules, stamp = cache / "python/bin/python", cache / "npm", cache / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return python, modules
    shutil.rmtree(cache, ignore_errors=True)
    modules.mkdir(parents=True)
    for file in lists[2:]:
        shutil.copy(file, modules)
    for command in (
        [sys.executable, "-m", "venv", cache / "python"],
        [python, "-m", "pip", "install", "-q", "-r", lists[0], "-c", lists[1]],
        ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", modules],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotInstalled(str(error)) from error
        if done.returncode:
            raise NotInstalled(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-800:]}")
    stamp.write_text(wanted)
    return python, modules


def free_port():
    """Returns a free port outside the range from which the kernel chooses ports. Otherwise, another test could get the
    port before the service opens it."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise SystemExit("none of a hundred ports is free")


def wait_until(what, is_ready, process):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what} did not start")
        time.sleep(0.05)


def accepts(port):
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


class Service:
    """An `orrery serve` with its own configuration, data folder and ports."""

    def __init__(self, program, folder, more):
        self.program, self.folder, self.config = program, folder, folder / "config.toml"
        self.ports = {host: free_port() for host in HOSTS}
        (folder / "models.d").mkdir(parents=True)
        hosts = "".join(f"[hosts.{host}]\nlisten = '127.0.0.1:{port}'\n" for host, port in self.ports.items())
        metrics = f"[metrics]\nlisten = '127.0.0.1:{free_port()}'\n"
        self.config.write_text(
            f"data_dir = '{folder}/data'\nmodels_dir = '{folder}/models.d'\n{hosts}{metrics}"
            f"[egress]\nallow = ['127.0.0.0/8']\n[limits]\ndisk_reserve = '64MiB'\n{more}"
        )
        self.process = None

    def start(self, scheme):
        log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen([self.program, "--config", self.config, "serve"], stdout=log, stderr=log)
        wait_until(f"the service of {self.folder}", self.is_ready, self.process)
        self.urls = {host: f"{scheme}://127.0.0.1:{port}" for host, port in self.ports.items()}
        made = self.command("key", "create", "--name", "clients")
        self.key = next(word for word in made.split() if word.startswith("smk_"))

    def is_ready(self):
        # Commands use the control socket, which exists as soon as the service answers requests.
        return accepts(self.ports["base"]) and (self.folder / "data/control.sock").exists()

    def command(self, *arguments):
        command = [self.program, "--config", self.config, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S)
        if done.returncode:
            raise SystemExit(f"orrery {' '.join(arguments)}: {done.stderr}{(self.folder / 'log').read_text()[-2000:]}")
        return done.stdout

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
