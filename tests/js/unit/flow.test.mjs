// Tests of static/workflows/flow.js: locations, references, order, and differences between definitions.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  blocksOf,
  changed,
  differences,
  idOf,
  offersAt,
  partsOf,
  pointer,
  problemsByStep,
  renamed,
  renamedInput,
  rootsOf,
  subjectOf,
  valueAt,
  waitsOf,
  walk,
  withStep,
} from "../../../static/workflows/flow.js";

const model = (step_id, params = {}, more = {}) => ({ step_id, type: "model", model: "m", params, ...more });

const DEFINITION = {
  input_schema: { properties: { text: { title: "The text" }, "a b": {} } },
  steps: [
    model("mood", { text: "{{inputs.text}}" }),
    { step_id: "each", type: "map", items: "{{mood.output}}", item_name: "one", steps: [model("inner", { x: "{{one}}" }), model("last")] },
    { step_id: "ok", type: "wait", event: { name: "approval" } },
    { step_id: "fork", type: "parallel", branches: [{ steps: [model("left")] }, { name: "B", steps: [model("right")] }] },
  ],
};

test("a pointer escapes its parts, and its parts come back", () => {
  const path = ["steps", 0, "a/b", "c~d", "~1"];
  assert.equal(pointer(path), "/steps/0/a~1b/c~0d/~01");
  assert.deepEqual(partsOf(pointer(path)), path);
  assert.equal(pointer([]), "");
});

test("a value at a place that does not exist is undefined", () => {
  assert.equal(valueAt(DEFINITION, ["steps", 1, "steps", 0, "step_id"]), "inner");
  assert.equal(valueAt(DEFINITION, ["steps", 9, "steps", 0]), undefined);
  assert.equal(valueAt({ a: null }, ["a", "b"]), undefined);
});

test("a change creates a new value and shares everything else", () => {
  const before = { a: [{ b: 1 }, { c: 2 }], d: { e: 3 } };
  const after = changed(before, ["a", 0, "b"], 7);
  assert.deepEqual(after, { a: [{ b: 7 }, { c: 2 }], d: { e: 3 } });
  assert.equal(before.a[0].b, 1);
  assert.equal(after.d, before.d);
  assert.equal(after.a[1], before.a[1]);
});

test("a change to undefined removes a member or an item", () => {
  assert.deepEqual(changed({ a: 1, b: 2 }, ["a"], undefined), { b: 2 });
  assert.deepEqual(changed({ a: [1, 2, 3] }, ["a", 1], undefined), { a: [1, 3] });
  assert.deepEqual(changed(undefined, ["a", "b"], 1), { a: { b: 1 } });
});

test("every step is found with its place and depth, in order", () => {
  const found = walk(DEFINITION).map(({ step, path, depth }) => [idOf(step), pointer(path), depth]);
  assert.deepEqual(found, [
    ["mood", "/steps/0", 0],
    ["each", "/steps/1", 0],
    ["inner", "/steps/1/steps/0", 1],
    ["last", "/steps/1/steps/1", 1],
    ["ok", "/steps/2", 0],
    ["fork", "/steps/3", 0],
    ["left", "/steps/3/branches/0/steps/0", 1],
    ["right", "/steps/3/branches/1/steps/0", 1],
  ]);
  assert.deepEqual(walk({ steps: "no list" }), []);
  assert.deepEqual(walk(null), []);
});

test("the blocks of a step have names", () => {
  assert.deepEqual(
    blocksOf(DEFINITION.steps[3]).map(({ name }) => name),
    ["Branch 1", "B"],
  );
  assert.deepEqual(
    blocksOf({ type: "choice" }).map(({ name }) => name),
    ["If so", "Otherwise"],
  );
  assert.deepEqual(blocksOf({ type: "parallel", branches: {} }), []);
  assert.deepEqual(blocksOf(null), []);
});

test("the subject of a step is what it runs or waits for, or its type", () => {
  assert.equal(subjectOf(model("a")), "m");
  assert.equal(subjectOf({ type: "wait", event: { name: "approval" } }), "approval");
  assert.equal(subjectOf({ type: "wait", seconds: 1 }), "Wait");
  assert.equal(subjectOf({ type: "new" }), "new");
  assert.equal(subjectOf(null), "");
});

test("references are found in nested values, without escaped ones and links that answer", () => {
  const value = { a: "{{ one.output }} and {{two}}", b: ["\\{{three}}", { c: "{{four.resume_url}} {{five.resume_urls}}" }] };
  assert.deepEqual([...rootsOf(value)], ["one", "two", "five"]);
  assert.deepEqual([...rootsOf(null)], []);
});

test("a step is renamed in references and in depends_on alone", () => {
  const value = { text: "{{ a.output }} {{ab}} \\{{a}} a", depends_on: ["a", "b"], list: ["a", "{{a}}"] };
  assert.deepEqual(renamed(value, "a", "z"), {
    text: "{{ z.output }} {{ab}} \\{{a}} a",
    depends_on: ["z", "b"],
    list: ["a", "{{z}}"],
  });
});

test("an expression of a condition refers without braces, the same text elsewhere does not", () => {
  const condition = { expression: "$.a.output", operator: "exists" };
  assert.deepEqual([...rootsOf({ and: [condition], text: "$.b.output" })], ["a"]);
  assert.deepEqual(renamed({ not: condition, expression: "$.a.output" }, "a", "z"), {
    not: { expression: "$.z.output", operator: "exists" },
    expression: "$.a.output",
  });
});

test("an input is renamed in every form of a reference, but not in its schema", () => {
  const before = {
    input_schema: { properties: { x: { default: "{{inputs.x}}" } } },
    steps: [
      { step_id: "a", text: "{{inputs.x}} {{ inputs['x'].y }} {{inputs[\"x\"][0]}} {{inputs.xy}} {{x}} \\{{inputs.x}}" },
      { step_id: "c", condition: { expression: "$.inputs.x", operator: "exists" }, depends_on: ["x"] },
    ],
    metadata: { output_mapping: { all: "{{inputs.x}}" } },
  };
  const after = renamedInput(before, "x", "z");
  assert.equal(after.steps[0].text, "{{inputs.z}} {{ inputs.z.y }} {{inputs.z[0]}} {{inputs.xy}} {{x}} \\{{inputs.x}}");
  assert.deepEqual(after.steps[1], {
    step_id: "c",
    condition: { expression: "$.inputs.z", operator: "exists" },
    depends_on: ["x"],
  });
  assert.equal(after.metadata.output_mapping.all, "{{inputs.z}}");
  assert.equal(after.input_schema, before.input_schema);
  assert.equal(renamedInput({ steps: ["{{inputs.x}}"] }, "x", "the size").steps[0], "{{inputs['the size']}}");
  assert.equal(renamedInput({ steps: ["{{inputs['the size']}}"] }, "the size", "it's").steps[0], '{{inputs["it\'s"]}}');
});

/** Types a new name for the part of the step at `path`, letter by letter; returns the definition. */
function typing(definition, path, part, name) {
  let [whole, naming] = [definition, null];
  for (let length = 1; length <= name.length; length += 1) {
    const next = { ...valueAt(whole, path), [part]: name.slice(0, length) };
    ({ whole, naming } = withStep(whole, path, next, naming));
  }
  return whole;
}

const MAP = {
  steps: [
    { step_id: "read", type: "pass", result: 1 },
    {
      step_id: "each",
      type: "map",
      items: "{{picture.list}}",
      item_name: "picture",
      output: "{{picture}} {{read.output}}",
      steps: [
        { step_id: "in", type: "pass", result: "{{picture.url}}" },
        {
          step_id: "deep",
          type: "map",
          items: "{{picture.parts}}",
          item_name: "picture",
          steps: [{ step_id: "x", result: "{{picture}}" }],
        },
      ],
    },
    { step_id: "after", type: "pass", result: "{{picture}}" },
  ],
};

test("references to a step follow its id while it is typed, also past an id that is taken", () => {
  const { steps } = typing(MAP, ["steps", 0], "step_id", "in_the_sun");
  assert.equal(steps[0].step_id, "in_the_sun");
  assert.equal(steps[1].output, "{{picture}} {{in_the_sun.output}}");
  assert.equal(typing(MAP, ["steps", 0], "step_id", "in").steps[1].output, "{{picture}} {{i.output}}");
});

test("references to an item follow its name within its map, unless an inner map has the same", () => {
  const { steps } = typing(MAP, ["steps", 1], "item_name", "photo");
  const [, each, after] = steps;
  assert.equal(each.output, "{{photo}} {{read.output}}");
  assert.equal(each.items, "{{picture.list}}");
  assert.equal(each.steps[0].result, "{{photo.url}}");
  assert.equal(each.steps[1].items, "{{photo.parts}}");
  assert.equal(each.steps[1].steps[0].result, "{{picture}}");
  assert.equal(after.result, "{{picture}}");
  // Without a name, an item is called `item`.
  const { whole } = withStep(MAP, ["steps", 1], { ...MAP.steps[1], item_name: undefined });
  assert.equal(whole.steps[1].output, "{{item}} {{read.output}}");
  // References do not follow while the typed name is that of a step.
  assert.equal(typing(MAP, ["steps", 1], "item_name", "read").steps[1].output, "{{rea}} {{read.output}}");
});

test("a step that keeps its name changes nothing else", () => {
  const next = { ...MAP.steps[0], result: 2 };
  const { whole, naming } = withStep(MAP, ["steps", 0], next, null);
  assert.deepEqual([whole.steps[0], whole.steps[1] === MAP.steps[1], naming], [next, true, null]);
});

test("a step is offered inputs, the item of its loop and earlier steps, not later ones", () => {
  const texts = offersAt(DEFINITION, ["steps", 1, "steps", 1]).map(({ text }) => text);
  for (const text of ["inputs.text", "inputs['a b']", "mood.output", "one", "inner.output", "ok.resume_url", "execution.id"]) {
    assert.ok(texts.includes(text), text);
  }
  for (const text of ["each.output", "last.output", "ok.output", "left.output"]) assert.ok(!texts.includes(text), text);
});

test("steps after a block are offered its inner steps, except those of a loop", () => {
  const texts = offersAt({ steps: [...DEFINITION.steps, model("end")] }, ["steps", 4]).map(({ text }) => text);
  assert.ok(texts.includes("left.output"));
  assert.ok(texts.includes("ok.event.source"));
  assert.ok(!texts.includes("inner.output"));
});

test("a model waits for what it refers to, every other step for all before it", () => {
  const steps = [model("a"), model("b"), model("c", { x: "{{a.output}}" }), { step_id: "w", type: "wait" }, model("d")];
  assert.deepEqual(waitsOf(steps), [[], [], [0], [1, 2], [3]]);
});

test("waits by way of another step are left out", () => {
  const steps = [model("a"), model("b", { x: "{{a}}" }), model("c", { x: "{{a}} {{b}}" })];
  assert.deepEqual(waitsOf(steps), [[], [0], [1]]);
});

test("depends_on replaces the order, and nested steps count as their block", () => {
  const steps = [
    model("a"),
    { step_id: "p", type: "parallel", depends_on: [], branches: [{ steps: [model("in")] }] },
    model("c", { x: "{{in.output}}" }),
  ];
  assert.deepEqual(waitsOf(steps), [[], [], [1]]);
  assert.deepEqual(waitsOf([model("a", { x: "{{b}}" }), model("b")]), [[], []]);
});

test("a problem belongs to the innermost step of its path", () => {
  const problems = [{ path: "/steps/1/steps/0/params/x" }, { path: "/steps/1/items" }, { path: "/steps/10" }, { path: "" }];
  const found = problemsByStep(problems, walk(DEFINITION));
  assert.deepEqual(
    [...found].map(([place, list]) => [place, list.map(({ within }) => within)]),
    [
      ["/steps/1/steps/0", ["params/x"]],
      ["/steps/1", ["items"]],
      ["", ["steps/10", ""]],
    ],
  );
});

const shown = (before, after) => differences(before, after).map(({ kind, text }) => ({ same: " ", out: "-", in: "+" })[kind] + text);

test("differences keep the longest common lines", () => {
  assert.deepEqual(shown("a\nb\nc", "a\nb\nc"), [" a", " b", " c"]);
  assert.deepEqual(shown("a\nb\nc\nd", "a\nc\nx\nd"), [" a", "-b", " c", "+x", " d"]);
  assert.deepEqual(shown("", "a"), ["-", "+a"]);
  assert.deepEqual(shown("a\na", "a\na\na"), [" a", " a", "+a"]);
});

test("differences of very long texts replace the whole middle", () => {
  const lines = (word) => Array.from({ length: 2001 }, (_, at) => `${word} ${at === 1000 ? "" : at}`).join("\n");
  const found = differences(`head\n${lines("a")}`, `head\n${lines("b")}`);
  assert.deepEqual([found[0].kind, found[1].kind, found.at(-1).kind, found.length], ["same", "out", "in", 4003]);
});
