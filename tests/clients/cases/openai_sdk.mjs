// openai of npm.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, FAR, KEY, NEAR, TINY, VECTORS, run } from "./case.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "hello there" }];
const City = z.object({ name: z.string(), people: z.number() });

await run({
  async chat() {
    for (const model of [FAR, NEAR]) {
      const said = await client.chat.completions.create({ model, messages });
      assert.equal(said.choices[0].message.content, "You said: hello there");
    }
  },
  async stream() {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model: FAR, messages, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
    assert.equal(text, "You said: hello there");
  },
  async tools() {
    const runner = client.chat.completions.runTools({
      model: FAR,
      messages,
      tools: [
        {
          type: "function",
          function: {
            name: "weather",
            parse: JSON.parse,
            function: ({ city }) => `sunny in ${city}`,
            parameters: { type: "object", properties: { city: { type: "string" } } },
          },
        },
      ],
    });
    assert.equal(await runner.finalContent(), "done: sunny in Rome");
  },
  async parse() {
    const said = await client.chat.completions.parse({ model: FAR, messages, response_format: zodResponseFormat(City, "city") });
    assert.deepEqual(said.choices[0].message.parsed, { name: "Rome", people: 3 });
  },
  async embeddings() {
    const vectors = await client.embeddings.create({ model: VECTORS, input: ["a"] });
    assert.deepEqual(vectors.data[0].embedding, [0.5, 0.25]);
  },
  async models() {
    const ids = (await client.models.list()).data.map((model) => model.id);
    assert.ok(ids.includes(NEAR) && ids.includes(TINY), `got ${ids}`);
  },
  async local() {
    const said = await client.chat.completions.create({ model: TINY, messages, max_tokens: 8 });
    assert.ok(said.usage.completion_tokens <= 8);
  },
  async errors() {
    const wrong = client.withOptions({ apiKey: "smk_wrong" });
    await assert.rejects(wrong.chat.completions.create({ model: FAR, messages }), OpenAI.AuthenticationError);
    await assert.rejects(client.chat.completions.create({ model: FAR, messages: [] }), OpenAI.BadRequestError);
  },
  async completions() {
    const said = await client.completions.create({ model: FAR, prompt: "one" });
    assert.equal(said.choices[0].text, "after one");
    let text = "";
    for await (const chunk of await client.completions.create({ model: FAR, prompt: "one", stream: true })) {
      text += chunk.choices[0]?.text ?? "";
    }
    assert.equal(text, "after one");
  },
  async place() {
    const client = new OpenAI({ baseURL: `${BASE}/openai/v1`, apiKey: KEY, maxRetries: 0 });
    const ids = (await client.models.list()).data.map((model) => model.id);
    assert.ok(ids.includes(NEAR) && ids.includes(TINY), `got ${ids}`);
    const said = await client.chat.completions.create({ model: FAR, messages });
    assert.equal(said.choices[0].message.content, "You said: hello there");
    const wrong = client.withOptions({ apiKey: "smk_wrong" });
    const isRefused = (/** @type {any} */ error) => error instanceof OpenAI.AuthenticationError && error.code === "invalid_api_key";
    await assert.rejects(wrong.models.list(), isRefused);
    await assert.rejects(client.moderations.create({ input: "x" }), OpenAI.NotFoundError);
  },
});
