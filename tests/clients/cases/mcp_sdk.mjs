// @modelcontextprotocol/sdk as a client of `/mcp`.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { AGENT, KEY, run } from "./case.mjs";

const client = new Client({ name: "test", version: "1.0.0" });
const headers = { Authorization: `Bearer ${KEY}` };

await run({
  async connect() {
    await client.connect(new StreamableHTTPClientTransport(new URL(`${AGENT}/mcp`), { requestInit: { headers } }));
    assert.equal(client.getServerVersion().name, "orrery");
  },
  async list() {
    const names = [];
    let cursor;
    do {
      const page = await client.listTools({ cursor });
      names.push(...page.tools.map((tool) => tool.name));
      cursor = page.nextCursor;
    } while (cursor);
    assert.ok(names.includes("model_text-language"), `got ${names}`);
  },
  async call() {
    const made = await client.callTool({ name: "model_text-language", arguments: { text: "What a beautiful night it is!" } });
    assert.ok(!made.isError && JSON.stringify(made).includes("en"), JSON.stringify(made));
    assert.ok((await client.callTool({ name: "model_text-language", arguments: {} })).isError);
  },
  async at_once() {
    const call = () => client.callTool({ name: "model_text-language", arguments: { text: "What a beautiful night it is!" } });
    for (const made of await Promise.all(Array.from({ length: 20 }, call))) assert.ok(!made.isError, JSON.stringify(made));
    await client.close();
  },
});
