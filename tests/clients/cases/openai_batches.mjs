// openai of npm: files with a purpose, and batches.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import { BASE, FAR, KEY, run } from "./case.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY, maxRetries: 0 });

await run({
  async batches() {
    const url = "/v1/chat/completions";
    const body = { model: FAR, messages: [{ role: "user", content: "hello there" }] };
    const line = JSON.stringify({ custom_id: "a", method: "POST", url, body });
    const file = await client.files.create({ file: await toFile(Buffer.from(line), "in.jsonl"), purpose: "batch" });
    assert.equal(file.purpose, "batch");
    let batch = await client.batches.create({ input_file_id: file.id, endpoint: url, completion_window: "24h" });
    for (let left = 600; batch.status !== "completed"; left -= 1) {
      assert.ok(left > 0, batch.status);
      await new Promise((done) => setTimeout(done, 100));
      batch = await client.batches.retrieve(batch.id);
    }
    const answered = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
    assert.equal(answered.response.body.choices[0].message.content, "You said: hello there");
    const listed = [];
    for await (const one of client.batches.list()) listed.push(one.id);
    assert.ok(listed.includes(batch.id));
  },
});
