// ai with @ai-sdk/anthropic.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, FAR, KEY, run } from "./case.mjs";

const provider = createAnthropic({ baseURL: `${BASE}/v1`, apiKey: KEY });
const model = provider(FAR);
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const schema = z.object({ name: z.string(), people: z.number() });
const once = { maxRetries: 0, maxOutputTokens: 2048 };

await run({
  async text() {
    for (const name of [FAR, "claude-opus-9"]) {
      const said = await generateText({ model: provider(name), system: "Be nice.", prompt: "hello there", ...once });
      assert.equal(said.text, "You said: hello there");
      assert.deepEqual([said.finishReason, said.usage.inputTokens, said.usage.outputTokens], ["stop", 5, 7]);
    }
  },
  async stream() {
    const said = streamText({ model, prompt: "hello there", ...once });
    let text = "";
    for await (const part of said.textStream) text += part;
    assert.equal(text, "You said: hello there");
    assert.equal((await said.usage).outputTokens, 7);
  },
  async tools() {
    const said = await generateText({ model, prompt: "how is it?", tools: { weather }, stopWhen: stepCountIs(3), ...once });
    assert.match(said.text, /^done: .*sunny in Rome/);
  },
  async tools_in_stream() {
    const said = streamText({ model, prompt: "how is it?", tools: { weather }, stopWhen: stepCountIs(3), ...once });
    assert.match(await said.text, /^done: .*sunny in Rome/);
  },
  async object() {
    for (const name of [FAR, "claude-opus-4-5"]) {
      const said = await generateObject({ model: provider(name), schema, prompt: "a city", ...once });
      assert.deepEqual(said.object, { name: "Rome", people: 3 });
    }
  },
  async object_in_stream() {
    const said = streamObject({ model, schema, prompt: "a city", ...once });
    let last;
    for await (const part of said.partialObjectStream) last = part;
    assert.deepEqual(last, await said.object);
    assert.deepEqual(last, { name: "Rome", people: 3 });
  },
  async thinking() {
    const providerOptions = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } };
    const said = await generateText({ model, prompt: "think about it", providerOptions, ...once });
    assert.deepEqual([said.reasoningText, said.text], ["hm, hm", "You said: think about it"]);
  },
});
