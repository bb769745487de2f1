// The official JavaScript client of OpenAI's API against local models, like local.py.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(process.env.ORRERY_TEST_MODULES + "/node_modules/openai/index.mjs");
const { default: OpenAI } = await import(folder);

const [chatModel, embeddingModel] = process.argv.slice(2);
const client = new OpenAI({
  baseURL: process.env.ORRERY_TEST_URL,
  apiKey: process.env.ORRERY_TEST_KEY,
  maxRetries: 0,
});
const asked = {
  model: chatModel,
  messages: [{ role: "user", content: "hello" }],
  max_tokens: 20,
  seed: 5,
};

let said = await client.chat.completions.create(asked);
const whole = said.choices[0].message.content;
let text = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.equal(text, whole);

const parameters = {
  type: "object",
  properties: { city: { enum: ["Rome", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters } }];
said = await client.chat.completions.create({
  ...asked,
  max_tokens: 300,
  tools,
  tool_choice: "required",
});
const call = said.choices[0].message.tool_calls[0];
assert.ok(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));

const schema = {
  type: "object",
  properties: { large: { type: "boolean" } },
  required: ["large"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "city", schema } };
said = await client.chat.completions.create({ ...asked, max_tokens: 300, response_format: format });
assert.equal(typeof JSON.parse(said.choices[0].message.content).large, "boolean");

const vectors = await client.embeddings.create({ model: embeddingModel, input: "a cat" });
assert.equal(vectors.data[0].embedding.length, 384);

const endless = [{ role: "user", content: "x".repeat(10000) }];
await assert.rejects(client.chat.completions.create({ ...asked, messages: endless }), (error) => {
  return error.code === "context_length_exceeded" && error.param === "messages";
});

for await (const _ of await client.chat.completions.create({
  ...asked,
  max_tokens: 1900,
  stream: true,
})) {
  break;
}
