// Against a real service: predictions, workflows, files, errors.

import assert from "node:assert/strict";
import { File } from "node:buffer";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { ApiError, ExecutionFailed, NotConnected, Orrery, PredictionFailed, WaitTimeout } from "orrery-client";

import { client, URL, unique } from "./support.mjs";

const orrery = client();
const HELLO = { template: "Hello {{ name }}!", values: { name: "Ada" } };
const definition = (result = "hello {{inputs.name}}") => ({ steps: [{ step_id: "say", type: "pass", result }] });
const rejects = async (promise, Type) => {
  const error = await promise.then(
    () => assert.fail("no error"),
    (reason) => reason,
  );
  assert.ok(error instanceof Type, String(error));
  return error;
};

test("models are listed and read", async () => {
  const models = await orrery.models.list({ name: "text", limit: 500 });
  assert.ok(models.some((model) => model.slug === "text-template"));
  assert.deepEqual((await orrery.models.get("text-template")).request_schema.required, ["template"]);
  assert.equal((await rejects(orrery.models.get("of/nobody"), ApiError)).status, 404);
});

test("a prediction is created, waited for and run", async () => {
  const { predictionID } = await orrery.predictions.create("text-template", HELLO);
  const prediction = await orrery.predictions.wait(predictionID, { timeoutMs: 60_000 });
  assert.deepEqual([prediction.status, prediction.output], ["success", "Hello Ada!"]);
  assert.deepEqual(await orrery.predictions.get(predictionID), prediction);
  assert.equal((await orrery.predictions.run("text-template", HELLO)).output, "Hello Ada!");
  const failure = await rejects(orrery.predictions.run("text-template", { template: "{{ 1 / 'a' }}" }), PredictionFailed);
  assert.equal(failure.prediction.error_classification, "invalid_user_input");
  assert.equal(failure.name, "PredictionFailed");
});

test("a key creates once", async () => {
  const idempotencyKey = randomUUID();
  const first = await orrery.predictions.create("text-template", HELLO, { idempotencyKey });
  assert.deepEqual(await orrery.predictions.create("text-template", HELLO, { idempotencyKey }), first);
  assert.notEqual((await orrery.predictions.create("text-template", HELLO)).predictionID, first.predictionID);
  const error = await rejects(orrery.predictions.create("text-template", { template: "x" }, { idempotencyKey }), ApiError);
  assert.equal(error.status, 422);
});

test("a prediction is followed and cancelled", async () => {
  const { predictionID } = await orrery.predictions.create("shout", { text: "a b" });
  const events = [];
  for await (const event of orrery.predictions.stream(predictionID)) events.push(event);
  assert.deepEqual([events[0].type, events.at(-1).type, events.at(-1).data.output], ["status", "end", "A! B!"]);
  const { predictionID: slow } = await orrery.predictions.create("slow", {});
  assert.equal((await rejects(orrery.predictions.wait(slow, { timeoutMs: 0 }), WaitTimeout)).last.id, slow);
  const stop = new AbortController();
  const waiting = orrery.predictions.wait(slow, { signal: stop.signal });
  stop.abort(new RangeError("enough"));
  await rejects(waiting, RangeError);
  assert.equal((await orrery.predictions.cancel(slow)).status, "cancelled");
  assert.equal((await orrery.predictions.cancel(slow)).status, "cancelled");
  assert.equal((await orrery.predictions.wait(slow)).status, "cancelled");
});

test("errors have a status, hint, details and request id", async () => {
  const error = await rejects(orrery.predictions.create("text-template", { template: 1 }), ApiError);
  assert.deepEqual([error.status, error.details[0].path], [400, "/template"]);
  assert.ok(error.requestId && error.message.includes("template"));
  const stranger = await rejects(new Orrery({ url: URL, key: "smk_wrong" }).predictions.get(randomUUID()), ApiError);
  assert.ok(stranger.status === 401 && stranger.hint.includes("key"), String(stranger));
  const lost = new Orrery({ url: "http://127.0.0.1:9", retries: { attempts: 2, firstDelayMs: 10 } });
  assert.match((await rejects(lost.models.list(), NotConnected)).message, /GET \/v1\/models/);
});

test("a push changes only what differs", async () => {
  const name = unique("Greeting");
  const made = await orrery.workflows.push(name, definition(), { description: "Says hello" });
  assert.deepEqual([made.latest_version_id, made.description], ["v1", "Says hello"]);
  const reordered = { steps: [{ type: "pass", result: "hello {{inputs.name}}", step_id: "say" }] };
  assert.equal((await orrery.workflows.push(name, reordered)).latest_version_id, "v1");
  assert.equal((await orrery.workflows.push(made.slug, definition("hi"))).latest_version_id, "v2");
  assert.equal((await orrery.workflows.get(made.slug)).workflow_id, made.workflow_id);
});

test("a workflow is run and followed", async () => {
  const { slug } = await orrery.workflows.push(unique("Run"), definition());
  assert.equal((await orrery.workflows.run(slug, { name: "Ada" }, { timeoutMs: 60_000 })).output, "hello Ada");
  const { execution_id } = await orrery.workflows.trigger(slug, { name: "Bo" });
  const events = [];
  for await (const event of orrery.workflows.follow(execution_id)) events.push(event);
  assert.deepEqual(
    events.filter((event) => event.type === "step").map((event) => event.data.step_id),
    ["say"],
  );
  assert.equal(events.at(-1).data.output, "hello Bo");
  const { slug: fails } = await orrery.workflows.push(unique("Fail"), definition("{{inputs.missing}}"));
  assert.equal((await rejects(orrery.workflows.run(fails), ExecutionFailed)).execution.error, "ReferenceError");
});

test("an execution gets an event, is cancelled and redriven", async () => {
  const wait = { step_id: "ask", type: "wait", event: { name: "approval", timeout_seconds: 3600 } };
  const { slug } = await orrery.workflows.push(unique("Ask"), { steps: [wait] });
  const { execution_id: first } = await orrery.workflows.trigger(slug);
  assert.ok((await orrery.workflows.sendEvent(first, "approval", { approved: true })).accepted);
  assert.deepEqual((await orrery.workflows.wait(first)).output, { approved: true });
  const { execution_id: second } = await orrery.workflows.trigger(slug);
  assert.equal((await orrery.workflows.cancel(second)).status, "cancelled");
  assert.equal((await orrery.workflows.execution(second)).status, "cancelled");
  const again = await orrery.workflows.redrive(second);
  assert.equal(again.redriven_from, second);
  await orrery.workflows.sendEvent(again.execution_id, "approval", 7);
  assert.equal((await orrery.workflows.wait(again.execution_id)).output, 7);
});

test("a file is uploaded, downloaded and deleted", async () => {
  const bytes = new TextEncoder().encode("some bytes");
  const contents = [bytes, new Blob([bytes]), new File([bytes], "b.txt", { type: "text/plain" })];
  for (const content of contents) {
    const file = await orrery.files.upload(content, { contentType: "text/plain", expiresInSeconds: 3600 });
    assert.deepEqual([file.size, file.content_type], [10, "text/plain"]);
    for (const place of [file.id, file.url]) assert.equal(await (await orrery.files.download(place)).text(), "some bytes");
  }
  const file = await orrery.files.upload(contents[2]);
  assert.equal((await orrery.files.get(file.id)).filename, "b.txt");
  await orrery.files.delete(file.id);
  await orrery.files.delete(file.id);
  assert.equal((await rejects(orrery.files.download(file.id), ApiError)).status, 404);
});

test("every route is reached with its types", async () => {
  const { data } = await orrery.api.GET("/v1/limits");
  assert.ok("queued" in data);
});
