#!/usr/bin/env node
// Takes the screenshots of README.md and docs/dashboard.md: starts a private service, fills it through its API, opens
// each screen in Chromium in both themes, and writes docs/pictures/NAME.png with at most 256 colors. Requires the same
// packages as the browser tests (`tests/run --install`). Usage: tests/pictures/take.mjs ORRERY
import { execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import zlib from "node:zlib";

const [orrery] = process.argv.slice(2).map((one) => path.resolve(one));
const pictures = path.resolve(import.meta.dirname, "../../docs/pictures");
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "orrery-pictures-"));
const PORTS = { base: 18480, workflows: 18481, flows: 18482, agent: 18483, dashboard: 18484, driver: 18485, stub: 18486, metrics: 18487 };
const dashboard = `http://127.0.0.1:${PORTS.dashboard}`;
const stub = `http://127.0.0.1:${PORTS.stub}`;
const WIDTH = 1280;
const HEIGHT = 900;
const PASSWORD = "correct horse battery";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, look) {
  for (let round = 0; round < 300; round += 1) {
    const found = await look().catch(() => null);
    if (found) return found;
    await sleep(100);
  }
  throw new Error(`never: ${what}`);
}

// ---- A model server and two receivers ----

const SAID = "The invoice is from Nordlicht GmbH, over 1,240.50 EUR, and is due on 3 December.";
const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const json = (value) => {
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify(value));
    };
    if (request.url.startsWith("/hook")) return json({ thanks: true });
    if (request.url.startsWith("/down")) {
      response.writeHead(503, { "content-type": "text/plain" });
      return response.end("out of order until Monday");
    }
    if (request.url.startsWith("/caption")) return json({ caption: "A lighthouse at dusk" });
    const body = JSON.parse(Buffer.concat(parts).toString() || "{}");
    const usage = { prompt_tokens: 412, completion_tokens: 31, total_tokens: 443 };
    const base = { id: "chatcmpl-1", created: 1, model: "talk" };
    if (!body.stream)
      return json({
        ...base,
        object: "chat.completion",
        choices: [{ index: 0, message: { role: "assistant", content: SAID }, finish_reason: "stop" }],
        usage,
      });
    response.writeHead(200, { "content-type": "text/event-stream" });
    const chunk = (delta, finish_reason = null, more = {}) =>
      response.write(
        `data: ${JSON.stringify({ ...base, object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason }], ...more })}\n\n`,
      );
    chunk({ role: "assistant", content: SAID });
    chunk({}, "stop", { usage });
    return response.end("data: [DONE]\n\n");
  });
});

const hosts = ["base", "workflows", "flows", "agent", "dashboard"]
  .map((host) => `[hosts.${host}]\nlisten = "127.0.0.1:${PORTS[host]}"\n`)
  .join("");
const upstreams = ["openai", "spare"]
  .map(
    (name) =>
      `[[router.upstreams]]\nname = "${name}"\nurl = "http://127.0.0.1:${PORTS.stub}/${name}"\nkeys = ["one", "two"]\nmodels = ["gpt-*"]\n`,
  )
  .join("");
const CONFIG = `data_dir = "data"\nmodels_dir = "models"\n${hosts}[metrics]\nlisten = "127.0.0.1:${PORTS.metrics}"\n[billing]\nenabled = true\n[egress]\nallow = ["127.0.0.0/8"]\n[webhooks]\nschedule = ["1s", "2h"]\n[agent]\nmodel = "talk"\n${upstreams}`;
const MODELS = {
  "talk.toml": `slug = "talk"\ntitle = "Talk"\ndescription = "Answers in sentences."\noutput_type = "string"\n[runner]\ntype = "openai"\nkind = "chat"\nmodel = "talk"\nurl = "${stub}/v1"\n`,
  "caption.toml": `slug = "picture-caption"\ntitle = "Picture caption"\ndescription = "Says in one sentence what a picture shows."\noutput_type = "string"\n[request_schema]\ntype = "object"\nrequired = ["image"]\n[request_schema.properties.image]\ntype = "string"\ntitle = "Image"\nformat = "uri"\n[cost]\ntype = "fixed"\namount = 0.004\n[runner]\ntype = "http"\nurl = "${stub}/caption"\noutput = "/caption"\n`,
};

// ---- The content shown in the screenshots ----

let cookie = "";

async function ask(method, target, body, headers = {}) {
  const isText = typeof body === "string";
  const answer = await fetch(dashboard + target, {
    method,
    body: body === undefined || isText ? body : JSON.stringify(body),
    headers: {
      origin: dashboard,
      "sec-fetch-site": "same-origin",
      cookie,
      ...(body === undefined || isText ? {} : { "content-type": "application/json" }),
      ...headers,
    },
  });
  const set = answer.headers.get("set-cookie");
  if (set) cookie = set.split(";")[0];
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${target}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

const tokenIn = (text) => /#(\S+)/.exec(text)[1];
const model = (step_id, name, slug, params, more = {}) => ({ step_id, type: "model", name, model: slug, params, ...more });
const INPUTS = {
  type: "object",
  required: ["invoice"],
  properties: {
    invoice: { type: "string", title: "Invoice", description: "The text of the invoice" },
    limit: { type: "number", title: "Limit", description: "A person is asked above it" },
  },
};
const INVOICES = [
  model("read", "Read the invoice", "text-template", { template: "Invoice: {{inputs.invoice}}" }),
  model("mood", "Find the tone", "text-sentiment", { text: "{{read.output}}" }),
  {
    step_id: "friendly",
    type: "choice",
    name: "Is it friendly?",
    condition: { expression: "{{mood.output}}", operator: "exists" },
    condition_met_branch: { steps: [{ step_id: "thanks", type: "pass", result: "Thank you" }] },
    default_branch: { steps: [] },
  },
  { step_id: "approval", type: "wait", name: "Ask accounting", event: { name: "approval" } },
  { step_id: "answer", type: "pass", name: "Put the answer together", result: "{{thanks.output}}: {{approval.output}}" },
];
const WEEKLY = [
  model("collect", "Collect the week", "text-template", { template: "Week: {{inputs.invoice}}" }),
  model("keywords", "Find keywords", "text-keywords", { text: "{{collect.output}}" }),
  model(
    "report",
    "Write the report",
    "text-template",
    { template: "{% for %}" },
    { depends_on: ["collect"], retry: { max_attempts: 2, initial_delay_seconds: 0.2 } },
  ),
  model("language", "Check the language", "text-language", { text: "{{report.output}}" }),
];

async function fill() {
  const command = (...words) =>
    execFileSync(orrery, ["--config", path.join(folder, "config.toml"), ...words], { stdio: ["ignore", "pipe", "ignore"] }).toString();
  command("balance", "top-up", "--amount", "20");
  await ask("POST", "/setup", {
    token: tokenIn(command("owner", "link")),
    name: "Ada Lovelace",
    email: "ada@example.com",
    password: PASSWORD,
  });
  const owner = cookie;
  for (const [name, email] of [
    ["Grace Hopper", "grace@example.com"],
    ["Alan Turing", "alan@example.com"],
  ]) {
    cookie = owner;
    const { url } = await ask("POST", "/invitations", {});
    await ask("POST", "/invitations/accept", { token: tokenIn(url), name, email, password: PASSWORD });
  }
  cookie = owner;
  await ask("POST", "/invitations", { email: "katherine@example.com" });
  for (const [name, expires_in_days] of [
    ["Web shop", 90],
    ["Nightly report", null],
  ])
    await ask("POST", "/keys", { name, expires_in_days });
  const workflows = "/api/workflows/api/v1";
  const create = (name, description, tags, steps) =>
    ask("POST", `${workflows}/workflows`, { name, description, tags, definition: { input_schema: INPUTS, steps } });
  const invoices = await create(
    "Read incoming invoices",
    "Reads each invoice and asks accounting before it is paid.",
    ["finance"],
    INVOICES.slice(0, 3),
  );
  await ask("PUT", `${workflows}/workflows/${invoices.workflow_id}/versions/v2`, {
    version_id: "v2",
    definition: { input_schema: INPUTS, steps: INVOICES },
  });
  const weekly = await create("Weekly report", "What happened in the week, for everybody.", ["reports", "weekly"], WEEKLY);
  await create(
    "Caption pictures",
    "A sentence for each picture of the shop.",
    ["shop"],
    [model("caption", "Caption", "picture-caption", { image: "{{inputs.invoice}}" })],
  );
  const start = async (flow) =>
    (
      await ask("POST", `${workflows}/${flow.workflow_id}/trigger`, {
        inputs: { invoice: "Nordlicht GmbH, 1,240.50 EUR" },
        webhook_url: `${stub}/hook/runs`,
      })
    ).execution_id;
  const run = async (slug, input, hook) =>
    (await ask("POST", "/api/base/v1/prediction", { model: slug, version: "0.0.1", input, webhook_url: `${stub}${hook}` })).predictionID;
  const failed = await start(weekly);
  const waiting = await start(invoices);
  for (const name of ["lighthouse", "harbor", "market"])
    await run("picture-caption", { image: `https://shop.example/${name}.jpg` }, "/hook/captions");
  await run("text-sentiment", { text: "What a beautiful night!" }, "/hook/runs");
  const single = await run(
    "text-summary",
    { text: "The box has arrived. It is quiet, it is quick, and everybody likes it. The invoice comes later. Nobody knows when." },
    "/hook/runs",
  );
  const image = await run("image-qr", { text: "https://example.com/welcome" }, "/down/codes");
  await ask("POST", "/chains", {
    model: "picture-caption",
    name: "default",
    entries: [
      { model: "text-template", input_map: { template: "No caption for {{input.image}}" } },
      { model: "text-summary", input_map: { text: "{{input.image}}" } },
    ],
  });
  for (const name of ["SHOP_TOKEN", "MAIL_PASSWORD"]) await ask("PUT", `/api/base/v1/secrets/${name}`, { value: "not shown anywhere" });
  await ask("POST", "/api/base/v1/webhook-endpoints", { url: `${stub}/hook/all`, name: "orders" });
  await ask("POST", `${workflows}/workflows/${invoices.workflow_id}/schedules`, {
    name: "Each working day",
    cron: "0 9 * * 1-5",
    timezone: "Europe/Berlin",
    inputs: { invoice: "all of yesterday" },
  });
  for (const [name, type] of [
    ["offer-november.pdf", "application/pdf"],
    ["products.csv", "text/csv"],
  ]) {
    const form = `--x\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\nContent-Type: ${type}\r\n\r\n${"0123456789".repeat(4200)}\r\n--x--\r\n`;
    await ask("POST", "/api/base/v1/files", form, { "content-type": "multipart/form-data; boundary=x" });
  }
  await until(
    "the ends of the runs",
    async () => (await ask("GET", "/status")).running === 0 && (await ask("GET", "/status")).waiting_for_person === 1,
  );
  await until("a delivery that waits", async () => (await ask("GET", `/api/base/v1/webhooks/${image}`)).attempts.length === 2);
  return { invoices: invoices.slug, failed, waiting, single, image };
}

// ---- The browser ----

async function driver(method, target, body) {
  const answer = await fetch(`http://127.0.0.1:${PORTS.driver}${target}`, { method, body: body ? JSON.stringify(body) : undefined });
  const { value } = await answer.json();
  if (!answer.ok) throw new Error(`${target}: ${value.message}`);
  return value;
}

async function photograph(made) {
  const args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"];
  const { sessionId } = await driver("POST", "/session", { capabilities: { alwaysMatch: { "goog:chromeOptions": { args } } } });
  const of = `/session/${sessionId}`;
  const cdp = (cmd, params) => driver("POST", `${of}/goog/cdp/execute`, { cmd, params });
  const run = (script) => driver("POST", `${of}/execute/sync`, { script, args: [] });
  const open = async (target) => {
    await driver("POST", `${of}/url`, { url: dashboard + target });
    await until(target, () => run("return document.querySelector('h1') && !document.querySelector('.loading, [aria-busy=true]')"));
  };
  const shoot = async (name, themes = ["light", "dark"]) => {
    for (const theme of themes) {
      await cdp("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
      await sleep(250);
      const { data } = await cdp("Page.captureScreenshot", { format: "png" });
      fs.writeFileSync(path.join(pictures, `${name}${theme === "dark" ? "-dark" : ""}.png`), withPalette(Buffer.from(data, "base64")));
    }
  };
  await cdp("Emulation.setDeviceMetricsOverride", { width: WIDTH, height: HEIGHT, deviceScaleFactor: 1, mobile: false });
  await open("/");
  await shoot("log-in");
  const [name, value] = cookie.split("=");
  await cdp("Network.setCookie", { name, value, url: `${dashboard}/`, httpOnly: true, sameSite: "Strict" });
  const flow = `/app/workflows/${made.invoices}`;
  const screens = {
    home: "/app",
    models: "/app/models",
    model: "/app/models/image-resize",
    workflows: "/app/workflows",
    workflow: flow,
    "workflow-versions": `${flow}?tab=versions`,
    chains: "/app/chains",
    runs: "/app/runs",
    run: `/app/runs/${made.waiting}?type=workflow`,
    "run-of-workflow": `/app/runs/${made.failed}?type=workflow`,
    webhooks: "/app/webhooks",
    webhook: `/app/webhooks/${made.image}`,
    files: "/app/files",
    balance: "/app/balance",
    keys: "/app/keys",
    secrets: "/app/secrets",
    members: "/app/members",
    audit: "/app/audit",
    health: "/app/health",
    account: "/app/account",
  };
  for (const [screen, target] of Object.entries(screens)) {
    await open(target);
    await shoot(screen);
  }
  await open(`${flow}?tab=versions`);
  await shoot("versions", ["dark"]);
  const type = async (selector, text) => {
    const element = Object.values(await driver("POST", `${of}/element`, { using: "css selector", value: selector }))[0];
    await driver("POST", `${of}/element/${element}/value`, { text });
  };
  await open("/app/models/image-qr");
  await type("main textarea, main input", "https://example.com/welcome");
  await run("[...document.querySelectorAll('button')].find((one) => one.innerText.trim() === 'Run').click()");
  await until("the image", () => run("return document.querySelector('figure img')?.complete"));
  await shoot("playground", ["light"]);
  for (const [screen, target, said] of [
    ["chat", "/app/chat", "What does this invoice say?"],
    ["agent", "/app/chat?with=agent", "Read the newest invoice."],
  ]) {
    await open(target);
    await type("textarea[aria-label='Your message']", `${said}\uE007`);
    await until("an answer", () =>
      run(`return document.body.innerText.includes(${JSON.stringify(SAID)}) && !document.querySelector('[role=log][aria-busy=true]')`),
    );
    await run("document.activeElement.blur()");
    await shoot(screen);
  }
  await driver("DELETE", of);
}

// ---- PNG with a palette ----

const CRCS = Array.from({ length: 256 }, (_, at) => {
  let crc = at;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? 0xedb88320 ^ (crc >>> 1) : crc >>> 1;
  return crc >>> 0;
});
const crcOf = (bytes) => {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRCS[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
};

function chunk(type, data) {
  const whole = Buffer.concat([Buffer.alloc(4), Buffer.from(type), data, Buffer.alloc(4)]);
  whole.writeUInt32BE(data.length, 0);
  whole.writeUInt32BE(crcOf(whole.subarray(4, -4)), whole.length - 4);
  return whole;
}

// Returns the pixels of a PNG with 8 bits per channel, as written by the browser.
function pixelsOf(png) {
  const parts = [];
  let head = null;
  for (let at = 8; at < png.length;) {
    const length = png.readUInt32BE(at);
    const data = png.subarray(at + 8, at + 8 + length);
    const type = png.toString("latin1", at + 4, at + 8);
    if (type === "IHDR") head = data;
    if (type === "IDAT") parts.push(data);
    at += length + 12;
  }
  const [width, height, channels] = [head.readUInt32BE(0), head.readUInt32BE(4), head[9] === 6 ? 4 : 3];
  const raw = zlib.inflateSync(Buffer.concat(parts));
  const stride = width * channels;
  const lines = Buffer.alloc(height * stride);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x += 1) {
      const at = y * stride + x;
      const left = x >= channels ? lines[at - channels] : 0;
      const up = y ? lines[at - stride] : 0;
      const corner = y && x >= channels ? lines[at - stride - channels] : 0;
      const [toLeft, toUp, toCorner] = [Math.abs(up - corner), Math.abs(left - corner), Math.abs(left + up - 2 * corner)];
      const paeth = toLeft <= toUp && toLeft <= toCorner ? left : toUp <= toCorner ? up : corner;
      lines[at] = raw[y * (stride + 1) + 1 + x] + [0, left, up, (left + up) >> 1, paeth][filter];
    }
  }
  return { width, height, channels, lines };
}

// The most frequent colors form the palette; others are mapped to the nearest of them.
function withPalette(png) {
  const { width, height, channels, lines } = pixelsOf(png);
  const counts = new Map();
  const colors = new Uint32Array(width * height);
  for (let at = 0; at < colors.length; at += 1) {
    const color = (lines[at * channels] << 16) | (lines[at * channels + 1] << 8) | lines[at * channels + 2];
    colors[at] = color;
    counts.set(color, (counts.get(color) ?? 0) + 1);
  }
  const palette = [...counts]
    .sort((a, b) => b[1] - a[1])
    .slice(0, 256)
    .map(([color]) => color);
  const split = (color) => [color >> 16, (color >> 8) & 255, color & 255];
  const far = (a, b) => split(a).reduce((sum, part, at) => sum + (part - split(b)[at]) ** 2, 0);
  const places = new Map(palette.map((color, at) => [color, at]));
  const placeOf = (color) => {
    if (!places.has(color))
      places.set(
        color,
        palette.reduce((best, one, at) => (far(one, color) < far(palette[best], color) ? at : best), 0),
      );
    return places.get(color);
  };
  const rows = Buffer.alloc(height * (width + 1));
  for (let at = 0; at < colors.length; at += 1) rows[Math.floor(at / width) * (width + 1) + 1 + (at % width)] = placeOf(colors[at]);
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([
    png.subarray(0, 8),
    chunk("IHDR", head),
    chunk("PLTE", Buffer.from(palette.flatMap(split))),
    chunk("IDAT", zlib.deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

// ----

fs.mkdirSync(path.join(folder, "models"));
fs.writeFileSync(path.join(folder, "config.toml"), CONFIG, { mode: 0o600 });
for (const [name, text] of Object.entries(MODELS)) fs.writeFileSync(path.join(folder, "models", name), text);
server.listen(PORTS.stub, "127.0.0.1");
const service = spawn(orrery, ["--config", path.join(folder, "config.toml"), "serve"], { stdio: ["ignore", "ignore", "inherit"] });
const chromedriver = spawn("chromedriver", [`--port=${PORTS.driver}`], { stdio: "ignore" });
try {
  await until("the service", async () => (await fetch(`${dashboard}/session`)).ok);
  await until("chromedriver", async () => (await driver("GET", "/status")).ready);
  await photograph(await fill());
} finally {
  service.kill();
  chromedriver.kill();
  server.close();
  await new Promise((resolve) => service.once("exit", resolve));
  fs.rmSync(folder, { recursive: true });
}
