// openai of npm: audio and images.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import { BASE, BRUSH, EARS, FAR, KEY, VOICE, run } from "./case.mjs";

const clients = ["/v1", "/openai/v1"].map((place) => new OpenAI({ baseURL: `${BASE}${place}`, apiKey: KEY, maxRetries: 0 }));
const said = "transcriptions of a.wav:300000";
const audio = () => toFile(Buffer.alloc(300_000, "x"), "a.wav");

await run({
  async transcriptions() {
    for (const client of clients) {
      for (const model of [FAR, EARS]) {
        const whole = await client.audio.transcriptions.create({ model, file: await audio() });
        assert.equal(whole.text, said);
        let text = "";
        for await (const event of await client.audio.transcriptions.create({ model, file: await audio(), stream: true })) {
          text += event.type === "transcript.text.delta" ? event.delta : "";
        }
        assert.equal(text, said);
      }
    }
  },
  async speech() {
    for (const client of clients) {
      for (const model of [FAR, VOICE]) {
        const spoken = await client.audio.speech.create({ model, voice: "alloy", input: "Hello" });
        assert.equal(await spoken.text(), "ID3Hello");
      }
    }
  },
  async images() {
    for (const client of clients) {
      for (const model of [FAR, BRUSH]) {
        const made = await client.images.generate({ model, prompt: "a cat", response_format: "url" });
        assert.equal(await (await fetch(made.data[0].url)).text(), "a cat");
        const image = [await toFile(Buffer.from("one"), "a.png"), await toFile(Buffer.from("three"), "b.png")];
        const edited = await client.images.edit({ model, prompt: "a hat", image });
        assert.equal(Buffer.from(edited.data[0].b64_json, "base64").toString(), "a hat a.png:3 b.png:5");
      }
    }
  },
});
