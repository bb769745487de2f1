// Tests of the formats, errors, requests and lists of static/core.js.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import {
  Refusal,
  ask,
  bytes,
  count,
  duration,
  inFull,
  money,
  onChanges,
  onDay,
  sentence,
  statusOf,
  tellLists,
  unattended,
} from "../../../static/core.js";
import { place, setQuery } from "../../../static/location.js";
import { eventsOf } from "../../../static/stream.js";

const { fetch } = globalThis;
afterEach(() => {
  globalThis.fetch = fetch;
});

/** Answers each request with the next of the answers; returns what was asked. */
function answering(...answers) {
  const asked = [];
  globalThis.fetch = (path, request) => {
    asked.push({ path, ...request });
    const answer = answers.shift();
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  };
  return asked;
}

const table = (name, of, rows) => {
  for (const [given, expected] of rows) {
    test(`${name} of ${JSON.stringify(given) ?? String(given)} is ${expected}`, () => assert.equal(of(given), expected));
  }
};

table("count", count, [
  [0, "0"],
  [1234567, "1,234,567"],
  [undefined, "–"],
  [NaN, "–"],
]);

table("bytes", bytes, [
  [0, "0 bytes"],
  [999, "999 bytes"],
  [1000, "1.0 KB"],
  [123456, "123 KB"],
  [2_500_000_000, "2.5 GB"],
  [5e15, "5000 TB"],
  [null, "–"],
]);

table("duration", duration, [
  [0, "1 ms"],
  [0.0994, "99 ms"],
  [0.0995, "0.1 s"],
  [9.94, "9.9 s"],
  [9.95, "10 s"],
  [59.4, "59 s"],
  [59.5, "1 min 0 s"],
  [3599, "59 min 59 s"],
  [3600, "1 h 0 min"],
  [90061, "1 d 1 h"],
  [-1, "–"],
  [Infinity, "–"],
]);

table("money", money, [
  [0, "$0"],
  [12.345, "$12.35"],
  [0.5, "$0.50"],
  [0.000001, "$0.000001"],
  [0.1234, "$0.1234"],
  [-3, "−$3.00"],
  [undefined, "–"],
]);

test("dates have one form: the parts in the same order, and 24 hours", () => {
  assert.equal(inFull("2026-11-20T00:05:09Z"), "Nov 20, 2026, 00:05:09");
  assert.equal(onDay("2026-11-20"), "Nov 20, 2026");
});

test("the status is what somebody has to do, if anything", () => {
  assert.equal(statusOf({ status: "running" }), "running");
  assert.equal(statusOf({ status: "running", waiting_for: "event" }), "event");
  assert.equal(statusOf({ status: "running", waiting_for: "retry" }), "running");
  assert.equal(statusOf({ status: "running", waiting_for: [] }), "running");
  assert.equal(statusOf({ status: "running", waiting_for: [{ reason: "timer" }, { reason: "event" }] }), "event");
  assert.equal(statusOf({ status: "running", waiting_for: [{ reason: "event" }, { reason: "paused" }] }), "paused");
});

test("a refusal names its fields, without those that have no path", () => {
  const details = [{ path: "/input/text", message: "is too long" }, { path: "name" }, { message: "?" }, null];
  assert.deepEqual(new Refusal(422, "no", { details }).fields, { "input/text": "is too long", name: "is not valid" });
  assert.deepEqual(new Refusal(422, "no", { details: "text" }).fields, {});
});

table("sentence", ([status, message, retryAfter]) => sentence(new Refusal(status, message, { retryAfter })), [
  [[400, "the name is taken"], "The name is taken."],
  [[404, "Not Found"], "Nothing was found here, or it belongs to another organization."],
  [[404, "there is no such version"], "There is no such version."],
  [[503, "the disk is full; try again later", 90], "The disk is full. Try again in 1 min 30 s."],
  [[429, "too many requests, please try again"], "Too many requests. Try again in a moment."],
  [[500, "it broke"], "It broke. Try again. If it fails again, ask the person who runs this machine to look at the log."],
  [[413, "too large"], "Too large. Make it smaller, or ask the person who runs this machine for a higher limit."],
]);

test("a fault of the page is named as one", () => {
  assert.equal(sentence(new TypeError("x is not a function")), "Something went wrong in this page: x is not a function");
});

test("a request sends JSON and returns it", async () => {
  const asked = answering(new Response('{"id":1}'));
  assert.deepEqual(await ask("POST", "/keys", { name: "a" }), { id: 1 });
  const [{ path, method, body, headers, cache }] = asked;
  assert.deepEqual([path, method, body, cache], ["/keys", "POST", '{"name":"a"}', "no-store"]);
  assert.equal(headers["content-type"], "application/json");
});

test("a form is sent as it is, and an answer without a body is null", async () => {
  const form = new FormData();
  const asked = answering(new Response(null, { status: 204 }));
  assert.equal(await ask("POST", "/files", form), null);
  assert.equal(asked[0].body, form);
  assert.equal(asked[0].headers["content-type"], undefined);
});

test("a request that the person did not trigger says so", async () => {
  const { signal } = new AbortController();
  unattended.add(signal);
  const asked = answering(new Response("{}"), new Response("{}"));
  await ask("GET", "/status", undefined, { signal });
  await ask("GET", "/status");
  assert.equal(asked[0].headers["x-orrery-unattended"], "true");
  assert.equal(asked[1].headers["x-orrery-unattended"], undefined);
});

test("an error answer becomes a refusal with its reason, details and time", async () => {
  const body = JSON.stringify({ error: { message: "slow down" }, details: [1] });
  answering(new Response(body, { status: 429, headers: { "retry-after": "7" } }), new Response("<html>", { status: 502 }));
  await assert.rejects(ask("GET", "/a"), { status: 429, message: "slow down", details: [1], retryAfter: 7 });
  await assert.rejects(ask("GET", "/a"), { status: 502, message: "The service answered 502.", details: null, retryAfter: null });
});

test("a service that does not answer is a refusal, an abort is none", async () => {
  answering(new TypeError("fetch failed"), new DOMException("stop", "AbortError"));
  await assert.rejects(ask("GET", "/a"), { status: 0, message: /does not answer/ });
  await assert.rejects(ask("GET", "/a"), { name: "AbortError" });
});

test("changes reload the lists that follow their topics, until they end", () => {
  let runs = 0;
  let files = 0;
  const stop = onChanges(["runs"], () => (runs += 1));
  onChanges(["files", "status"], () => (files += 1));
  tellLists(["runs", "keys"]);
  assert.deepEqual([runs, files], [1, 0]);
  tellLists();
  assert.deepEqual([runs, files], [2, 1]);
  stop();
  tellLists(["runs", "status"]);
  assert.deepEqual([runs, files], [2, 2]);
});

test("an empty parameter leaves the query, and the others stay", () => {
  assert.deepEqual([place.value.path, String(place.value.query)], ["/app/runs", "status=failed"]);
  setQuery({ status: "", type: "prediction", cursor: null });
  assert.equal(String(place.value.query), "type=prediction");
  setQuery({ since: 60 });
  assert.equal(String(place.value.query), "type=prediction&since=60");
  setQuery({ type: undefined, since: null });
  assert.deepEqual([place.value.path, String(place.value.query)], ["/app/runs", ""]);
});

test("a new entry of the history starts at its top, a changed filter stays where it is", () => {
  const scrolled = [];
  globalThis.scrollTo = (...to) => scrolled.push(to);
  setQuery({ since: 60 });
  assert.deepEqual(scrolled, []);
  setQuery({ cursor: "abc" }, {});
  assert.deepEqual(scrolled, [[0, 0]]);
  setQuery({ since: null, cursor: null });
});

test("a stream that breaks is the service's fault, not the page's; an abort is neither", async () => {
  const broken = (error) =>
    new Response(
      new ReadableStream({
        start: (control) => control.enqueue(new TextEncoder().encode("id: 1\ndata: one\n\n")),
        pull: (control) => control.error(error),
      }),
    );
  const read = async (answer) => {
    const seen = [];
    for await (const { data } of eventsOf(answer)) seen.push(data);
    return seen;
  };
  await assert.rejects(read(broken(new TypeError("network error"))), { status: 0, message: "The connection to the service was lost." });
  await assert.rejects(read(broken(new DOMException("stop", "AbortError"))), { name: "AbortError" });
  assert.deepEqual(await read(new Response("id: 1\ndata: one\n\ndata: two\n\n")), ["one", "two"]);
});
