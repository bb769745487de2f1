"""A program that attempts the access named in its input, and returns the outcome. Standard library only."""

import ctypes
import json
import os
import signal
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PR_SET_PDEATHSIG = 16, 1


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def connect(path):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(5)
        stream.connect(path)
        token = ""
        try:
            with open(os.path.join(os.path.dirname(path), "control.token")) as file:
                token = file.read()
        except OSError:
            pass
        stream.sendall(b"GET /admin/keys HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       b"Authorization: Bearer " + token.encode() + b"\r\n\r\n")
        return stream.recv(4096).decode().split("\r\n")[0]


def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return line.split(":")[1].strip()


def act(job, act, target):
    if act == "read":
        with open(target, "rb") as file:
            return len(file.read(64))
    if act == "list":
        return sorted(os.listdir(target))
    if act == "write":
        with open(target, "w") as file:
            return file.write("x")
    if act == "link":
        os.link(target, os.path.join(job["folder"], "linked"))
        return "linked"
    if act == "connect":
        return connect(target)
    if act == "abstract":
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect("\0" + target)
        return "connected"
    if act == "trace":
        return checked(libc.ptrace(PTRACE_ATTACH, target, 0, 0))
    if act == "kill":
        return os.kill(target, 0)
    if act == "kill guard":
        return os.kill(os.getppid(), signal.SIGKILL)
    if act == "node":
        return os.mknod(os.path.join(job["folder"], "disk"), 0o600 | 0o060000, os.makedev(8, 0))
    if act == "temporary":
        import tempfile
        with tempfile.NamedTemporaryFile() as file:
            return os.path.dirname(file.name)
    if act == "swap":
        # Replace the run's folder with a link to a forbidden folder.
        os.rename(job["folder"], job["folder"] + "-away")
        os.symlink(target, job["folder"])
        return {"path": "seal.key"}
    if act == "status":
        return status(target)
    if act == "pid":
        return [os.getpid(), os.getppid()]
    if act == "devices":
        with open("/dev/null", "w") as sink, open("/dev/urandom", "rb") as source:
            sink.write("x")
            return len(source.read(4))
    if act == "limit":
        import resource
        return resource.prlimit(target, resource.RLIMIT_CPU, (100000, 100000))
    if act == "limits":
        import resource
        return list(resource.prlimit(target, resource.RLIMIT_NOFILE))
    if act == "policy":
        os.sched_setscheduler(target, os.SCHED_BATCH, os.sched_param(0))
        return "set"
    if act == "pin":
        os.sched_setaffinity(target, os.sched_getaffinity(0))
        return "set"
    if act == "nice":
        os.setpriority(os.PRIO_PROCESS, target, 1)
        return "set"
    if act == "nice of user":
        os.setpriority(os.PRIO_USER, target, 1)
        return "set"
    if act == "ioprio":
        return checked(libc.syscall(30 if os.uname().machine == "aarch64" else 251, 1, target, 3 << 13))
    if act == "keys":
        return checked(libc.syscall(217 if os.uname().machine == "aarch64" else 248, b"user", b"n", b"v", 1, -4))
    if act == "shared memory":
        return checked(libc.shmget(0, 4096, 0o1600))
    if act == "message queue":
        return checked(libc.msgget(0, 0o1600))
    if act == "semaphores":
        return checked(libc.semget(0, 1, 0o1600))
    if act == "named queue":
        return checked(libc.mq_open(b"/orrery-trespasser", os.O_CREAT | os.O_RDWR, 0o600, None))
    if act == "attached memory":
        # Attach to the memory of another process of the same user.
        return 0 if libc.shmat(target, None, 0o10000) != -1 else checked(-1)
    if act == "mode":
        return os.chmod(target, 0o777)
    if act == "owner":
        return os.chown(target, os.getuid(), os.getgid())
    if act == "times":
        return os.utime(target)
    if act == "attribute":
        return os.setxattr(target, "user.orrery", b"x")
    if act == "own mode":
        import shutil
        import tempfile
        path = os.path.join(target or tempfile.gettempdir(), "tool")
        with open(path, "w") as file:
            file.write("x")
        os.chmod(path, 0o755)
        shutil.copy(path, path + "2")
        return os.stat(path + "2").st_mode & 0o777


for line in sys.stdin:
    job = json.loads(line)
    given = job["input"]
    try:
        answer = {"output": act(job, given["act"], given.get("target"))}
    except OSError as error:
        answer = {"output": "denied: " + os.strerror(error.errno)}
    print(json.dumps({"id": job["id"], **answer}), flush=True)
