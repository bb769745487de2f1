// The requests of n8n's nodes for OpenAI: its chat model with @langchain/openai, and those that n8n sends itself.
import assert from "node:assert/strict";
import { AIMessageChunk, HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import OpenAI from "openai";
import { z } from "zod";
import { BASE, BRUSH, EARS, FAR, KEY, NEAR, VOICE, run } from "./case.mjs";

const PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
  $schema: "http://json-schema.org/draft-07/schema#",
};
const description = "Weather of a city";
const HOST = `${BASE}/openai/v1`;
const headers = { Authorization: `Bearer ${KEY}`, Accept: "application/json" };
const weather = tool(({ city }) => `sunny in ${city}`, { name: "weather", description, schema: z.object({ city: z.string() }) });

// The answer to a request with a JSON object or a form, as in n8n's `requestWithAuthentication`.
async function api(method, path, body, url = HOST) {
  const json = body && !(body instanceof FormData);
  const type = json ? { "Content-Type": "application/json" } : {};
  return await fetch(`${url}${path}`, { method, headers: { ...headers, ...type }, body: json ? JSON.stringify(body) : body });
}

async function ok(...request) {
  const answer = await api(...request);
  if (!answer.ok) assert.fail(`${answer.status}: ${await answer.text()}`);
  return await answer.json();
}

function form(fields, name, content) {
  const form = new FormData();
  for (const [field, value] of Object.entries(fields)) form.append(field, value);
  form.append("file", new Blob([content]), name);
  return form;
}

function respond(content, more) {
  const input = [{ role: "user", content }];
  return { model: FAR, input, parallel_tool_calls: true, store: true, ...more };
}

await run({
  async models() {
    assert.ok((await ok("GET", "/models")).data.some(({ id }) => id === FAR));
    const ids = (await new OpenAI({ baseURL: HOST, apiKey: KEY, maxRetries: 0 }).models.list()).data.map(({ id }) => id);
    assert.ok(ids.includes(NEAR));
  },
  async chat_model() {
    for (const useResponsesApi of [false, true]) {
      const model = new ChatOpenAI({
        apiKey: KEY,
        model: FAR,
        temperature: 0.7,
        timeout: 60000,
        maxRetries: 0,
        configuration: { baseURL: HOST },
        useResponsesApi,
      }).bindTools([weather]);
      const messages = [new SystemMessage("You are a helpful assistant"), new HumanMessage("how is it?")];
      for (const expected of [1, 0]) {
        let said = new AIMessageChunk("");
        for await (const chunk of await model.stream(messages)) said = said.concat(chunk);
        assert.equal(said.tool_calls.length, expected);
        messages.push(said);
        for (const call of said.tool_calls) {
          messages.push(new ToolMessage({ content: await weather.invoke(call.args), tool_call_id: call.id, name: call.name }));
        }
      }
      assert.equal(messages.at(-1).text, "done: sunny in Rome");
    }
  },
  async message() {
    const tools = [{ type: "function", function: { name: "weather", description, parameters } }];
    const messages = [{ role: "user", content: "how is it?" }];
    const first = await ok("POST", "/chat/completions", { model: FAR, messages, tools, max_tokens: 64, n: 1 });
    const [{ message }] = first.choices;
    const [call] = message.tool_calls;
    messages.push(message, { tool_call_id: call.id, role: "tool", name: "weather", content: "sunny" });
    const last = await ok("POST", "/chat/completions", { model: FAR, messages, tools });
    assert.equal(last.choices[0].message.content, "done: sunny");
  },
  async response() {
    const tools = [{ type: "function", name: "weather", parameters, strict: true, description }];
    for (const model of [FAR, NEAR]) {
      const body = respond([{ type: "input_text", text: "how is it?" }], { model, instructions: "Be nice.", max_output_tokens: 64, tools });
      const { output } = await ok("POST", "/responses", body);
      for (const item of output) {
        body.input.push(item);
        if (item.type === "function_call") body.input.push({ type: "function_call_output", call_id: item.call_id, output: "sunny" });
      }
      const last = await ok("POST", "/responses", body);
      assert.equal(last.output.at(-1).content[0].text, "done: sunny");
    }
  },
  async response_formats() {
    const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"], additionalProperties: false };
    for (const [format, expected] of [
      [{ type: "json_schema", name: "city", schema }, { name: "Rome" }],
      [{ type: "json_object" }, { name: "Rome", people: 3 }],
    ]) {
      const said = await ok("POST", "/responses", respond([{ type: "input_text", text: "a city in JSON" }], { text: { format } }));
      assert.deepEqual(JSON.parse(said.output[0].content[0].text), expected);
    }
  },
  async response_in_background() {
    let said = await ok("POST", "/responses", respond([{ type: "input_text", text: "hello there" }], { background: true }));
    for (let left = 600; ["queued", "in_progress"].includes(said.status); left -= 1) {
      assert.ok(left > 0, said.status);
      await new Promise((done) => setTimeout(done, 100));
      said = await ok("GET", `/responses/${said.id}`);
    }
    assert.equal(said.output[0].content[0].text, "You said: hello there");
  },
  async image_analysis() {
    const content = [
      { type: "input_text", text: "What is this?" },
      { type: "input_image", image_url: PIXEL, detail: "auto" },
    ];
    const said = await ok("POST", "/responses", respond(content, { max_output_tokens: 300 }));
    assert.equal(said.output[0].content[0].text, "You said: What is this?");
  },
  async files() {
    for (const purpose of ["assistants", "fine-tune"]) {
      const made = await ok("POST", "/files", form({ purpose }, "a.jsonl", "{}\n"));
      assert.deepEqual([made.object, made.purpose, made.filename, made.bytes], ["file", purpose, "a.jsonl", 3]);
      const listed = await ok("GET", `/files?purpose=${purpose}`);
      assert.ok(listed.data.some(({ id }) => id === made.id));
      assert.equal((await ok("DELETE", `/files/${made.id}`)).deleted, true);
    }
  },
  async images() {
    for (const model of [FAR, BRUSH]) {
      const body = { prompt: "a cat", model, response_format: "b64_json", size: "1024x1024", quality: "standard", style: "vivid", n: 1 };
      const { data } = await ok("POST", "/images/generations", body);
      assert.equal(Buffer.from(data[0].b64_json, "base64").toString(), "a cat");
      const made = await ok("POST", "/images/generations", { ...body, response_format: "url" });
      assert.equal(await (await fetch(made.data[0].url)).text(), "a cat");
    }
  },
  async audio() {
    for (const model of [FAR, VOICE]) {
      const said = await api("POST", "/audio/speech", { model, input: "Hello", voice: "alloy", response_format: "mp3", speed: 1 });
      assert.equal(await said.text(), "ID3Hello");
    }
    const fields = { model: EARS, language: "en", temperature: "0.5" };
    const said = await ok("POST", "/audio/transcriptions", form(fields, "a.mp3", "abc"));
    assert.equal(said.text, "transcriptions of a.mp3:3");
  },
  async moderations() {
    const body = { input: "hello there", model: "text-moderation-latest" };
    for (const url of [HOST, `${BASE}/v1`]) {
      const answer = await api("POST", "/moderations", body, url);
      assert.equal(answer.status, 404);
      const said = await answer.json();
      assert.equal(said.error.type, "invalid_request_error", JSON.stringify(said));
    }
  },
});
