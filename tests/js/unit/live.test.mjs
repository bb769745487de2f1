// Tests of how static/live.js waits, gives up and reloads.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { Refusal, unattended } from "../../../static/core.js";
import { follow, rereading } from "../../../static/live.js";

/** Follows `look` with a clock that is moved here; returns the waits between the looks, in milliseconds. */
async function waitsOf(looks, holds = false) {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const { signal } = new AbortController();
    const lost = [];
    const waits = [];
    let passed = 0;
    let begun = 0;
    const look = () => {
      if (begun) waits.push(passed);
      begun += 1;
      passed = 0;
      return looks[begun - 1]();
    };
    let isOver = false;
    const end = follow((_mayHold, turn) => (assert.ok(unattended.has(turn)), look()), {
      signal,
      onLost: (error) => lost.push(error?.status ?? null),
      turns: (turn) => turn(holds),
    }).finally(() => (isOver = true));
    // The error is returned to the caller and checked below.
    end.catch(() => null);
    for (let round = 0; round < 10_000; round += 1) {
      for (let turn = 0; turn < 20; turn += 1) await null;
      if (isOver) break;
      passed += 50;
      mock.timers.tick(50);
    }
    await end;
    return { waits, lost };
  } finally {
    mock.timers.reset();
  }
}

const fails =
  (status, retryAfter = null) =>
  async () => {
    throw new Refusal(status, "no", { retryAfter });
  };
const goes = async () => false;
const ends = async () => true;

test("a page without a connection polls every two seconds, one with it follows at once", async () => {
  assert.deepEqual(await waitsOf([goes, goes, ends]), { waits: [2000, 2000], lost: [] });
  assert.deepEqual(await waitsOf([goes, goes, ends], true), { waits: [100, 100], lost: [] });
});

test("the wait for a service that is down doubles up to eight seconds, and ends when it is back", async () => {
  const { waits, lost } = await waitsOf([...Array.from({ length: 6 }, () => fails(503)), goes, fails(0), ends]);
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 8000, 2000, 500]);
  assert.deepEqual(lost, [503, 503, 503, 503, 503, 503, null, 0, null]);
});

test("the service's own time is respected", async () => {
  assert.deepEqual((await waitsOf([fails(429, 30), ends])).waits, [30_000]);
});

test("a permanent error ends it", async () => {
  await assert.rejects(waitsOf([goes, fails(404)]), { status: 404 });
  await assert.rejects(waitsOf([async () => JSON.parse("{")]), SyntaxError);
});

test("changes during a reload cause one more reload", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const { signal } = new AbortController();
    const open = [];
    const reload = rereading(() => new Promise((resolve, reject) => open.push({ resolve, reject })), signal);
    const settle = async () => {
      for (let turn = 0; turn < 20; turn += 1) await null;
    };
    reload();
    reload();
    reload();
    assert.equal(open.length, 1);
    open[0].reject(new Error("not now"));
    await settle();
    assert.equal(open.length, 1);
    mock.timers.tick(100);
    await settle();
    assert.equal(open.length, 2);
    open[1].resolve();
    await settle();
    mock.timers.tick(100);
    await settle();
    assert.equal(open.length, 2);
  } finally {
    mock.timers.reset();
  }
});
