// ai with @ai-sdk/openai-compatible.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, FAR, KEY, TINY, VECTORS, run } from "./case.mjs";

const provider = createOpenAICompatible({ name: "orrery", baseURL: `${BASE}/v1`, apiKey: KEY, supportsStructuredOutputs: true });
const model = provider(FAR);
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
  async object() {
    const schema = z.object({ name: z.string(), people: z.number() });
    const said = await generateObject({ model, schema, prompt: "a city", maxRetries: 0 });
    assert.deepEqual(said.object, { name: "Rome", people: 3 });
  },
  async embeddings() {
    const said = await embedMany({ model: provider.embeddingModel(VECTORS), values: ["a", "b"], maxRetries: 0 });
    assert.deepEqual(said.embeddings, [
      [0.5, 0.25],
      [0.5, 0.25],
    ]);
  },
  async local_object() {
    const schema = z.object({ part: z.object({ kind: z.enum(["yes", "no"]) }) });
    const said = await generateObject({ model: provider(TINY), schema, prompt: "answer", maxOutputTokens: 200, seed: 2, maxRetries: 0 });
    assert.match(said.object.part.kind, /yes|no/);
  },
});
