// The official JavaScript client of OpenAI's API against a service, unchanged but for its `baseURL`:
// the same calls in the same order as in client.py.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(process.env.ORRERY_TEST_MODULES + "/node_modules/openai/index.mjs");
const { default: OpenAI } = await import(folder);

const [chatModel, embeddingModel] = process.argv.slice(2);
const baseURL = process.env.ORRERY_TEST_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.ORRERY_TEST_KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const asked = { model: chatModel, messages };

// A complete answer, and its cost.
let said = await client.chat.completions.create(asked);
assert.equal(said.choices[0].message.content, "Hi!");
assert.equal(said.usage.cost, 0.0043);

// A stream, with its usage at the end.
let text = "";
let usage = null;
const options = { include_usage: true };
for await (const chunk of await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: options,
})) {
  usage = chunk.usage ?? usage;
  for (const choice of chunk.choices) text += choice.delta.content ?? "";
}
assert.equal(text, "one two");
assert.equal(usage.cost, 0.0043);

// A stream without usage.
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  assert.ok(chunk.choices.length, "a usage that nobody asked for");
}

// Tools.
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
said = await client.chat.completions.create({ ...asked, tools });
assert.equal(said.choices[0].message.tool_calls[0].function.arguments, '{"city":"Rome"}');

// An answer constrained by a JSON Schema.
const schema = { type: "object", properties: { name: { type: "string" }, people: { type: "integer" } } };
const format = { type: "json_schema", json_schema: { name: "city", schema } };
said = await client.chat.completions.create({ ...asked, response_format: format });
assert.deepEqual(JSON.parse(said.choices[0].message.content), { name: "Rome", people: 3 });

// Embeddings.
const vectors = await client.embeddings.create({
  model: embeddingModel,
  input: ["a", "b"],
  encoding_format: "float",
});
assert.deepEqual(
  vectors.data.map((item) => item.embedding),
  [
    [0.5, 0.25],
    [1, 0],
  ],
);

// Errors from the model's server.
await assert.rejects(client.chat.completions.create(asked), (error) => {
  assert.ok(error instanceof OpenAI.RateLimitError);
  assert.equal(error.headers.get("retry-after"), "7");
  return error.type === "tokens";
});

// Errors from the service.
await assert.rejects(client.chat.completions.create({ ...asked, messages: [] }), (error) => {
  return error instanceof OpenAI.BadRequestError && error.param === "messages";
});
const stranger = new OpenAI({ baseURL, apiKey: "smk_wrong", maxRetries: 0 });
await assert.rejects(stranger.chat.completions.create(asked), OpenAI.AuthenticationError);

// An aborted stream.
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  assert.equal(chunk.choices[0].delta.content, "one");
  break;
}
