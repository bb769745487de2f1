// @langchain/openai.
import assert from "node:assert/strict";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { BASE, FAR, KEY, VECTORS, run } from "./case.mjs";

const host = { apiKey: KEY, maxRetries: 0, configuration: { baseURL: `${BASE}/v1` } };
const model = new ChatOpenAI({ model: FAR, ...host });

await run({
  async invoke() {
    assert.equal((await model.invoke("hello there")).content, "You said: hello there");
  },
  async stream() {
    let text = "";
    for await (const chunk of await model.stream("hello there")) text += chunk.content;
    assert.equal(text, "You said: hello there");
  },
  async tools() {
    const weather = tool(({ city }) => `sunny in ${city}`, {
      name: "weather",
      description: "The weather of a city",
      schema: z.object({ city: z.string() }),
    });
    const bound = model.bindTools([weather]);
    const messages = [new HumanMessage("how is it?")];
    messages.push(await bound.invoke(messages));
    const [call] = messages.at(-1).tool_calls;
    messages.push(new ToolMessage({ content: await weather.invoke(call.args), tool_call_id: call.id }));
    assert.equal((await bound.invoke(messages)).content, "done: sunny in Rome");
  },
  async structured() {
    const schema = z.object({ name: z.string(), people: z.number() });
    for (const method of ["jsonSchema", "functionCalling"]) {
      assert.deepEqual(await model.withStructuredOutput(schema, { method, name: "city" }).invoke("a city"), { name: "Rome", people: 3 });
    }
  },
  async embeddings() {
    const vectors = await new OpenAIEmbeddings({ model: VECTORS, ...host }).embedDocuments(["a"]);
    assert.deepEqual(vectors, [[0.5, 0.25]]);
  },
});
