// The npm package replicate against `/replicate/v1`, with only the base URL changed.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import Replicate, { validateWebhook } from "replicate";
import { BASE, KEY, NEAR, SECURE, SECURE_KEY, run } from "./case.mjs";

const client = new Replicate({ auth: KEY, baseUrl: `${BASE}/replicate/v1` });
const secure = new Replicate({ auth: SECURE_KEY, baseUrl: `${SECURE}/replicate/v1` });
const input = { template: "Hello {{ name }}!", values: { name: "Ada" } };
const status = (/** @type {number} */ wanted) => (/** @type {any} */ error) => error.response.status === wanted;

/** @param {AsyncIterable<Uint8Array>} stream */
async function bytes(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}

await run({
  async runModel() {
    assert.equal(await client.run("local/text-template", { input }), "Hello Ada!");
    const version = (await client.models.get("local", "text-template")).latest_version.id;
    assert.equal(await client.run(`local/text-template:${version}`, { input }), "Hello Ada!");
    const seen = [];
    const options = { input, wait: { mode: "poll", interval: 50 } };
    const progress = (/** @type {any} */ prediction) => seen.push(prediction.status);
    assert.equal(await client.run("local/text-template", options, progress), "Hello Ada!");
    assert.equal(seen.at(-1), "succeeded");
    const said = await client.run(`local/${NEAR}`, { input: { prompt: "hello there" }, wait: { mode: "block", timeout: 5 } });
    assert.equal(said, "You said: hello there");
  },
  async predictions() {
    const { id: version } = (await client.models.get("local", "text-template")).latest_version;
    const made = await client.predictions.create({ version, input });
    const done = await client.wait(made, { interval: 50 });
    assert.equal(done.output, "Hello Ada!");
    assert.equal((await client.predictions.get(made.id)).status, "succeeded");
    assert.equal((await client.predictions.cancel(made.id)).status, "succeeded");
    const waited = await client.predictions.create({ model: "local/text-template", input, wait: 5 });
    assert.equal(waited.status, "succeeded");
    const ids = [];
    for await (const page of client.paginate(client.predictions.list)) ids.push(...page.map((one) => one.id));
    assert.ok(ids.includes(made.id) && new Set(ids).size === ids.length);
  },
  async cancel() {
    const made = await client.predictions.create({ model: "local/slow", input: { text: "x" } });
    assert.equal((await client.predictions.cancel(made.id)).status, "canceled");
    assert.equal((await client.wait(made)).status, "canceled");
  },
  async stream() {
    const events = [];
    for await (const event of client.stream(`local/${NEAR}`, { input: { prompt: "hello there" } })) events.push(event);
    assert.equal(events.join(""), "You said: hello there");
    assert.ok(events.length > 2 && events.at(-1).event === "done");
  },
  async files() {
    const file = new File(["abc"], "a.txt", { type: "text/plain" });
    const made = await client.files.create(file, { a: 1 });
    assert.deepEqual([made.name, made.content_type, made.size, made.metadata], ["a.txt", "text/plain", 3, { a: 1 }]);
    assert.equal((await client.files.get(made.id)).etag, made.etag);
    assert.ok((await client.files.list()).results.some((one) => one.id === made.id));
    assert.equal(await (await fetch(made.urls.get)).text(), "abc");
    assert.ok(await client.files.delete(made.id));
    await assert.rejects(client.files.get(made.id), status(404));
  },
  async filesAsInputAndOutput() {
    const png = await bytes(await secure.run("local/image-qr", { input: { text: "Hello", format: "png" } }));
    assert.equal(png.subarray(1, 4).toString(), "PNG");
    const image = new Blob([png], { type: "image/png" });
    const small = await secure.run("local/image-resize", { input: { image, width: 16 } });
    assert.ok((await bytes(small)).length < png.length);
  },
  async models() {
    const names = [];
    for await (const page of client.paginate(client.models.list)) names.push(...page.map((one) => `${one.owner}/${one.name}`));
    assert.ok(names.includes("local/text-template") && names.includes(`local/${NEAR}`), `got ${names}`);
    const { results } = await client.models.versions.list("local", "text-template");
    const version = await client.models.versions.get("local", "text-template", results[0].id);
    assert.equal(version.openapi_schema.components.schemas.Output.type, "string");
    assert.equal((await client.accounts.current()).type, "organization");
  },
  async webhooks() {
    const arrived = [];
    const server = createServer(async (request, response) => {
      const body = (await bytes(request)).toString();
      arrived.push({ headers: request.headers, body });
      response.writeHead(204).end();
      server.emit("arrived");
    });
    await once(server.listen(0, "127.0.0.1"), "listening");
    const webhook = `http://127.0.0.1:${/** @type {any} */ (server.address()).port}/`;
    const options = { model: "local/text-template", input, webhook, webhook_events_filter: ["start", "completed"] };
    const made = await client.predictions.create(options);
    while (arrived.length < 2) await once(server, "arrived");
    server.close();
    const { key } = await client.webhooks.default.secret.get();
    for (const request of arrived) {
      assert.ok(await validateWebhook(request, key));
      assert.ok(!(await validateWebhook({ ...request, body: `${request.body} ` }, key)));
      assert.equal(JSON.parse(request.body).id, made.id);
    }
    const statuses = arrived.map((request) => JSON.parse(request.body).status);
    assert.deepEqual(statuses.sort(), ["processing", "succeeded"]);
  },
  async errors() {
    const wrong = new Replicate({ auth: "smk_wrong", baseUrl: `${BASE}/replicate/v1` });
    await assert.rejects(wrong.models.list(), status(401));
    await assert.rejects(client.models.get("local", "nobody"), status(404));
    await assert.rejects(client.predictions.create({ version: "none", input: {} }), status(422));
    const image = "data:image/png;base64,AAAA";
    await assert.rejects(client.run("local/image-resize", { input: { image, width: 16 } }), /Prediction failed: /);
  },
});
