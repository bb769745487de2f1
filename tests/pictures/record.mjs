#!/usr/bin/env node
// Records docs/pictures/kill.svg: a session in a real terminal, in which `kill -9` ends the service in the middle of a
// workflow. The commands are those of README, and their output comes from that session. Needs `script` (util-linux),
// bash, curl, jq, and the service's default ports. Usage: tests/pictures/record.mjs ORRERY
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

const orrery = path.resolve(process.argv[2]);
const picture = path.resolve(import.meta.dirname, "../../docs/pictures/kill.svg");
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "orrery-record-"));
const [PROMPT, MORE] = ["$ ", "> "];
// Carriage returns, and jq's colors: the picture uses its own colors.
const COLORS = /\r|\u001b\[[\d;]*m/g;
// The pauses before the next command: after a start, and after any other command.
const [START_MS, PAUSE_MS] = [1500, 500];
const TIMEOUT_MS = 60_000;
const [COLUMN, LINE, MARGIN, BAR] = [8.43, 21, 20, 34];

const hosts = ["base", "workflows", "flows", "agent", "dashboard"].map((host, at) => `hosts.${host}.listen = "127.0.0.1:${8080 + at}"\n`);
const CONFIG = `data_dir = "orrery-data"\nmodels_dir = "models.d"\nlimits.disk_reserve = "64MiB"\n${hosts.join("")}`;
const WORKFLOW = `name: Mood
description: The mood of a page
definition:
  steps:
    - {step_id: read, type: model, model: html-to-text, params: {html: "{{inputs.page}}"}}
    - {step_id: wait, type: wait, seconds: 8}
    - {step_id: mood, type: model, model: text-sentiment, params: {text: "{{read.output}}"}}
`;
const SHOW = "orrery execution show $RUN | jq -c '.step_outputs[] | [.step_id, .status, .completed_at]'";
// Setup that the picture does not show: a key and a workflow.
const SETUP = [
  "stty cols 200",
  "orrery >log 2>&1 & until [ -S orrery-data/control.sock ]; do sleep 0.1; done",
  "orrery workflow push workflows",
  "KEY=$(orrery key create --name demo) BASE=http://127.0.0.1:8080",
  "kill %1; wait",
];
const START = "orrery >log 2>&1 &";
const SESSION = [
  START,
  `RUN=$(curl -sS $BASE/v1/workflows/mood/trigger -H "X-API-Key: $KEY" \\\n  -d '{"inputs": {"page": "<p>What a beautiful night!</p>"}}' | jq -r .execution_id)`,
  'sleep 1; kill -9 "$(cat orrery-data/lock)"',
  START,
  "sleep 10",
  SHOW,
];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A shell in a terminal: `run` types a command and returns its lines until the next prompt. */
function terminal() {
  fs.mkdirSync(path.join(folder, "bin"));
  fs.mkdirSync(path.join(folder, "workflows"));
  fs.symlinkSync(orrery, path.join(folder, "bin/orrery"));
  fs.writeFileSync(path.join(folder, "config.toml"), CONFIG);
  fs.writeFileSync(path.join(folder, "workflows/mood.yaml"), WORKFLOW);
  const env = { ...process.env, PATH: `${folder}/bin:${process.env.PATH}`, ORRERY_CONFIG: "config.toml", TERM: "dumb" };
  const shell = spawn("script", ["-q", "-c", `exec env PS1='${PROMPT}' PS2='${MORE}' bash --norc --noprofile -i`, "/dev/null"], {
    cwd: folder,
    env,
    stdio: ["pipe", "pipe", "inherit"],
  });
  let printed = "";
  shell.stdout.on("data", (data) => {
    printed += data.toString().replaceAll(COLORS, "");
  });
  const isAtPrompt = () => printed === PROMPT || printed.endsWith(`\n${PROMPT}`);
  const prompt = async () => {
    for (const start = Date.now(); !isAtPrompt(); await sleep(10))
      if (Date.now() - start > TIMEOUT_MS) throw new Error(`no prompt: ${printed}`);
  };
  const run = async (command) => {
    await prompt();
    printed = "";
    shell.stdin.write(`${command}\n`);
    await prompt();
    const typed = command.split("\n").join(`\n${MORE}`).split("\n");
    return [PROMPT + typed[0], ...typed.slice(1), ...printed.split("\n").slice(typed.length, -1)];
  };
  return { run, end: () => shell.stdin.end("kill %1; wait; exit\n") };
}

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** A line shows its prompt, what was typed, and the output in different colors. */
function marked(text) {
  if (text.startsWith(PROMPT)) return `<tspan class="p">$</tspan><tspan class="c"> ${escaped(text.slice(PROMPT.length))}</tspan>`;
  if (text.startsWith(MORE)) return `<tspan class="c">${escaped(text)}</tspan>`;
  return escaped(text).replace("Killed", '<tspan class="r">Killed</tspan>').replace("completed", '<tspan class="g">completed</tspan>');
}

function svg(rows) {
  const columns = Math.max(...rows.map((text) => text.length));
  const width = Math.round(columns * COLUMN + 2 * MARGIN);
  const height = BAR + rows.length * LINE + MARGIN;
  const texts = rows.map((text, row) => `<text x="${MARGIN}" y="${BAR + (row + 1) * LINE - 5}">${marked(text)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">
<title>A terminal: kill -9 kills the service during a workflow; after a restart, the workflow completes.</title>
<style>
svg { --back: #f6f8fa; --edge: #d1d9e0; --text: #59636e; --command: #1f2328; --prompt: #7a5901; --good: #1a7f37; --bad: #c0262d; }
@media (prefers-color-scheme: dark) {
  svg { --back: #151b23; --edge: #3d444d; --text: #9198a1; --command: #f0f6fc; --prompt: #e2b64c; --good: #3fb950; --bad: #ff7b72; }
}
rect { fill: var(--back); stroke: var(--edge); }
circle { fill: var(--edge); }
text { fill: var(--text); font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
.p { fill: var(--prompt); font-weight: 700; } .c { fill: var(--command); } .g { fill: var(--good); } .r { fill: var(--bad); font-weight: 700; }
</style>
<rect x="0.5" y="0.5" width="${width - 1}" height="${height - 1}" rx="8"/>
<circle cx="22" cy="20" r="5"/><circle cx="40" cy="20" r="5"/><circle cx="58" cy="20" r="5"/>
${texts.join("\n")}
</svg>
`;
}

const shell = terminal();
for (const command of SETUP) await shell.run(command);
const session = [];
for (const command of SESSION) {
  session.push(...(await shell.run(command)));
  await sleep(command === START ? START_MS : PAUSE_MS);
}
shell.end();
fs.writeFileSync(picture, svg(session));
fs.rmSync(folder, { recursive: true });
