// openai of npm: the Responses API.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, FAR, KEY, NEAR, run } from "./case.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY, maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", name: "weather", parameters, strict: true }];

await run({
  async create() {
    for (const model of [FAR, NEAR]) {
      const said = await client.responses.create({ model, input: "hello there" });
      assert.equal(said.output_text, "You said: hello there");
    }
  },
  async stream() {
    const stream = client.responses.stream({ model: FAR, input: "hello there" });
    let text = "";
    stream.on("response.output_text.delta", (event) => (text += event.delta));
    assert.equal((await stream.finalResponse()).output_text, "You said: hello there");
    assert.equal(text, "You said: hello there");
  },
  async tools() {
    const input = [{ role: "user", content: "how is it?" }];
    const said = await client.responses.create({ model: FAR, input, tools });
    const [call] = said.output;
    assert.equal(call.arguments, '{"city": "Rome"}');
    const output = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
    const last = await client.responses.create({ model: FAR, input: [...input, ...said.output, output], tools });
    assert.equal(last.output_text, "done: sunny");
  },
  async parse() {
    const format = zodTextFormat(z.object({ name: z.string(), people: z.number() }), "city");
    const said = await client.responses.parse({ model: FAR, input: "a city", text: { format } });
    assert.deepEqual(said.output_parsed, { name: "Rome", people: 3 });
  },
  async stored() {
    const said = await client.responses.create({ model: FAR, input: "hello there" });
    assert.equal((await client.responses.retrieve(said.id)).output_text, said.output_text);
    const next = await client.responses.create({ model: FAR, input: "and now?", previous_response_id: said.id });
    assert.equal(next.output_text, "You said: and now?");
    const items = await client.responses.inputItems.list(said.id);
    assert.equal(items.data[0].content[0].text, "hello there");
    await client.responses.delete(said.id);
    await assert.rejects(client.responses.retrieve(said.id), OpenAI.NotFoundError);
  },
  async background() {
    let said = await client.responses.create({ model: FAR, input: "hello there", background: true });
    assert.equal(said.status, "queued");
    for (let left = 600; ["queued", "in_progress"].includes(said.status); left -= 1) {
      assert.ok(left > 0, said.status);
      await new Promise((done) => setTimeout(done, 100));
      said = await client.responses.retrieve(said.id);
    }
    assert.equal(said.output_text, "You said: hello there");
    assert.equal((await client.responses.cancel(said.id)).status, "completed");
  },
});
