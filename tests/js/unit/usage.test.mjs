// Tests of the periods and columns of usage, from static/screens/usage.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { columnsOf, firstDay } from "../../../static/screens/usage.js";

test("months begin on their first day, also across years", () => {
  assert.equal(firstDay("2026-11-30", 0), "2026-11-01");
  assert.equal(firstDay("2026-01-31", 2), "2025-11-01");
  assert.equal(firstDay("2026-03-31", 11), "2025-04-01");
});

test("each day is a column, also without spending", () => {
  const groups = [
    { day: "2026-03-01", cost_usd: 0.25 },
    { day: "2026-02-01", cost_usd: 9 },
  ];
  const columns = columnsOf(groups, "2026-03-02", 4);
  assert.deepEqual(
    columns.map((one) => [one.day, one.sum, one.parts.length]),
    [
      ["2026-02-27", 0, 0],
      ["2026-02-28", 0, 0],
      ["2026-03-01", 0.25, 1],
      ["2026-03-02", 0, 0],
    ],
  );
});
