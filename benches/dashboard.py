#!/usr/bin/env python3
"""Measures the dashboard's latencies in Chromium: the first paint, against a static page; the drawing of rows and
steps; the delay from an event's commit to the screen; and log-ins with a known and with an unknown address.

    benches/dashboard.py target/x86_64-unknown-linux-gnu/release/orrery

It starts the service on loopback in a temporary folder, drives Debian's chromium through its chromedriver, and
prints a table. It uses only Python's standard library. It asserts nothing; benches/README.md has the figures."""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PASSWORD = "correct horse battery"
ROUNDS = 9
# The number of paints to measure. A cold browser takes 40 to 160 ms to paint the same page.
PAINTS = 25
ADDRESS = "127.77.0.1"
PORT = 8084
STATIC = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Static</title>
<style>body { font: 15px system-ui; margin: 2rem }</style></head><body><h1>Home</h1><p>Hello.</p></body></html>"""


def ask(port, method, path, body=None, headers=None, host="127.0.0.1", source=None):
    """Sends a request; returns the response as (status, headers, JSON or text)."""
    connection = http.client.HTTPConnection(host, port, timeout=120, source_address=(source, 0) if source else None)
    text = None if body is None else json.dumps(body)
    sent = {"content-type": "application/json"} if text is not None else {}
    connection.request(method, path, text, {**sent, **(headers or {})})
    answer = connection.getresponse()
    data = answer.read().decode()
    connection.close()
    try:
        return answer.status, answer.headers, json.loads(data)
    except ValueError:
        return answer.status, answer.headers, data


class Held(http.server.BaseHTTPRequestHandler):
    """Serves the static page, and a model whose answer waits until the benchmark releases it."""

    gate = threading.Semaphore(0)

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(STATIC)))
        self.end_headers()
        self.wfile.write(STATIC)

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Held.gate.acquire()
        answer = b'{"output": 1}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Service:
    def __init__(self, binary, other):
        self.folder = tempfile.TemporaryDirectory()
        root = self.folder.name
        hosts = "".join(
            f'hosts.{name}.listen = "{ADDRESS}:{port}"\n'
            for port, name in enumerate(["base", "workflows", "flows", "agent", "dashboard"], 8080))
        os.mkdir(f"{root}/models.d")
        with open(f"{root}/config.toml", "w") as file:
            file.write(f'data_dir = "data"\nmodels_dir = "models.d"\n{hosts}metrics.listen = "{ADDRESS}:9464"\n'
                       'egress.allow = ["127.0.0.0/8"]\n')
        with open(f"{root}/models.d/held.toml", "w") as file:
            file.write(f"slug = 'held'\noutput_type = 'object'\n[runner]\ntype = 'http'\nurl = 'http://127.0.0.1:{other}/'\noutput = '/output'\n")
        self.binary = os.path.abspath(binary)
        self.log = open(f"{root}/log", "w")
        self.process = subprocess.Popen([self.binary, "--config", "config.toml", "serve"], cwd=root,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log)
        for _ in range(1200):
            try:
                if ask(8080, "GET", "/ready", host=ADDRESS)[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.05)
        link = subprocess.run([self.binary, "--config", "config.toml", "owner", "link"], cwd=root, capture_output=True,
                              text=True, check=True).stdout
        token = re.search(r"#(\S+)", link)[1]
        status, headers, text = self.page("POST", "/setup", {
            "token": token, "name": "Ada", "email": "ada@example.com", "password": PASSWORD})
        assert status == 204, text
        self.cookie = headers["set-cookie"].split(";")[0]

    def page(self, method, path, body=None, cookie=None, source=None):
        headers = {"sec-fetch-site": "same-origin"}
        if cookie:
            headers["cookie"] = cookie
        return ask(PORT, method, path, body, headers, ADDRESS, source)

    def own(self, method, path, body=None):
        status, _, answer = self.page(method, path, body, self.cookie)
        assert status < 300, (method, path, status, answer)
        return answer

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class Browser:
    """A cold browser: a new process with an empty profile. It first opens a separate page, as a person does: a page
    with Cross-Origin-Opener-Policy that is opened from about:blank would wait for another process."""

    def __init__(self, driver, cookie=None):
        self.driver = driver
        self.profile = tempfile.TemporaryDirectory()
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                     "--disable-component-update", "--disable-sync", "--window-size=1280,900", f"--user-data-dir={self.profile.name}"]
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}}
        self.session = ask(driver, "POST", "/session", wanted)[2]["value"]["sessionId"]
        self.call("POST", "/url", {"url": "chrome://version/"})
        if cookie:
            name, value = cookie.split("=", 1)
            self.cdp("Network.setCookie", {"name": name, "value": value, "url": f"http://{ADDRESS}:{PORT}/",
                                           "httpOnly": True, "sameSite": "Strict"})

    def call(self, method, path, body=None):
        status, _, answer = ask(self.driver, method, f"/session/{self.session}{path}", body)
        assert status == 200, answer
        return answer["value"]

    def cdp(self, name, parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def before(self, script):
        self.cdp("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def open(self, path, port=None):
        url = f"http://127.0.0.1:{port}{path}" if port else f"http://{ADDRESS}:{PORT}{path}"
        self.call("POST", "/url", {"url": url})

    def run(self, script, *given):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(given)})

    def wait(self, script, *given):
        return self.call("POST", "/execute/async", {"script": script, "args": list(given)})

    def until(self, script, *given):
        for _ in range(600):
            found = self.run(script, *given)
            if found not in (None, False):
                return found
            time.sleep(0.05)
        raise SystemExit(f"never true: {script}\n{self.run('return document.body.innerText')}")

    def close(self):
        self.call("DELETE", "")
        self.profile.cleanup()


PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"

# Records the frame after the one in which SELECTOR first matched, and the time at which the data arrived.
DRAWN = """
window.drawnAt = null;
const ask = window.fetch;
window.fetch = async (...given) => {
  const answer = await ask(...given);
  if (new RegExp(PATTERN).test(String(given[0]))) {
    const { json, text } = answer;
    answer.json = async () => { const value = await text.call(answer); window.dataAt = performance.now(); return JSON.parse(value); };
    answer.text = async () => { const value = await text.call(answer); window.dataAt = performance.now(); return value; };
  }
  return answer;
};
new MutationObserver((_, watch) => {
  if (!document.querySelector(SELECTOR)) return;
  watch.disconnect();
  requestAnimationFrame(() => { const channel = new MessageChannel(); channel.port1.onmessage = () => { window.drawnAt = performance.now(); }; channel.port2.postMessage(0); });
}).observe(document, { childList: true, subtree: true });
"""

SCROLL = """
const done = arguments[0], spans = [];
let before = performance.now(), left = 120;
const step = (now) => { spans.push(now - before); before = now; scrollBy(0, 120); left -= 1; if (left) requestAnimationFrame(step); else done(spans.slice(1)); };
requestAnimationFrame(step);
"""


def drawn(driver, service, path, pattern, selector):
    browser = Browser(driver, service.cookie)
    browser.before(f"const PATTERN = {json.dumps(pattern)}, SELECTOR = {json.dumps(selector)};{DRAWN}")
    browser.open(path)
    browser.until("return window.drawnAt")
    span = browser.run("return window.drawnAt - window.dataAt")
    rows = browser.run("return document.querySelectorAll('main tbody tr:not(.spacer)').length")
    frames = sorted(browser.wait(SCROLL))
    browser.close()
    return span, rows, frames[int(len(frames) * 0.95)]


# Records when the page's main content is on the screen.
COMPLETE = """
new MutationObserver((_, watch) => {
  if (!document.querySelector(SELECTOR)) return;
  watch.disconnect();
  requestAnimationFrame(() => { const channel = new MessageChannel(); channel.port1.onmessage = () => { window.completeAt = performance.now(); }; channel.port2.postMessage(0); });
}).observe(document, { childList: true, subtree: true });
"""


def paints(driver, service, static):
    """Measures the first contentful paint and the paint of the main content of Home, of the log-in page, and of the
    static page, in turn."""
    pages = [("static", None, "/", static, "h1"), ("home", service.cookie, "/app", None, "nav"), ("log-in", None, "/", None, "form")]
    first, whole = ({name: [] for name, *_ in pages} for _ in range(2))
    for _ in range(PAINTS):
        for name, cookie, path, port, selector in pages:
            browser = Browser(driver, cookie)
            browser.before(f"const SELECTOR = {json.dumps(selector)};{COMPLETE}")
            browser.open(path, port)
            first[name].append(browser.until(PAINT))
            whole[name].append(browser.until("return window.completeAt"))
            browser.close()
    return first, whole


def events(driver, service):
    """Measures the delay from the commit of a step's end, as recorded by the service, to the screen, in milliseconds."""
    steps = [{"step_id": f"step-{at}", "type": "model", "model": "held", "params": {}, "depends_on": [f"step-{at - 1}"] if at else []}
             for at in range(12)]
    body = {"name": "held steps", "description": "d", "definition": {"steps": steps}}
    flow = service.own("POST", "/api/workflows/api/v1/workflows", body)["workflow_id"]
    run = service.own("POST", f"/api/workflows/api/v1/{flow}/trigger", {})["execution_id"]
    browser = Browser(driver, service.cookie)
    browser.open(f"/app/runs/{run}?type=workflow")
    done = "return [...document.querySelectorAll('.timeline tbody tr')].filter((row) => row.innerText.includes('Completed')).length"
    browser.until("return document.querySelector('.timeline') !== null")
    browser.run("""window.seen = []; const look = () => { const count = [...document.querySelectorAll('.timeline tbody tr')].filter((row) => row.innerText.includes('Completed')).length;
        while (window.seen.length < count) window.seen.push(Date.now()); requestAnimationFrame(look); }; look();""")
    for at in range(12):
        time.sleep(0.35)
        Held.gate.release()
        browser.until(f"{done} > {at}")
    browser.until("return document.querySelector('.facts .status').innerText === 'Completed'")
    seen = browser.run("return window.seen")
    browser.close()
    record = service.own("GET", f"/api/base/v1/workflows/executions/{run}")
    from datetime import datetime
    ends = [datetime.fromisoformat(record["step_outputs"][f"step-{at}"]["completed_at"]).timestamp() * 1000 for at in range(12)]
    return [there - end for there, end in zip(seen, ends)]


def log_ins(service):
    """Measures failed log-ins with a known and with unknown email addresses, in turn, one at a time. Each comes from
    one of this machine's IP addresses that has made fewer than five attempts."""
    found = {"known": [], "unknown": []}
    for at in range(40):
        source = f"127.78.{at // 200}.{at % 200 + 1}"
        # The order alternates. A first request, which does not count, warms up the connection's path.
        both = [("known", "ada@example.com"), ("unknown", f"nobody{at}@example.com")]
        for name, email in both if at % 2 else both[::-1]:
            began = time.perf_counter()
            status, _, _ = service.page("POST", "/session", {"email": email, "password": "wrong horse battery"}, source=source)
            span = (time.perf_counter() - began) * 1000
            assert status == 401, status
            found[name].append(span)
    return found


def spread(values):
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f} | {ordered[0]:.0f} to {ordered[-1]:.0f}"


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Held)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    static = other.server_address[1]
    service = Service(sys.argv[1], static)
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = next(int(found[1]) for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        print("| | median | range |\n|---|---|---|")
        first, whole = paints(port, service, static)
        for name in ["static", "log-in", "home"]:
            print(f"| first paint, {name}, cold, ms | {spread(first[name])} |", flush=True)
            print(f"| its content, {name}, cold, ms | {spread(whole[name])} |", flush=True)
        known = log_ins(service)
        for name in known:
            print(f"| failed log-in, {name} address, ms | {spread(known[name])} |", flush=True)
        ratio = statistics.median(known["known"]) / statistics.median(known["unknown"])
        print(f"| of it | {ratio:.3f} | |")
        for at in range(200):
            service.own("POST", "/api/base/v1/prediction", {"model": "text-template", "version": "0.0.1", "input": {"template": str(at)}})
        runs = [drawn(port, service, "/app/runs", "v2/executions", "main tbody tr") for _ in range(5)]
        print(f"| a page of runs, data to frame, ms | {spread([one[0] for one in runs])} |")
        steps = [{"step_id": f"step-{at}", "type": "pass", "result": at} for at in range(500)]
        body = {"name": "long", "description": "d", "definition": {"steps": steps}}
        flow = service.own("POST", "/api/workflows/api/v1/workflows", body)["workflow_id"]
        run = service.own("POST", f"/api/workflows/api/v1/{flow}/trigger", {})["execution_id"]
        service.own("GET", f"/api/base/v1/workflows/executions/{run}?timeout=30")
        long = [drawn(port, service, f"/app/runs/{run}?type=workflow", "executions/", ".timeline tbody tr") for _ in range(5)]
        print(f"| 500 steps, data to frame, ms | {spread([one[0] for one in long])} |")
        print(f"| scroll frame of the 500 steps, 95th percentile, ms | {spread([one[2] for one in long])} |")
        print(f"| rows in the document then | {spread([one[1] for one in long])} |", flush=True)
        print(f"| a step's end on the screen after its commit, ms | {spread(events(port, service))} |")
    finally:
        driver.terminate()
        service.stop()
        other.shutdown()


main()
