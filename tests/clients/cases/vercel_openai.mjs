// ai with @ai-sdk/openai in its default mode, the Responses API.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, FAR, KEY, run } from "./case.mjs";

const model = createOpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY })(FAR);
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});

await run({
  async text() {
    assert.equal((await generateText({ model, prompt: "hello there", maxRetries: 0 })).text, "You said: hello there");
  },
  async stream() {
    let text = "";
    for await (const part of streamText({ model, prompt: "hello there", maxRetries: 0 }).textStream) text += part;
    assert.equal(text, "You said: hello there");
  },
  async tools() {
    const said = await generateText({ model, prompt: "how is it?", tools: { weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
    assert.match(said.text, /^done: .*sunny in Rome/);
  },
  async tools_in_stream() {
    const said = streamText({ model, prompt: "how is it?", tools: { weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
    assert.match(await said.text, /^done: .*sunny in Rome/);
  },
  async object() {
    const schema = z.object({ name: z.string(), people: z.number() });
    const said = await generateObject({ model, schema, prompt: "a city", maxRetries: 0 });
    assert.deepEqual(said.object, { name: "Rome", people: 3 });
  },
  async unstored() {
    const providerOptions = { openai: { store: false } };
    const said = await generateText({
      model,
      prompt: "how is it?",
      tools: { weather },
      stopWhen: stepCountIs(3),
      maxRetries: 0,
      providerOptions,
    });
    assert.match(said.text, /^done: .*sunny in Rome/);
  },
});
