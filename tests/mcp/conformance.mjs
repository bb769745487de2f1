// Runs scenarios of the MCP conformance suite against a server that requires a key, and passes if all of them
// pass: `conformance.mjs FOLDER SCENARIO…`. FOLDER contains the suite.
//
// The suite supports neither keys nor this server's tool names: its requests go through a proxy on loopback, which adds
// the key and the prefix of models to tool names, and replaces its own origin with the server's.

import { spawn } from "node:child_process";
import http from "node:http";
import path from "node:path";

const [folder, ...scenarios] = process.argv.slice(2);
const target = new URL(process.env.ORRERY_TEST_URL);
const key = process.env.ORRERY_TEST_KEY;
const suite = path.join(folder, "node_modules/@modelcontextprotocol/conformance/dist/index.js");

const own = () => `http://127.0.0.1:${proxy.address().port}`;
const proxy = http.createServer(async (request, answer) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts).toString().replaceAll('"name":"test_', '"name":"model_test_');
  const headers = { ...request.headers, authorization: `Bearer ${key}` };
  if (headers.origin) headers.origin = headers.origin.replace(own(), target.origin);
  if (body) headers["content-length"] = Buffer.byteLength(body);
  const { hostname: host, port } = target;
  const sent = http.request({ host, port, path: target.pathname, method: request.method, headers }, (got) => {
    answer.writeHead(got.statusCode, got.headers);
    got.pipe(answer);
  });
  sent.on("error", () => answer.destroy());
  answer.on("close", () => sent.destroy());
  sent.end(body);
});

function run(scenario, url) {
  return new Promise((done) => {
    const options = ["server", "--url", url, "--scenario", scenario];
    const child = spawn(process.execPath, [suite, ...options], { stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
    let said = "";
    for (const stream of [child.stdout, child.stderr])
      stream.on("data", (text) => {
        said += text;
      });
    child.on("close", (code) => done({ code, said }));
  });
}

proxy.listen(0, "127.0.0.1", async () => {
  const url = own() + target.pathname;
  let failed = 0;
  for (const scenario of scenarios) {
    const { code, said } = await run(scenario, url);
    const isPassed = code === 0 && /Passed: [1-9]/.test(said);
    if (!isPassed) {
      failed += 1;
      console.error(said);
    }
    console.error(`${isPassed ? "passed" : "FAILED"}: ${scenario}`);
  }
  process.exit(failed ? 1 : 0);
});
