// Tests of parsers: JSON errors, imports, server-sent events, and texts of the editor's fields.

import assert from "node:assert/strict";
import { test } from "node:test";

import { faultAt } from "../../../static/json.js";
import { csvOf } from "../../../static/screens/balance.js";
import { eventsOf } from "../../../static/stream.js";
import { nextVersion, readImport } from "../../../static/workflows/service.js";
import { matching, textOf, valueOf } from "../../../static/workflows/text.js";

/** @type {[string, number][]} */
const FAULTS = [
  ["", 0],
  ["{", 1],
  ['{"a" 1}', 5],
  ['{"a": 1,}', 8],
  ["[1, 2,]", 6],
  ["[1 2]", 3],
  ["[01]", 1],
  ["[1.]", 1],
  ['["a\nb"]', 1],
  ['["\\x"]', 1],
  ["{'a': 1}", 1],
  ["nulls", 0],
  ["[1]]", 3],
  ["[}", 1],
  ["{a: 1}", 1],
];
for (const [text, at] of FAULTS) {
  test(`the error of ${JSON.stringify(text)} is at ${at}`, () => {
    assert.throws(() => JSON.parse(text));
    assert.equal(faultAt(text), at);
  });
}

test("valid JSON has its error behind its end", () => {
  for (const text of ['{"a": [1, -2.5e+3, "\\u00e9", null, {}], "b": []}', "true", ' "x" ', "0"]) {
    assert.doesNotThrow(() => JSON.parse(text));
    assert.equal(faultAt(text), text.length);
  }
});

test("an import that is no workflow names its problem", () => {
  assert.match(readImport("{").problem, /^This is not JSON: /);
  assert.equal(readImport("[]").problem, "A workflow is an object.");
  assert.equal(readImport("{}").problem, "There are no steps in it.");
});

test("an export is imported whole, with or without its envelope", () => {
  const workflow = { name: "N", description: "D", tags: ["t"], id: "left out", definition: { steps: [{}, {}] } };
  const expected = { kind: "whole", steps: 2, body: { name: "N", description: "D", tags: ["t"], definition: workflow.definition } };
  assert.deepEqual(readImport(JSON.stringify(workflow)), expected);
  assert.deepEqual(readImport(JSON.stringify({ workflow })), expected);
});

test("a bare definition gets a description and loses unknown members", () => {
  const found = readImport('{"steps": [{"type": "pass"}], "input_schema": {}, "color": 1}');
  assert.deepEqual(found, {
    kind: "definition",
    steps: 1,
    body: { name: "", description: "Imported", definition: { input_schema: {}, steps: [{ type: "pass" }] } },
  });
});

test("a legacy drawing keeps its nodes as text", () => {
  const found = readImport('{"name": "L", "steps": [{"model_slug": "m"}], "nodes_json": [1], "edges_json": "[]", "inputs": null}');
  assert.equal(found.kind, "legacy");
  assert.deepEqual(found.body, { name: "L", description: "Imported", steps: [{ model_slug: "m" }], nodes_json: "[1]", edges_json: "[]" });
});

test("the next version is above every number and taken by none", () => {
  const versions = (...ids) => ids.map((version_id) => ({ version_id }));
  assert.equal(nextVersion(versions()), "v1");
  assert.equal(nextVersion(versions("v1", "v7")), "v8");
  assert.equal(nextVersion(versions("first", "second")), "v3");
  assert.equal(nextVersion(versions("v9999999999")), "v2");
});

async function read(...parts) {
  const bytes = parts.map((part) => (typeof part === "string" ? new TextEncoder().encode(part) : part));
  const body = new ReadableStream({
    start(controller) {
      for (const part of bytes) controller.enqueue(part);
      controller.close();
    },
  });
  const events = [];
  for await (const event of eventsOf({ body })) events.push(event);
  return events;
}

test("events are read across the borders of parts, and comments are skipped", async () => {
  assert.deepEqual(await read("id: 1\nda", "ta: a\n\n: ping\n\ndata:b\n", "\ndata: cut off"), [
    { id: "1", data: "a" },
    { id: "1", data: "b" },
  ]);
});

test("a letter that two parts share is whole", async () => {
  const bytes = new TextEncoder().encode("data: é\n");
  assert.deepEqual(await read(bytes.slice(0, 7), bytes.slice(7)), [{ id: null, data: "é" }]);
});

test("the ledger as CSV has a line for each entry and no word for a missing run", () => {
  const entries = [
    { created_at: "2026-11-20T10:00:00Z", kind: "charge", amount_usd: -0.000001, execution_id: "e1" },
    { created_at: "2026-11-19T10:00:00Z", kind: "top_up", amount_usd: 5, execution_id: null },
  ];
  assert.equal(
    csvOf(entries),
    "created_at,kind,amount_usd,execution_id\n2026-11-20T10:00:00Z,charge,-0.000001,e1\n2026-11-19T10:00:00Z,top_up,5,\n",
  );
  assert.equal(csvOf([]), "created_at,kind,amount_usd,execution_id\n");
});

test("a field shows a value so that reading it back gives the same", () => {
  for (const value of ["plain", "12", "true", '"quoted"', "{{a.output}}", 12, false, null, { a: [1] }, [], " 5 "]) {
    assert.deepEqual(valueOf(textOf(value, false), false), value);
  }
  assert.equal(textOf("12", false), '"12"');
  assert.equal(textOf("12", true), "12");
  assert.equal(valueOf("12", true), "12");
  assert.equal(valueOf("  ", false), undefined);
  assert.equal(textOf(undefined, false), "");
  assert.equal(textOf(null, true), "");
});

test("the search for references puts those that begin with the text first", () => {
  const offers = ["mood.output", "inputs.mood", "each.output", "MOOD"].map((text) => ({ text }));
  assert.deepEqual(
    matching(offers, "mo").map(({ text }) => text),
    ["mood.output", "MOOD", "inputs.mood"],
  );
  assert.deepEqual(matching(offers, "mood.output"), []);
  assert.equal(
    matching(
      Array.from({ length: 50 }, (_, at) => ({ text: `a${at}` })),
      "",
    ).length,
    12,
  );
});
