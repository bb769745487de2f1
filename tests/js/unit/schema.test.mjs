// Tests of how static/schema.js interprets a JSON Schema.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  DEPTH_MAX,
  MOMENTS,
  couldBe,
  example,
  initial,
  isNullable,
  kindOf,
  propertiesOf,
  resolve,
  typesOf,
} from "../../../static/schema.js";

test("references are followed, with what is beside them on top", () => {
  const root = { $defs: { "a/b": { $ref: "#/$defs/c" }, c: { type: "string", title: "C" } } };
  assert.deepEqual(resolve({ $ref: "#/$defs/a~1b", title: "Mine" }, root), { type: "string", title: "Mine" });
});

test("a reference to itself, to nothing or to another document stays", () => {
  const root = { $defs: { loop: { $ref: "#/$defs/loop" } } };
  assert.equal(kindOf(resolve({ $ref: "#/$defs/loop" }, root), 0), "json");
  assert.deepEqual(resolve({ $ref: "#/$defs/none" }, root), { $ref: "#/$defs/none" });
  assert.deepEqual(resolve({ $ref: "https://example.com/x" }, root), { $ref: "https://example.com/x" });
});

for (const [schema, kind] of [
  [{ const: 1 }, "const"],
  [{ enum: [1, "a"], type: "string" }, "enum"],
  [{ type: "boolean" }, "boolean"],
  [{ type: ["integer", "null"] }, "integer"],
  [{ type: "number" }, "number"],
  [{ type: "string" }, "text"],
  [{ type: ["string", "number"] }, "json"],
  [{ anyOf: [{ type: "string" }] }, "choice"],
  [{ allOf: [{}], type: "string" }, "json"],
  [{ type: "array", items: { type: "string" } }, "list"],
  [{ type: "array" }, "json"],
  [{ properties: { a: {} } }, "object"],
  [{ type: "object" }, "json"],
  [{}, "json"],
  [true, "json"],
]) {
  test(`the field of ${JSON.stringify(schema)} is ${kind}`, () => assert.equal(kindOf(schema, 0), kind));
}

test("what is nested too deep is a JSON field", () => {
  assert.equal(kindOf({ type: "string" }, DEPTH_MAX), "text");
  assert.equal(kindOf({ type: "string" }, DEPTH_MAX + 1), "json");
});

test("null is no type of its own", () => {
  assert.deepEqual(typesOf({ type: ["string", "null"] }), ["string"]);
  assert.ok(isNullable({ type: ["string", "null"] }) && isNullable({ nullable: true }));
  assert.ok(!isNullable({ type: "string" }) && !isNullable(null));
});

test("properties keep their order unless x-order says another", () => {
  const names = (properties) => propertiesOf({ properties }).map(([name]) => name);
  assert.deepEqual(names({ c: {}, b: { "x-order": 1 }, a: { "x-order": 0 }, d: {} }), ["a", "b", "c", "d"]);
  assert.deepEqual(propertiesOf(null), []);
});

test("a form begins with defaults and constants, and without optional fields", () => {
  const schema = {
    type: "object",
    required: ["kind", "inner"],
    properties: {
      kind: { const: "x" },
      size: { type: "integer", default: 3 },
      note: { type: "string" },
      inner: { type: "object", required: ["y"], properties: { y: { type: "string" } } },
      other: { type: "object", properties: { z: { type: "string" } } },
    },
  };
  assert.deepEqual(initial(schema, schema), { kind: "x", size: 3, inner: {} });
  assert.equal(initial({ type: "string", default: "" }, {}), "");
});

test("a required box begins as it looks: not checked", () => {
  const schema = {
    required: ["sure", "nested"],
    properties: {
      sure: { type: "boolean" },
      loud: { type: "boolean" },
      set: { type: "boolean", default: true },
      nested: { required: ["deep"], properties: { deep: { type: ["boolean", "null"] }, other: { type: "boolean" } } },
    },
  };
  assert.deepEqual(initial(schema, schema), { sure: false, set: true, nested: { deep: false } });
});

for (const [format, text, shown] of [
  ["date-time", "2026-11-26T12:30:05Z", "2026-11-26T12:30:05"],
  ["date-time", "2026-11-26T12:30:05.678+02:00", "2026-11-26T10:30:05"],
  ["date-time", "0002-01-01T00:00:00Z", "0002-01-01T00:00:00"],
  ["date-time", "+012026-01-01T00:00:00Z", undefined],
  ["date-time", "{{inputs.day}}", undefined],
  ["date", "2026-11-26", "2026-11-26"],
  ["date", "12026-11-26", undefined],
  ["time", "12:30", "12:30"],
  ["time", "12:30:05.5+02:00", "12:30:05"],
  ["time", "noon", undefined],
]) {
  test(`the field of the ${format} ${text} shows ${shown}`, () => assert.equal(MOMENTS[format].shown(text), shown));
}

test("what a field shows becomes the text of its format, whatever was typed", () => {
  assert.equal(MOMENTS["date-time"].text("2026-11-26T12:30", ""), "2026-11-26T12:30:00.000Z");
  assert.equal(MOMENTS["date-time"].text("12026-01-01T00:00", ""), "12026-01-01T00:00");
  assert.equal(MOMENTS.date.text("2026-11-26", ""), "2026-11-26");
  assert.equal(MOMENTS.time.text("12:30", ""), "12:30:00+00:00");
  assert.equal(MOMENTS.time.text("12:30:05", "01:00:00-05:00"), "12:30:05-05:00");
});

test("an example is an object", () => {
  assert.deepEqual(example({ examples: [{ a: 1 }, { a: 2 }] }), { a: 1 });
  assert.deepEqual(example({ example: { a: 3 } }), { a: 3 });
  assert.equal(example({ examples: ["text"] }), null);
  assert.equal(example(undefined), null);
});

test("a value is matched by constant, choice, type and required members", () => {
  assert.ok(couldBe("a", { const: "a" }, {}));
  assert.ok(!couldBe("b", { enum: ["a"] }, {}));
  assert.ok(couldBe(3, { type: "integer" }, {}) && !couldBe(3.5, { type: "integer" }, {}));
  assert.ok(couldBe(null, { type: ["null", "string"] }, {}) && !couldBe(null, { type: "string" }, {}));
  assert.ok(couldBe({ a: 1 }, { type: "object", required: ["a"] }, {}) && !couldBe({}, { type: "object", required: ["a"] }, {}));
  assert.ok(couldBe({ a: 1 }, { $ref: "#/o" }, { o: { type: "object" } }));
});
