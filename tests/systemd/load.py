"""Creates 200 predictions per second for a number of seconds, each on a new connection, and counts failures:
load.py CA KEY SECONDS. Prints the count and the slowest response; always exits with 0."""

import concurrent.futures
import http.client
import json
import ssl
import sys
import time

RATE = 200
BODY = json.dumps({"model": "text-sentiment", "version": "0.0.1", "input": {"text": "calm"}})


def create(context, key, at):
    time.sleep(max(0.0, at - time.monotonic()))
    begun = time.monotonic()
    try:
        connection = http.client.HTTPSConnection("localhost", 8443, timeout=30, context=context)
        connection.request("POST", "/v1/prediction/", BODY, {"X-API-Key": key})
        status = connection.getresponse().status
        connection.close()
        problem = None if status == 200 else str(status)
    except OSError as error:
        problem = repr(error)
    except http.client.HTTPException as error:
        problem = repr(error)
    return problem, time.monotonic() - begun


def main():
    authority, key, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    context = ssl.create_default_context(cafile=authority)
    begun = time.monotonic() + 0.5
    with concurrent.futures.ThreadPoolExecutor(max_workers=400) as pool:
        moments = [begun + number / RATE for number in range(RATE * seconds)]
        results = list(pool.map(lambda at: create(context, key, at), moments))
    failed = [problem for problem, _ in results if problem]
    slowest = max(took for _, took in results)
    print(f"{len(failed)} failed of {len(results)}; the slowest answer took {slowest * 1000:.0f} ms")
    for problem in sorted(set(failed)):
        print(f"  {failed.count(problem)} times {problem}")


main()
