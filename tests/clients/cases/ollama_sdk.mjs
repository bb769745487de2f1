// ollama of npm, with a key, against the host with Ollama's API.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { FAR, KEY, NEAR, OLLAMA, TINY, VECTORS, run } from "./case.mjs";

const client = new Ollama({ host: OLLAMA, headers: { Authorization: `Bearer ${KEY}` } });
const messages = [{ role: "user", content: "hello there" }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a city",
    parameters: { type: "object", required: ["city"], properties: { city: { type: "string", description: "the city" } } },
  },
};

await run({
  async chat() {
    for (const model of [FAR, NEAR]) {
      const said = await client.chat({ model, messages });
      assert.equal(said.message.content, "You said: hello there");
      assert.equal(said.eval_count, 7);
    }
  },
  async stream() {
    let text = "";
    for await (const part of await client.chat({ model: FAR, messages, stream: true })) text += part.message.content;
    assert.equal(text, "You said: hello there");
  },
  async tools() {
    const said = await client.chat({ model: FAR, messages, tools: [weather] });
    const call = said.message.tool_calls[0].function;
    assert.deepEqual(call, { name: "weather", arguments: { city: "Rome" } });
    const result = { role: "tool", tool_name: "weather", content: "sunny" };
    const done = await client.chat({ model: FAR, messages: [...messages, said.message, result], tools: [weather] });
    assert.equal(done.message.content, "done: sunny");
  },
  async generate() {
    const said = await client.generate({ model: FAR, prompt: "hello", format: "json" });
    assert.deepEqual(JSON.parse(said.response), { name: "Rome", people: 3 });
  },
  async abort() {
    const stream = await client.chat({ model: TINY, messages, stream: true, options: { num_predict: 2000 } });
    await assert.rejects(async () => {
      for await (const _part of stream) stream.abort();
    }, /abort/i);
  },
  async embeddings() {
    assert.deepEqual((await client.embed({ model: VECTORS, input: ["a"] })).embeddings, [[0.5, 0.25]]);
  },
  async models() {
    const names = (await client.list()).models.map((model) => model.name);
    assert.ok(names.includes(NEAR) && names.includes(TINY), `got ${names}`);
    assert.deepEqual((await client.show({ model: VECTORS })).capabilities, ["embedding"]);
  },
  async errors() {
    const status = (wanted) => (/** @type {any} */ error) => error.status_code === wanted && error.error.length > 0;
    await assert.rejects(client.show({ model: "nobody" }), status(404));
    await assert.rejects(client.pull({ model: "llama3" }), status(501));
  },
});
