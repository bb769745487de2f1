// The vendor's own package @eachlabs/aiflow, unchanged but for the addresses.
import assert from "node:assert/strict";
import Each from "@eachlabs/aiflow";
import { BASE, FLOWS, KEY, WORKFLOWS, run } from "./case.mjs";

const each = new Each({ auth: KEY, apiBaseUrl: `${BASE}/v1`, flowBaseUrl: `${FLOWS}/api/v1` });
const body = { model: "text-language", version: "0.0.1", input: { text: "What a beautiful night it is!" } };

await run({
  async create() {
    const made = await each.prediction.create(body);
    let got = made;
    for (let asked = 0; asked < 500 && !["success", "error"].includes(got.status); asked += 1) {
      got = await each.prediction.get(made.predictionID);
    }
    assert.equal(got.status, "success");
  },
  async run() {
    const done = await each.prediction.run(body);
    assert.equal(done.status, "success");
  },
  async flows() {
    const pass = { name: "Flow", description: "x", definition: { steps: [{ step_id: "p", type: "pass", result: 1 }] } };
    const headers = { "X-API-Key": KEY };
    const made = await fetch(`${WORKFLOWS}/api/v1/workflows`, { method: "POST", headers, body: JSON.stringify(pass) });
    const { workflow_id: id } = await made.json();
    assert.ok((await each.flow.list()).flows.some((flow) => flow.id === id));
    assert.equal((await each.flow.get(id)).name, "Flow");
    await fetch(`${WORKFLOWS}/api/v1/${id}/trigger`, { method: "POST", headers, body: "{}" });
    assert.equal((await each.flow.executions(id)).executions.length, 1);
  },
});
