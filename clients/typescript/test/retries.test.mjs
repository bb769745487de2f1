// Against a fake server: what is repeated, with which key, and what is not.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";

import { ApiError, NotConnected, Orrery } from "orrery-client";

import { fake } from "./support.mjs";

const ACCEPTED = [200, { status: "success", message: "", predictionID: "1" }];
const BUSY = [429, { error: "queue is full", status: 429 }];

test("refused and lost creates are repeated with one key", async (t) => {
  const { client, will, next, received } = await fake(t);
  for (const refused of [BUSY, [503, { error: "stopping" }], [502, "<html>"], null]) {
    will(refused, ACCEPTED);
    assert.equal((await client.predictions.create("a", { b: 1 })).predictionID, "1");
    const [first, second] = [await next(), await next()];
    assert.deepEqual(first.body, second.body);
    assert.ok(first.headers["idempotency-key"]);
    assert.equal(first.headers["idempotency-key"], second.headers["idempotency-key"]);
  }
  assert.equal(received.length, 0);
});

test("a repetition waits for the first attempt", async (t) => {
  const { client, will } = await fake(t);
  will(null, [409, { error: "still being answered" }], ACCEPTED);
  assert.equal((await client.predictions.create("a", {})).predictionID, "1");
  will([409, { error: "the execution has not failed" }], ACCEPTED);
  await assert.rejects(client.workflows.redrive("1"), (error) => error instanceof ApiError && error.status === 409);
});

test("nothing that may have run is repeated without a key", async (t) => {
  const { client, will, next, received, forget } = await fake(t);
  will(null, [202, { accepted: true }]);
  await assert.rejects(client.workflows.sendEvent("1", "approval", {}), NotConnected);
  assert.ok((await next()) && !received.length);
  forget();
  // Nothing was done: repeated all the same.
  will(BUSY, [202, { accepted: true }]);
  assert.ok((await client.workflows.sendEvent("1", "approval", {})).accepted);
});

test("Retry-After is kept and bounded, and so are the attempts", async (t) => {
  const { client, will, forget, received } = await fake(t);
  will([429, { error: "x" }, { "Retry-After": "1" }], ACCEPTED);
  const started = Date.now();
  await client.predictions.create("a", {});
  assert.ok(Date.now() - started >= 1000);
  will([429, { error: "x" }, { "Retry-After": "31" }], ACCEPTED);
  await assert.rejects(client.predictions.create("a", {}), ApiError);
  forget();
  received.splice(0);
  will(BUSY, BUSY, BUSY, BUSY, BUSY);
  await assert.rejects(client.predictions.create("a", {}), { status: 429, reason: "queue is full" });
  assert.equal(received.length, 3);
});

test("an upload is repeated as a whole", async (t) => {
  const { client, will, next } = await fake(t);
  will(BUSY, [201, { id: "1" }]);
  await client.files.upload(new Blob(["all of it"]));
  for (const { body } of [await next(), await next()]) assert.ok(body.includes("all of it"));
});

test("a response that does not arrive ends at its timeout", async (t) => {
  const silent = createServer(() => undefined);
  await new Promise((resolve) => silent.listen(0, "127.0.0.1", resolve));
  t.after(() => silent.close());
  const url = `http://127.0.0.1:${silent.address().port}`;
  const client = new Orrery({ url, timeouts: { responseMs: 50 }, retries: { attempts: 1 } });
  await assert.rejects(client.models.list(), /no response within 50 ms/);
});

test("a broken stream is resumed", async (t) => {
  const { client, will, next } = await fake(t);
  const kind = { "Content-Type": "text/event-stream" };
  const part = 'retry: 1000\n\nid: 1\nevent: output\ndata: {"part": "ä"}\n\nid: 2\nevent: output\ndata: {"pa';
  will([200, part, kind], [503, { error: "restarting" }], [200, 'event: end\ndata: {"id":\ndata: "x"}\n\n', kind]);
  const events = await collected(client.predictions.stream("1"));
  assert.deepEqual(
    events.map(({ type, data }) => [type, data]),
    [
      ["output", { part: "ä" }],
      ["end", { id: "x" }],
    ],
  );
  const ids = [await next(), await next(), await next()].map(({ headers }) => headers["last-event-id"]);
  assert.deepEqual(ids, [undefined, "1", "1"]);
  // After the end, the service answers 204.
  will([204, ""]);
  assert.deepEqual(await collected(client.predictions.stream("1")), []);
  will([200, "", kind], [200, "", kind], [200, "", kind]);
  await assert.rejects(collected(client.predictions.stream("1")), NotConnected);
});

test("the key is sent to the service only", async (t) => {
  const { client, url, will, next } = await fake(t);
  will([200, "bytes"], [200, "bytes"]);
  assert.equal(await (await client.files.download(`${url}/v1/files/1/content?token=t`)).text(), "bytes");
  assert.equal((await next()).headers["x-api-key"], undefined);
  await client.files.download("1");
  assert.equal((await next()).headers["x-api-key"], "smk_fake");
});

test("a push reads again if somebody else has changed the workflow", async (t) => {
  const { client, will, next } = await fake(t);
  const definition = (step_id) => ({ steps: [{ step_id }] });
  const workflow = { workflow_id: "w", slug: "s", name: "n", latest_version_id: "v9", versions: [{ version_id: "v9" }] };
  will([200, { workflows: [workflow], total_count: 1 }], [200, workflow], [200, { definition: definition("a") }, { ETag: '"1"' }]);
  will([412, { error: "changed" }], [200, workflow], [200, { definition: definition("b") }, { ETag: '"2"' }]);
  assert.equal((await client.workflows.push("n", definition("b"))).slug, "s");
  const put = [await next(), await next(), await next(), await next()][3];
  assert.deepEqual([put.method, put.url, put.headers["if-match"]], ["PUT", "/v1/workflows/w/versions/v10", '"1"']);
});

async function collected(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}
