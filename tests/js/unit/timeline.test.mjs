// Tests of the time axis and the rows of static/timeline.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { axisOf, rowsOfExecution, rowsOfPrediction } from "../../../static/timeline.js";

const near = (value, expected) => assert.ok(Math.abs(value - expected) < 0.01, `${value} is not ${expected}`);
const at = (second) => new Date(second * 1000).toISOString();

test("without gaps the axis is linear, and ends at its borders", () => {
  const axis = axisOf([{ from: 1000, to: 2000 }], 1000, 3000);
  assert.deepEqual(axis.gaps, []);
  assert.deepEqual([500, 1000, 1500, 3000, 9000].map(axis.at), [0, 0, 25, 100, 100]);
});

test("a long idle gap takes a twelfth of the shown time", () => {
  // One second of work, an hour of waiting, one second of work.
  const axis = axisOf(
    [
      { from: 0, to: 1000 },
      { from: 3_601_000, to: 3_602_000 },
    ],
    0,
    3_602_000,
  );
  const [gap] = axis.gaps;
  assert.deepEqual([axis.gaps.length, gap.from, gap.to], [1, 1000, 3_601_000]);
  near(axis.at(1000), (1000 / (2000 + 2000 / 12)) * 100);
  near(axis.at(3_601_000) - axis.at(1000), (1 / 13) * 100);
  near(gap.middle, 50);
  near(axis.at((1000 + 3_601_000) / 2), 50);
});

test("a gap is long only beside the usual span", () => {
  const spans = [
    { from: 0, to: 1000 },
    { from: 10_000, to: 11_000 },
  ];
  assert.equal(axisOf(spans, 0, 11_000).gaps.length, 0);
  assert.equal(axisOf(spans, 0, 22_000).gaps.length, 1);
  assert.equal(
    axisOf(
      [
        { from: 0, to: 1 },
        { from: 2000, to: 2001 },
      ],
      0,
      2001,
    ).gaps.length,
    0,
  );
  assert.equal(
    axisOf(
      [
        { from: 0, to: 1 },
        { from: 2002, to: 2003 },
      ],
      0,
      2003,
    ).gaps.length,
    1,
  );
});

test("the axis grows with time whatever the spans are", () => {
  const spans = [
    { from: 5, to: 2 },
    { from: 50_000, to: 50_010 },
    { from: 0, to: 10 },
    { from: 7, to: 90_000 },
    { from: 400_000, to: 400_001 },
  ];
  const axis = axisOf(spans, 0, 1_000_000);
  let before = -1;
  for (let time = 0; time <= 1_000_000; time += 997) {
    const place = axis.at(time);
    assert.ok(place >= before && place <= 100, `${time}: ${place} after ${before}`);
    before = place;
  }
  near(axis.at(1_000_000), 100);
});

test("an axis without spans or length is no fault", () => {
  assert.equal(axisOf([], 5, 5).at(5), 0);
  assert.equal(axisOf([], 5, 5).at(7), 100);
});

test("a queued prediction has one bar until now", () => {
  const rows = rowsOfPrediction({ created_at: at(1), status: "created" }, 9000);
  assert.deepEqual(
    rows.map(({ bars }) => bars),
    [[{ kind: "queued", from: 1000, to: 9000 }]],
  );
});

test("each attempt of a prediction is a row, and the one that runs ends now", () => {
  const attempts = [
    { model: "a", status: "error", error: "busy", started_at: at(2), completed_at: at(3) },
    { model: "b", status: "processing", started_at: at(4) },
  ];
  const [queue, first, second] = rowsOfPrediction({ created_at: at(1), attempts }, 9000);
  assert.deepEqual(queue.bars, [{ kind: "queued", from: 1000, to: 2000 }]);
  assert.deepEqual(
    [first.name, first.note, first.error, first.bars],
    ["a", "First attempt", "busy", [{ kind: "bad", from: 2000, to: 3000 }]],
  );
  assert.deepEqual([second.name, second.note, second.bars], ["b", "Attempt 2", [{ kind: "active", from: 4000, to: 9000 }]]);
});

test("the waits between the attempts of a step are bars", () => {
  const attempts = [
    { model: "m", status: "error", started_at: at(2), completed_at: at(3) },
    { model: "m", status: "success", started_at: at(5), completed_at: at(6) },
  ];
  const step = { step_id: "s", type: "model", status: "completed", started_at: at(1), completed_at: at(8), attempts };
  const [row] = rowsOfExecution({ step_outputs: { s: step } }, 9000);
  assert.equal(row.note, "m, 2 attempts");
  assert.deepEqual(
    row.bars.map(({ kind, from, to }) => `${kind} ${from / 1000}-${to / 1000}`),
    ["queued 1-2", "bad 2-3", "queued 3-5", "good 5-6"],
  );
});

test("a step that is tried again later waits until now", () => {
  const attempts = [{ model: "m", status: "error", started_at: at(1), completed_at: at(2) }];
  const [row] = rowsOfExecution({ step_outputs: { s: { step_id: "s", status: "running", started_at: at(1), attempts } } }, 9000);
  assert.deepEqual(row.bars.at(-1), { kind: "queued", from: 2000, to: 9000 });
});

test("a step that waits for a person says so, and one that has not begun has no bar", () => {
  const step_outputs = {
    ask: { step_id: "ask", name: "Approve", type: "wait", status: "running", started_at: at(1) },
    next: { step_id: "next", type: "pass", status: "pending" },
  };
  const [ask, next] = rowsOfExecution({ step_outputs, waiting_for: [{ reason: "event", step_id: "ask" }] }, 9000);
  assert.deepEqual([ask.name, ask.status, ask.note, ask.bars], ["Approve", "event", "wait", [{ kind: "queued", from: 1000, to: 9000 }]]);
  assert.deepEqual([next.name, next.status, next.bars], ["next", "pending", []]);
  assert.deepEqual(rowsOfExecution({}, 0), []);
});
