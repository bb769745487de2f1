"""Checks acknowledged predictions: acknowledged.py make CA KEY FILE creates predictions until it is killed, and
writes each id to FILE once the service has answered; acknowledged.py find CA KEY FILE waits until all of them
have ended."""

import http.client
import json
import ssl
import sys
import threading
import time

THREADS = 8
PATIENCE_S = 60
BODY = json.dumps({"model": "text-template", "version": "1",
                   "input": {"template": "{{ n }}", "values": {"n": 1}}})


def connect(authority):
    context = ssl.create_default_context(cafile=authority)
    return http.client.HTTPSConnection("localhost", 8443, timeout=10, context=context)


def ask(connection, key, method, path, body=None):
    connection.request(method, path, body, {"X-API-Key": key})
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if answer.status == 200 else text


def make(authority, key, file):
    lock = threading.Lock()
    with open(file, "w") as ids:

        def create():
            connection = connect(authority)
            while True:
                try:
                    status, made = ask(connection, key, "POST", "/v1/prediction/", BODY)
                except (OSError, http.client.HTTPException):
                    return
                if status == 200:
                    with lock:
                        ids.write(made["predictionID"] + "\n")
                        ids.flush()

        threads = [threading.Thread(target=create) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def find(authority, key, file):
    ids = open(file).read().split()
    connection = connect(authority)
    deadline = time.monotonic() + PATIENCE_S
    for one in ids:
        while True:
            status, found = ask(connection, key, "GET", f"/v1/prediction/{one}")
            if status == 200 and found["status"] == "success":
                break
            if status != 200 or time.monotonic() > deadline:
                sys.exit(f"{one}: {status} {found}")
            time.sleep(0.05)
    print(f"{len(ids)} acknowledged, all found and ended")


{"make": make, "find": find}[sys.argv[1]](*sys.argv[2:])
