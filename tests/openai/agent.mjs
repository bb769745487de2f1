// The official client of OpenAI's API for JavaScript against the agent's host, unchanged but for its `baseURL`.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(process.env.ORRERY_TEST_MODULES + "/node_modules/openai/index.mjs");
const { default: OpenAI } = await import(folder);

const client = new OpenAI({
  baseURL: process.env.ORRERY_TEST_URL,
  apiKey: process.env.ORRERY_TEST_KEY,
  maxRetries: 0,
});
const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ["orrery/beta"]);

const messages = [{ role: "user", content: "make a QR code" }];
let text = "";
const types = [];
const stream = await client.chat.completions.create({
  model: models[0],
  messages,
  stream: true,
  session_id: "node",
});
for await (const chunk of stream) {
  types.push(chunk.type);
  text += chunk.choices[0].delta.content ?? "";
}
assert.deepEqual(types, ["tool_call", "execution_progress", "execution_progress", "generation_response", "message", "complete"]);
assert.equal(text, "Here it is.");

const said = await client.chat.completions.create({
  model: models[0],
  messages,
  stream: false,
  session_id: "node",
});
assert.equal(said.choices[0].message.content, "Here it is.");
assert.equal(said.session_id, "node");
