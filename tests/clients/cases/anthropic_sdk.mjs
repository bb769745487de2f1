// @anthropic-ai/sdk of npm.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { BASE, FAR, KEY, NEAR, TINY, VECTORS, run } from "./case.mjs";

const client = new Anthropic({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "hello there" }];
const hello = { model: FAR, max_tokens: 64, messages };
const input_schema = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ name: "weather", input_schema }];

await run({
  async messages() {
    for (const model of [FAR, NEAR, "claude-opus-9"]) {
      const said = await client.messages.create({ ...hello, model });
      assert.deepEqual([said.model, said.stop_reason], [model, "end_turn"]);
      assert.equal(said.content[0].text, "You said: hello there");
    }
  },
  async stream() {
    let text = "";
    const stream = client.messages.stream(hello).on("text", (part) => (text += part));
    const said = await stream.finalMessage();
    assert.equal(text, "You said: hello there");
    assert.equal(said.usage.output_tokens, 7);
  },
  async tools() {
    const said = await client.messages.create({ ...hello, tools });
    const call = said.content[0];
    assert.deepEqual([said.stop_reason, call.input], ["tool_use", { city: "Rome" }]);
    const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
    const turns = [...messages, { role: "assistant", content: said.content }, { role: "user", content: [result] }];
    const done = await client.messages.create({ ...hello, messages: turns, tools });
    assert.equal(done.content[0].text, "done: sunny");
    const streamed = await client.messages.stream({ ...hello, tools }).finalMessage();
    assert.deepEqual(streamed.content[0].input, { city: "Rome" });
  },
  async thinking() {
    const think = [{ role: "user", content: "think about it" }];
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const stream = client.messages.stream({ model: FAR, max_tokens: 2048, messages: think, thinking });
    const said = await stream.finalMessage();
    assert.equal(said.content[0].thinking, "hm, hm");
    assert.equal(said.content[1].type, "text");
  },
  async count_tokens() {
    assert.ok((await client.messages.countTokens({ model: TINY, messages })).input_tokens > 0);
  },
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.ok(ids.includes(NEAR) && ids.includes(FAR) && !ids.includes(VECTORS), `got ${ids}`);
    assert.equal((await client.models.retrieve(NEAR)).id, NEAR);
  },
  async errors() {
    const wrong = client.withOptions({ apiKey: "smk_wrong" });
    const fail = [{ role: "user", content: "fail with 429" }];
    await assert.rejects(wrong.messages.create(hello), Anthropic.AuthenticationError);
    await assert.rejects(client.messages.create({ ...hello, messages: [] }), Anthropic.BadRequestError);
    await assert.rejects(client.models.retrieve("nobody"), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create({ ...hello, messages: fail }), Anthropic.RateLimitError);
  },
});
