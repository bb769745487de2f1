// A worker, called by a real service.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { rm, writeFile } from "node:fs/promises";
import { test } from "node:test";

import { PredictionFailed } from "orrery-client";

import { client, until } from "./support.mjs";

const orrery = client();
const PROGRAM = `
import { InvalidInput, serve, Unavailable } from "orrery-client/worker";
const server = await serve({
    "node-shout": ({ text }) => text.toUpperCase(),
    "node-dot": () => new Blob(["dot"], { type: "image/png" }),
    "node-bytes": () => new Uint8Array([1, 2]),
    "node-fails": ({ how }) => {
        if (how === "input") throw new InvalidInput("no such thing");
        if (how === "busy") throw new Unavailable("no memory");
        JSON.parse("{");
    },
    "node-waits": ({ ms }, { signal, idempotencyKey }) => new Promise((resolve) => {
        console.log("begun " + idempotencyKey);
        const timer = setTimeout(() => resolve("done"), ms);
        signal.addEventListener("abort", () => { clearTimeout(timer); console.log("cancelled"); resolve(null); });
    }),
}, { port: 0 });
console.log("port " + server.address().port);
`;

test("functions are models, cancelled runs are told, and a stop waits for the others", async (t) => {
  const worker = spawn(process.execPath, ["--input-type=module", "--eval", PROGRAM], { stdio: ["ignore", "pipe", "ignore"] });
  t.after(() => worker.kill("SIGKILL"));
  let said = "";
  worker.stdout.on("data", (data) => (said += data));
  await until(() => said.includes("port "));
  const port = /port (\d+)/.exec(said)[1];
  const outputs = { shout: "string", dot: "image", bytes: "file", fails: "string", waits: "string" };
  for (const [name, output] of Object.entries(outputs)) {
    const file = `${process.env.ORRERY_TEST_MODELS}/node-${name}.toml`;
    const runner = `[runner]\ntype = "http"\nurl = "http://127.0.0.1:${port}/node-${name}"\nhealth = "/health"\n`;
    await writeFile(file, `slug = "node-${name}"\noutput_type = "${output}"\nconcurrency = 4\n${runner}`);
    t.after(() => rm(file));
    await until(() => orrery.models.get(`node-${name}`).catch(() => undefined));
  }
  assert.equal((await orrery.predictions.run("node-shout", { text: "ü" })).output, "Ü");
  for (const [name, size] of [
    ["dot", 3],
    ["bytes", 2],
  ]) {
    const { output } = await orrery.predictions.run(`node-${name}`, {});
    assert.equal((await orrery.files.download(output)).size, size);
  }
  for (const [how, classification, text] of [
    ["input", "invalid_user_input", "no such thing"],
    ["busy", "provider_unavailable", "no memory"],
    ["else", "provider_error", "SyntaxError"],
  ]) {
    await assert.rejects(orrery.predictions.run("node-fails", { how }), (error) => {
      const { error_classification, error: reason } = error.prediction;
      return error instanceof PredictionFailed && error_classification === classification && reason.includes(text);
    });
  }
  const { predictionID } = await orrery.predictions.create("node-waits", { ms: 600_000 });
  await until(() => said.includes(`begun ${predictionID}:prediction:1`));
  await orrery.predictions.cancel(predictionID);
  await until(() => said.includes("cancelled"));
  const { predictionID: last } = await orrery.predictions.create("node-waits", { ms: 1000 });
  await until(() => said.includes(`begun ${last}`));
  worker.kill("SIGTERM");
  assert.equal((await orrery.predictions.wait(last)).output, "done");
  if (worker.exitCode === null) await once(worker, "exit");
  assert.equal(worker.exitCode, 0);
});
