#!/usr/bin/env node
// Starts the binary for this machine's processor, which npm has installed as an optional dependency.
"use strict";
const { spawn } = require("node:child_process");

const name = `@orrery/${process.platform}-${process.arch}`;
let binary;
try {
  binary = require.resolve(`${name}/bin/orrery`);
} catch {
  console.error(
    `error: the package ${name} is not installed\n` +
      "  Orrery runs on Linux, on x64 and arm64; npm must not omit optional dependencies",
  );
  process.exit(1);
}
const orrery = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends Ctrl+C to both processes; other signals arrive only here.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) {
  process.on(signal, () => {
    if (signal !== "SIGINT" || !process.stdin.isTTY) orrery.kill(signal);
  });
}
orrery.on("error", (error) => {
  console.error(`error: ${binary} cannot be started: ${error.message}`);
  process.exit(1);
});
orrery.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
