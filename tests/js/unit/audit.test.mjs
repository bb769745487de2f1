// Tests of the words used in the audit log, from static/screens/audit.js.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

import { subjectOf, wordsOf } from "../../../static/screens/audit.js";

// Returns the code of crates or of one file, without tests.
const read = (...paths) =>
  paths
    .map((path) => new URL(`../../../crates/${path}`, import.meta.url))
    .flatMap((at) => (at.pathname.endsWith(".rs") ? [at.pathname] : files(at.pathname)))
    .filter((file) => !/(\/|_)tests?(\/|\.rs|_)/.test(file))
    .map((file) => readFileSync(file, "utf8").split("#[cfg(test)]")[0])
    .join("\n");
const files = (folder) =>
  readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".rs"))
    .map((file) => `${folder}/${file}`);

// Actions on the machine belong to no organization, so an organization's log does not show them.
const OF_THE_MACHINE = /^(backup|certificate|configuration|models|restore|seal|service)\./;
const RECORDED = [
  // `recorder.add(&mut commit, "key.create", …)` and `audit.entry(&actor, "webhook.redeliver", …)`
  /\b(?:add|note)\(\s*(?:&mut )?\w+,\s*"([a-z_]+\.[a-z_-]+)"/g,
  /\.entry\(\s*&[\w:.()]+,\s*"([a-z_]+\.[a-z_-]+)"/g,
  // Actions passed to a function that records what it changes.
  /\b(?:change|edit)\([^"]*,\s*"([a-z_]+\.[a-z_-]+)",/g,
  /let action =\s*(?:if \w+ \{ )?"([a-z_]+\.[a-z_-]+)"/g,
  /let action = if \w+ \{ "[^"]+" \} else \{ "([a-z_]+\.[a-z_-]+)" \}/g,
];

test("every action that the service records has words", () => {
  const code = read("api/src", "app/src", "records/src", "webhooks/src", "workflows/src");
  const found = RECORDED.flatMap((form) => [...code.matchAll(form)].map(([, action]) => action));
  const actions = new Set(found.filter((action) => !OF_THE_MACHINE.test(action)));
  const jobs = [...read("domain/src/bulk.rs").matchAll(/Self::(?:Cancel|Redrive|Pause|Resume|Delete) => "(\w+)"/g)];
  for (const [, job] of jobs) actions.add(`executions.bulk.${job}`);
  assert.ok(jobs.length === 5 && actions.size >= 33, `${jobs.length} jobs, ${[...actions].sort().join(" ")}`);
  assert.deepEqual(
    [...actions].filter((action) => wordsOf(action) === action),
    [],
  );
});

test("unknown actions show their name", () => {
  assert.equal(wordsOf("planet.create"), "planet.create");
  assert.equal(wordsOf("key.paint"), "key.paint");
  assert.equal(wordsOf("executions.bulk.redrive"), "Continued many runs");
});

const ID = "01a21958-a76b-7017-a87f-225d9289f346";
const names = new Map([[ID, "web shop"]]);

for (const [subject, shown] of [
  [ID, "web shop"],
  [`${ID} smk_46ac… orders`, "orders"],
  [`20 USD, entry ${ID}`, "20 USD, entry web shop"],
  ["20 USD, entry 01a21958-a76b-7017-a87f-22504437f34d", "20 USD, entry …4437f34d"],
  [`/members/${ID}/reset`, "/members/web shop/reset"],
  ["invite grace@example.com", "Invitation for grace@example.com"],
  ["safe of text-language", "safe of text-language"],
]) {
  test(`the subject ${subject} is shown as ${shown}`, () => assert.equal(subjectOf(subject, names), shown));
}
