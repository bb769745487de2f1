"""requests, httpx, aiohttp, urllib3 and urllib, as programs use them: create, wait, upload, errors, HTTP/2."""

import asyncio
import json
import ssl
import time
import urllib.error
import urllib.request

import aiohttp
import httpx
import requests
import urllib3
from case import AUTHORITY, BASE, KEY, SECURE, SECURE_KEY, case, equal, holds, run

HEADERS = {"X-API-Key": KEY}
BODY = {"model": "text-language", "version": "0.0.1", "input": {"text": "What a beautiful night it is!"}}
REFUSED = {"error": "Invalid or missing API key"}


@case
def requests_prediction():
    with requests.Session() as session:
        session.headers.update(HEADERS)
        made = session.post(f"{BASE}/v1/prediction/", json=BODY)
        equal(made.status_code, 200)
        for _ in range(200):
            got = session.get(f"{BASE}/v1/prediction/{made.json()['predictionID']}").json()
            if got["status"] in ("success", "error", "cancelled"):
                break
            time.sleep(0.02)
        equal(got["status"], "success")


@case
def requests_files():
    data = bytes(range(256)) * 4096
    made = requests.post(f"{BASE}/v1/files", headers=HEADERS, files={"file": ("caf\u00e9.bin", data, "application/x-test")})
    holds(made.ok, made.text)
    url = made.json()["url"]
    equal(requests.get(url).content, data)
    part = requests.get(url, headers={"Range": "bytes=10-19"})
    equal((part.status_code, part.content), (206, data[10:20]))


@case
def requests_refusals():
    equal(requests.post(f"{BASE}/v1/prediction/", json=BODY).json(), REFUSED)
    equal(requests.post(f"{BASE}/v1/prediction/", data="{", headers=HEADERS).status_code, 400)
    equal(requests.get(f"{BASE}/v1/nothing", headers=HEADERS).status_code, 404)
    equal(requests.delete(f"{BASE}/v1/prediction/run", headers=HEADERS).status_code, 405)
    equal(requests.post(f"{BASE}/v1/prediction/", data=b" " * (9 << 20), headers=HEADERS).status_code, 413)


@case
def httpx_http2():
    context = ssl.create_default_context(cafile=AUTHORITY)
    with httpx.Client(http2=True, verify=context, headers={"X-API-Key": SECURE_KEY}) as client:
        got = client.get(f"{SECURE}/v1/models")
        equal((got.http_version, got.status_code), ("HTTP/2", 200))
        equal(client.post(f"{SECURE}/v1/prediction/run", json=BODY).json()["status"], "success")
        for _ in range(10):
            got = client.post(f"{SECURE}/v1/prediction/", json=BODY, headers={"X-API-Key": "wrong"})
            equal((got.status_code, got.json()), (401, REFUSED))
        equal(client.post(f"{SECURE}/v1/prediction/", content=b" " * (9 << 20)).status_code, 413)


@case
def httpx_stream():
    body = {"model": "vendor/far", "stream": True, "messages": [{"role": "user", "content": "hello there"}]}
    with httpx.stream("POST", f"{BASE}/v1/chat/completions", json=body, headers=HEADERS) as answer:
        lines = [line for line in answer.iter_lines() if line]
    equal(lines[-1], "data: [DONE]")


@case
async def aiohttp_at_once():
    async with aiohttp.ClientSession(headers=HEADERS) as session:

        async def once():
            async with session.post(f"{BASE}/v1/prediction/run", json=BODY) as answer:
                return (await answer.json())["status"]

        equal(set(await asyncio.gather(*(once() for _ in range(20)))), {"success"})
        form = aiohttp.FormData()
        form.add_field("file", b"hello", filename="a.txt", content_type="text/plain")
        async with session.post(f"{BASE}/v1/files", data=form) as answer:
            holds(answer.ok, await answer.text())


@case
def urllib3_pool():
    pool = urllib3.PoolManager(headers=HEADERS)
    equal(pool.request("POST", f"{BASE}/v1/prediction/run", json=BODY).json()["status"], "success")
    fields = {"file": ("a.txt", b"hello", "text/plain")}
    holds(pool.request("POST", f"{BASE}/v1/files", fields=fields).status in (200, 201), "an upload failed")
    equal(pool.request("GET", f"{BASE}/v1/models", headers={**HEADERS, "Accept-Encoding": "gzip"}).status, 200)


@case
def urllib_default_type():
    # urllib sends `application/x-www-form-urlencoded` by default.
    request = urllib.request.Request(f"{BASE}/v1/prediction/run", json.dumps(BODY).encode(), HEADERS)
    equal(json.load(urllib.request.urlopen(request))["status"], "success")
    try:
        urllib.request.urlopen(urllib.request.Request(f"{BASE}/v1/prediction/run", b"{}"))
    except urllib.error.HTTPError as error:
        equal((error.code, json.load(error)), (401, REFUSED))


run()
