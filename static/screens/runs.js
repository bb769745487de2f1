// Runs: the history of the organization with its filters in the URL, and one run with its timeline.

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Copy,
  Empty,
  Field,
  Link,
  Loaded,
  Lost,
  Notice,
  Page,
  Refusal,
  Status,
  Text,
  Time,
  ask,
  duration,
  inFull,
  may,
  money,
  request,
  sentence,
  session,
  statusOf,
  useChanges,
  useLoad,
} from "../core.js";
import { eventsOf, follow, rereading } from "../live.js";
import { go, place, setQuery } from "../location.js";
import { LongText, Output, Tree } from "../output.js";
import { Rows, usePrinting } from "../rows.js";
import { axisOf, rowsOfExecution, rowsOfPrediction } from "../timeline.js";
import { CLASSES, Tabs } from "./models.js";
import { DeliveriesOf } from "./webhooks.js";

const API = "/api/base";
const FINAL = ["success", "error", "cancelled", "completed", "failed"];
const KINDS = [
  ["", "Everything"],
  ["prediction", "Models"],
  ["workflow", "Workflows"],
  ["chat", "Chat"],
  ["agent", "Agent"],
  ["decision", "Decisions"],
];
// Types of runs that have only a row in the history and no other record.
const CALLS = ["chat", "agent", "decision"];
const CALL_FIELDS =
  "id,type,status,model,requested_model,error,error_cause,error_classification,execution_cost,run_time,created_at,started_at,completed_at,output,chat,agent,decision";
// Types of steps that start other runs, or that contain steps that may start some.
const STARTERS = ["workflow", "map", "model"];
const STATES = [
  ["", "Any"],
  ["created,queued,starting,processing,running", "Not finished"],
  ["success,completed", "Succeeded"],
  ["error,failed", "Failed"],
  ["cancelled", "Cancelled"],
];
// What somebody must do before a run can continue: the API has a separate filter for this, but the dashboard shows it
// as a status.
const WAITS = [
  ["event", "Waiting for approval"],
  ["paused", "Paused"],
];
const SINCE = [
  ["", "Any time"],
  ["3600", "The last hour"],
  ["86400", "The last 24 hours"],
  ["604800", "The last 7 days"],
  ["2592000", "The last 30 days"],
];
const NAMES = ["type", "status", "model", "error_classification", "workflow_id", "workflow_execution_id", "waiting_for"];

export function List() {
  const { query } = place.value;
  const filters = Object.fromEntries([...NAMES, "since", "cursor"].map((name) => [name, query.get(name) ?? ""]));
  const key = JSON.stringify(filters);
  const load = (signal) => {
    const asked = new URLSearchParams({ limit: "50" });
    for (const name of NAMES) if (filters[name]) asked.set(name, filters[name]);
    // A cursor is valid only for the filters with which it was created, including the time.
    const from = query.get("from") ?? (filters.since ? new Date(Date.now() - Number(filters.since) * 1000).toISOString() : "");
    if (from) asked.set("from", from);
    if (filters.cursor) asked.set("cursor", filters.cursor);
    return ask("GET", `${API}/v2/executions?${asked}`, undefined, { signal }).then((page) => ({ ...page, from }));
  };
  const runs = useLoad(load, [key]);
  useChanges(["runs", "status"], runs);
  const [isActing, setActing] = useState(null);
  // Changing a filter starts at the newest run again.
  const set = (changes) => setQuery({ ...changes, cursor: "", from: "" });
  const select = (label, name, options, chosen = filters[name], changes = (value) => ({ [name]: value })) =>
    html`<${Field} label=${label}>${(
      field,
    ) => html`<select ...${field} value=${chosen} onChange=${(event) => set(changes(event.currentTarget.value))}>
    ${options.map(([value, word]) => html`<option value=${value}>${word}</option>`)}${chosen && !options.some(([value]) => value === chosen) ? html`<option value=${chosen}>${chosen}</option>` : null}</select>`}</${Field}>`;
  const isFiltered = NAMES.some((name) => filters[name]) || filters.since;
  const [model, setModel] = useState(filters.model);
  useEffect(() => setModel(filters.model), [filters.model]);
  const rows = runs.data?.executions ?? [];
  const waiting = rows.filter((run) => !FINAL.includes(run.status) && !CALLS.includes(run.type) && !run.workflow_execution_id);
  const failed = rows.filter((run) => run.type === "workflow" && run.status === "failed");
  return html`<${Page} title="Runs" wide=${true} intro="Everything that ran in your organization, newest first."
    actions=${html`${waiting.length > 1 && isFiltered ? html`<${Button} icon="ban" needs="operator" onClick=${() => setActing({ what: "cancel", all: waiting })}>Cancel ${waiting.length}</${Button}>` : null}
      ${failed.length > 1 && isFiltered ? html`<${Button} icon="rotate-ccw" needs="operator" onClick=${() => setActing({ what: "redrive", all: failed })}>Run ${failed.length} again</${Button}>` : null}
      <${Button} icon="refresh-cw" busy=${runs.loading} onClick=${runs.reload}>Refresh</${Button}>`}>
    <form class="filters" onSubmit=${(event) => {
      event.preventDefault();
      set({ model });
    }}>
      ${select("What", "type", KINDS)}${select("Status", "status", [...STATES, ...WAITS], filters.waiting_for || filters.status, stateOf)}${select("When", "since", SINCE)}
      ${select("Why it failed", "error_classification", [["", "Any reason"], ...Object.entries(CLASSES).map(([value, word]) => [value, word.replace(/\.$/, "")])])}
      <${Field} label="Model">${(field) => html`<input ...${field} type="search" value=${model} placeholder="Whole name" onInput=${(event) => setModel(event.currentTarget.value)} onChange=${() => set({ model })} />`}</${Field}>
      ${isFiltered ? html`<${Button} onClick=${() => go("/app/runs")}>Clear the filters</${Button}>` : null}</form>
    <${Loaded} of=${runs} empty=${(data) =>
      data.executions.length
        ? null
        : isFiltered
          ? html`<${Empty} icon="search" title="Nothing matches these filters"><${Button} onClick=${() => go("/app/runs")}>Clear the filters</${Button}></${Empty}>`
          : html`<${Empty} icon="activity" title="Nothing has run yet"><p><${Link} to="/app/models/text-sentiment">Run a first model</${Link}> and it appears here.</p></${Empty}>`}>${(
      data,
    ) => html`
      <div class="card scroll"><table aria-busy=${runs.loading}><thead><tr><th scope="col">What</th><th scope="col">Status</th><th scope="col">Started</th><th scope="col" class="number">Took</th><th scope="col" class="number">Cost</th><th scope="col">From</th></tr></thead>
      <tbody>${data.executions.map(
        (run) => html`<tr key=${run.id} class="opens" onClick=${(event) => {
          if (!event.target.closest("a") && !getSelection().toString()) go(target(run));
        }}>
        <th scope="row"><${Link} to=${target(run)}><${Text}>${run.workflow_name ?? run.requested_model ?? run.model ?? run.type}</${Text}></${Link}>${run.type === "prediction" ? null : html` <span class="tag">${run.type}</span>`}${run.workflow_execution_id ? html` <span class="tag">step</span>` : null}
          ${run.error ? html`<div class="reason"><${Text}>${run.error_cause ?? run.error}</${Text}></div>` : null}</th>
        <td data-label="Status"><${Status} of=${statusOf(run)} /></td><td data-label="Started"><${Time} at=${run.created_at} /></td>
        <td data-label="Took" class="number">${run.run_time === null ? "–" : duration(run.run_time)}</td><td data-label="Cost" class="number">${money(run.execution_cost)}</td>
        <td data-label="From"><span class="quiet">${{ api: "API", dashboard: "Dashboard", agent: "Agent" }[run.source] ?? run.source}</span></td></tr>`,
      )}</tbody></table></div>
      <div class="actions">${filters.cursor ? html`<${Button} onClick=${() => setQuery({ cursor: "", from: "" }, {})}>Newest</${Button}>` : null}
        ${data.has_more ? html`<${Button} icon="chevron-right" onClick=${() => setQuery({ cursor: data.next_cursor, from: data.from }, {})}>Older runs</${Button}>` : null}</div>`}</${Loaded}>
    ${
      isActing
        ? html`<${Many} ...${isActing} onClose=${() => {
            setActing(null);
            runs.reload();
          }} />`
        : null
    }</${Page}>`;
}

const stateOf = (value) =>
  WAITS.some(([known]) => known === value) ? { status: "", waiting_for: value } : { status: value, waiting_for: "" };

const target = (run) => `/app/runs/${run.id}${run.type === "prediction" ? "" : `?type=${run.type}`}`;

// Cancels or repeats all runs of this page, one after another, and reports the results.
function Many({ what, all, onClose }) {
  const [report, setReport] = useState(null);
  const act = async () => {
    let done = 0;
    const refused = [];
    for (const run of all) {
      const path = run.type === "workflow" ? `${API}/v1/workflows/executions/${run.id}/${what}` : `${API}/v1/prediction/${run.id}/${what}`;
      try {
        await ask("POST", path, {});
        done += 1;
      } catch (error) {
        refused.push(sentence(error));
      }
    }
    if (refused.length) throw new Refusal(409, `${done} of ${all.length} done. ${refused[0]}`);
    setReport(done);
  };
  return html`<${Confirm} title=${what === "cancel" ? `Cancel ${all.length} runs?` : `Run ${all.length} workflows again?`} action=${what === "cancel" ? "Cancel them" : "Run them again"} onDo=${act} onClose=${onClose}>
    <p>${what === "cancel" ? "The runs on this page that have not finished are stopped. This cannot be undone." : "Each failed workflow on this page resumes from the step that failed, as a new run."}</p>${report}</${Confirm}>`;
}

// Returns the current name of a workflow or, if it is deleted, the name recorded with its runs.
async function workflowOf(id, get) {
  try {
    const { name } = await get(`${API}/v1/workflows/${id}`);
    return { name, isDeleted: false };
  } catch (error) {
    const rows = await get(`${API}/v2/executions?workflow_id=${id}&limit=1&fields=workflow_name`).catch(() => null);
    return { name: rows?.executions[0]?.workflow_name ?? null, isDeleted: error.status === 404 };
  }
}

// A run is a prediction, a workflow execution, or a call of the chat router.
async function load(id, type, signal) {
  const get = (path) => ask("GET", path, undefined, { signal });
  const isMissing = (error) => error instanceof Refusal && [400, 404].includes(error.status);
  if (type !== "workflow" && !CALLS.includes(type)) {
    try {
      return { type: "prediction", record: await get(`${API}/v1/prediction/${id}`) };
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }
  if (!CALLS.includes(type)) {
    try {
      const record = await get(`${API}/v1/workflows/executions/${id}?timeout=0`);
      return { type: "workflow", record, workflow: record.workflow_id ? await workflowOf(record.workflow_id, get) : null };
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }
  for (const one of CALLS.includes(type) ? [type] : CALLS) {
    const page = await get(`${API}/v2/executions?type=${one}&limit=100&fields=${CALL_FIELDS}`);
    const found = page.executions.find((row) => row.id === id);
    if (found) return { type: one, record: found };
  }
  throw new Refusal(404, "not found");
}

export function Detail({ id }) {
  const type = place.value.query.get("type");
  const run = useLoad((signal) => load(id, type, signal), [id, type]);
  const [now, setNow] = useState(Date.now());
  const isLive = run.data && !CALLS.includes(run.data.type) && !FINAL.includes(run.data.record.status);
  const [lost, setLost] = useState(null);
  const [problem, setProblem] = useState(null);
  // If the page may keep a connection open, it reloads only after events.
  useEffect(() => {
    if (!isLive) return undefined;
    const abort = new AbortController();
    const clock = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, 500);
    const { type: kind, workflow: of } = run.data;
    const show = (record) => {
      setNow(Date.now());
      run.set({ type: kind, record, workflow: of });
      return FINAL.includes(record.status);
    };
    let tag = "";
    const execution = `${API}/v1/workflows/executions/${id}`;
    const workflow = async (mayHold, signal) => {
      const read = async () => {
        const answer = await request("GET", `${execution}?timeout=0`, undefined, { signal, headers: { "if-none-match": tag || '""' } });
        tag = answer.headers.get("etag") ?? "";
        return answer.status === 304 ? false : show(await answer.json());
      };
      if (!mayHold) return read();
      const look = rereading(read, signal);
      const on = { begin: look, status: look, step: look, wait: look, pause: look, resume: look, lost: setLost };
      return show(await eventsOf(execution, on, signal, "?timeout=0"));
    };
    const prediction = async (mayHold, signal) => {
      const path = `${API}/v1/prediction/${id}`;
      const read = () => ask("GET", path, undefined, { signal }).then(show);
      if (!mayHold) return read();
      return show(await eventsOf(path, { status: () => read().catch(() => null), lost: setLost }, signal));
    };
    follow(kind === "workflow" ? workflow : prediction, { signal: abort.signal, onLost: setLost }).then(() => setLost(null), setProblem);
    return () => {
      abort.abort();
      clearInterval(clock);
    };
  }, [id, isLive]);
  if (!run.data) return html`<${Page} title="Run"><${Loaded} of=${run}>${() => null}</${Loaded}></${Page}>`;
  return html`<${Shown} key=${id} id=${id} type=${run.data.type} workflow=${run.data.workflow} record=${run.data.record} now=${now} lost=${lost} problem=${problem} reload=${run.reload} />`;
}

function Shown({ id, type, workflow, record, now, lost, problem, reload }) {
  const isOver = FINAL.includes(record.status);
  const [state, setState] = useState({ busy: null, error: null });
  const tab = place.value.query.get("tab") ?? "timeline";
  const name =
    type === "workflow"
      ? `${workflow?.name ?? "Workflow"}, ${inFull(record.created_at)}`
      : (record.model ?? record.requested_model ?? "Call");
  const isCall = CALLS.includes(type);
  const act = (what, path, then) => async () => {
    setState({ busy: what, error: null });
    try {
      const answer = await ask("POST", path, {});
      setState({ busy: null, error: null });
      then(answer);
    } catch (error) {
      setState({ busy: null, error });
    }
  };
  const base = type === "workflow" ? `${API}/v1/workflows/executions/${id}` : `${API}/v1/prediction/${id}`;
  const again = (answer) => go(`/app/runs/${answer.execution_id}?type=workflow`);
  const metrics = record.metrics ?? { cost: record.execution_cost };
  const error = record.error_cause ?? record.error;
  const command = `curl -s ${session.value.hosts?.find((host) => host.role === "base")?.url ?? ""}${base.slice(API.length)} -H "X-API-Key: $ORRERY_KEY"`;
  const paused = record.waiting_for?.find((one) => one.reason === "paused");
  const tabs = [
    ["timeline", "Timeline"],
    ["input", "Input"],
    ["output", "Output"],
    ["logs", "Logs"],
    ["webhook", "Webhook"],
    ["raw", "Raw"],
  ];
  return html`<${Page} title=${name} wide=${true} intro=${html`<span class="mono">${id}</span>`} actions=${html`
      ${
        type === "workflow" && !isOver
          ? paused
            ? html`<${Button} kind="primary" icon="play" needs="operator" busy=${state.busy === "resume"} onClick=${act("resume", `${base}/resume`, reload)}>Resume</${Button}>`
            : html`<${Button} icon="clock" needs="operator" busy=${state.busy === "pause"} onClick=${act("pause", `${base}/pause`, reload)}>Pause</${Button}>`
          : null
      }
      ${!isOver && !isCall ? html`<${Button} icon="square" needs="operator" busy=${state.busy === "cancel"} onClick=${act("cancel", `${base}/cancel`, reload)}>Cancel</${Button}>` : null}
      ${type === "workflow" && ["failed", "cancelled"].includes(record.status) ? html`<${Button} kind="primary" icon="rotate-ccw" needs="operator" busy=${state.busy === "redrive"} onClick=${act("redrive", `${base}/redrive`, again)}>Resume from the failed step</${Button}>` : null}
      ${
        type === "prediction" && isOver
          ? html`<${Button} icon="play" onClick=${() => {
              try {
                sessionStorage.setItem(`input:${record.model}`, JSON.stringify(record.input));
              } catch {
                /* The form starts empty. */
              }
              go(`/app/models/${record.model}`);
            }}>Open in the playground</${Button}>`
          : null
      }
      <${Copy} text=${id} label="Copy the id" />${isCall ? null : html`<${Copy} text=${command} label="Copy as curl" />`}`}>
    ${(state.error ?? problem) ? html`<${Notice} kind="error">${sentence(state.error ?? problem)}</${Notice}>` : null}${lost ? html`<${Lost} />` : null}
    ${paused ? html`<${Notice} kind="warning">Paused by <${Text}>${paused.by}</${Text}> since ${inFull(paused.since)}. Running steps finish, and no others start until somebody resumes it; timeouts are extended.</${Notice}>` : null}
    <dl class="facts"><div><dt>Status</dt><dd><${Status} of=${statusOf(record)} /></dd></div>
      <div><dt>Created</dt><dd><${Time} at=${record.created_at} /></dd></div>
      <div><dt>In the queue</dt><dd>${Number.isFinite(metrics.queue_time) ? duration(metrics.queue_time) : "–"}</dd></div>
      <div><dt>Ran for</dt><dd>${runTime(record, metrics, now)}</dd></div><div><dt>Cost</dt><dd>${money(metrics.cost)}</dd></div>
      ${record.version_id ? html`<div><dt>Version</dt><dd>${record.version_id}</dd></div>` : null}</dl>
    ${error ? html`<${Notice} kind="error"><strong>${CLASSES[record.error_classification] ?? "It failed."}</strong> <${Text}>${error}</${Text}></${Notice}>` : null}
    ${
      type === "workflow" && record.workflow_id
        ? html`<p class="marks">${workflow?.isDeleted ? html`<span class="quiet">The workflow is deleted.</span>` : html`<${Link} to=${`/app/workflows/${record.workflow_id}?v=${encodeURIComponent(record.version_id)}`}>Open the workflow</${Link}>`}
      ${Object.values(record.step_outputs ?? {}).some((step) => STARTERS.includes(step.type)) ? html`<${Link} to=${`/app/runs?workflow_execution_id=${id}`}>The runs that its steps started</${Link}>` : null}</p>`
        : null
    }
    ${record.redriven_from ? html`<p>This run continues <${Link} to=${`/app/runs/${record.redriven_from}?type=workflow`}>an earlier one</${Link}>.</p>` : null}
    ${record.parent_execution_id ? html`<p>The step <code><${Text}>${record.parent_step_id}</${Text}></code> of <${Link} to=${`/app/runs/${record.parent_execution_id}?type=workflow`}>another run</${Link}> started this one.</p>` : null}
    ${
      isCall
        ? html`<${Call} record=${record} />`
        : html`<${Tabs} tabs=${tabs} chosen=${tab} label="Run" onChoose=${(one) => setQuery({ tab: one === "timeline" ? "" : one })} />
    ${tab === "timeline" ? html`<${Timeline} type=${type} record=${record} now=${now} />` : null}
    ${tab === "input" ? html`<${Payload} value=${record.input ?? record.inputs} problem=${record.input_error ?? record.inputs_error} />` : null}
    ${tab === "output" ? (record.output_error ? html`<${Notice} kind="error"><${Text}>${record.output_error}</${Text}></${Notice}>` : html`<${Output} value=${record.output} />`) : null}
    ${tab === "logs" ? html`<${Logs} record=${record} />` : null}
    ${tab === "webhook" ? html`<${DeliveriesOf} run=${id} />` : null}
    ${tab === "raw" ? html`<div class="json card pad"><${Tree} value=${record} open=${true} /></div><div><${Copy} text=${JSON.stringify(record, null, 2)} label="Copy as JSON" /></div>` : null}`
    }</${Page}>`;
}

function runTime(record, metrics, now) {
  const known = metrics.predict_time ?? metrics.run_time ?? record.run_time;
  if (Number.isFinite(known)) return duration(known);
  return record.started_at && !record.completed_at ? duration((now - Date.parse(record.started_at)) / 1000) : "–";
}

function Payload({ value, problem }) {
  if (problem) return html`<${Notice} kind="error"><${Text}>${problem}</${Text}></${Notice}>`;
  if (value === null || value === undefined) return html`<p class="quiet">It is no longer stored.</p>`;
  return html`<div class="json card pad"><${Tree} value=${value} open=${true} /></div><div><${Copy} text=${JSON.stringify(value, null, 2)} label="Copy as JSON" /></div>`;
}

function Logs({ record }) {
  const steps = Object.values(record.step_outputs ?? {}).filter((step) => step.metadata?.logs);
  if (record.logs) return html`<${LongText} text=${record.logs} />`;
  if (!steps.length) return html`<p class="quiet">Nothing was logged.</p>`;
  return steps.map(
    (step) =>
      html`<section key=${step.step_id}><h3><${Text}>${step.step_id}</${Text}></h3><${LongText} text=${step.metadata.logs} /></section>`,
  );
}

// A call of the chat router, of the agent, or a decision, shown from its row.
function Call({ record }) {
  const { chat, agent, decision } = record;
  const words = chat
    ? [
        ["Asked for", record.requested_model],
        ["Answered by", `${record.model}${chat.upstream ? " (upstream)" : ""}`],
        ["Tokens in", `${chat.input_tokens}${chat.tokens_estimated ? " (estimated)" : ""}`],
        ["Tokens out", chat.output_tokens],
        ["First byte", Number.isFinite(chat.first_byte_time) ? duration(chat.first_byte_time) : "–"],
      ]
    : Object.entries(agent ?? decision ?? {})
        .filter(([, value]) => value !== null && typeof value !== "object")
        .map(([name, value]) => [name.replaceAll("_", " "), String(value)]);
  return html`${words.length ? html`<dl class="facts">${words.map(([name, value]) => html`<div key=${name}><dt>${name.charAt(0).toUpperCase()}${name.slice(1)}</dt><dd><${Text}>${value}</${Text}></dd></div>`)}</dl>` : null}
    ${agent?.session_id ? html`<p><${Link} to=${`/app/chat?with=agent&session=${encodeURIComponent(agent.session_id)}`}>Open the session in the chat</${Link}></p>` : null}
    ${record.output ? html`<section><h2>Answer</h2><${LongText} text=${record.output} /></section>` : html`<p class="quiet">The conversation is not stored here.</p>`}`;
}

// The timeline: a table with bars, whose text contains the same information.
function Timeline({ type, record, now }) {
  const rows = type === "workflow" ? rowsOfExecution(record, now) : rowsOfPrediction(record, now);
  const from = Date.parse(record.created_at);
  const to = record.completed_at ? Date.parse(record.completed_at) : now;
  const axis = useMemo(
    () =>
      axisOf(
        rows.flatMap((row) => row.bars),
        from,
        to,
      ),
    [record, now],
  );
  const failedAt = rows.findIndex((row) => ["failed", "error"].includes(row.status));
  const chosen = place.value.query.get("step") ?? rows[failedAt]?.id ?? null;
  const isPrinted = usePrinting();
  const waiting = (record.waiting_for ?? []).filter((one) => one.reason !== "paused");
  return html`${waiting.length ? html`<${Notice}>${waiting.map((one, at) => html`<span key=${at}>${at ? " " : ""}${sentenceOf(one)}</span>`)}</${Notice}>` : null}
    <div class="card scroll timeline"><table><thead><tr><th scope="col">${type === "workflow" ? "Step" : "What"}</th><th scope="col">Status</th><th scope="col" class="number">Took</th>
      <th scope="col" class="axis"><span class="hidden">Bars from ${inFull(from)} to ${inFull(to)}</span><span aria-hidden="true">0</span><span aria-hidden="true">${duration((to - from) / 1000)}</span></th></tr></thead>
    <${Rows} all=${rows} columns="4" start=${failedAt < 0 ? null : failedAt}>${(row) => html`<${Row} key=${row.id} row=${row} axis=${axis} isOpen=${(isPrinted && type === "workflow") || chosen === row.id} opens=${type === "workflow" || Boolean(row.error)} />`}</${Rows}></table></div>
    <p class="legend-row quiet"><span class="key queued"></span> waits <span class="key good"></span> succeeded <span class="key bad"></span> failed <span class="key active"></span> runs${axis.gaps.length ? html` <span class="key gap"></span> time without activity, shortened` : null}</p>`;
}

function Row({ row, axis, isOpen, opens }) {
  const took = row.bars.reduce((sum, bar) => sum + Math.max(0, bar.to - bar.from), 0) / 1000;
  const toggle = () => setQuery({ step: isOpen ? "-" : row.id });
  return html`<tr class=${isOpen ? "open" : ""}><th scope="row">${opens ? html`<button type="button" class="twist" aria-expanded=${isOpen} onClick=${toggle}><${Text}>${row.name}</${Text}></button>` : html`<${Text}>${row.name}</${Text}>`}
      ${row.note ? html`<div class="quiet note"><${Text}>${row.note}</${Text}></div>` : null}</th>
    <td data-label="Status">${row.status ? html`<${Status} of=${row.status} />` : html`<span class="quiet">–</span>`}</td><td data-label="Took" class="number">${row.bars.length ? duration(took) : "–"}</td>
    <td class="lane"><div class="track" aria-hidden="true">${axis.gaps.map((gap, at) => html`<span key=${`gap-${at}`} class="gap" title=${`${duration((gap.to - gap.from) / 1000)} without activity`} style=${{ left: `${axis.at(gap.from)}%`, width: `${axis.at(gap.to) - axis.at(gap.from)}%` }}></span>`)}
      ${row.bars.map((bar, at) => html`<span key=${at} class=${`span ${bar.kind}`} title=${duration((bar.to - bar.from) / 1000)} style=${{ left: `${axis.at(bar.from)}%`, width: `max(3px, ${axis.at(bar.to) - axis.at(bar.from)}%)` }}></span>`)}</div></td></tr>
    ${isOpen ? html`<tr class="detail"><td colspan="4"><${StepDetail} row=${row} /></td></tr>` : null}`;
}

function StepDetail({ row }) {
  const { step } = row;
  const error = row.cause ?? row.error;
  return html`<div class="stack">${error ? html`<${Notice} kind="error"><${Text}>${error}</${Text}></${Notice}>` : null}
    ${step?.metadata?.primary_error ? html`<${Notice} kind="warning">The step itself failed, and its fallback ran: <${Text}>${step.metadata.primary_error}</${Text}></${Notice}>` : null}
    ${step?.attempts?.length > 1 ? html`<ol class="attempts">${step.attempts.map((attempt) => html`<li key=${attempt.number}><${Status} of=${attempt.status} /> ${attempt.model ? html`<${Text}>${attempt.model}</${Text}>, ` : null}<${Time} at=${attempt.started_at} />${attempt.completed_at ? `, ${duration((Date.parse(attempt.completed_at) - Date.parse(attempt.started_at)) / 1000)}` : ""}${attempt.error ? html`<div class="reason"><${Text}>${attempt.error}</${Text}></div>` : null}</li>`)}</ol>` : null}
    ${
      step
        ? html`<details><summary>Input</summary><${Payload} value=${step.input} problem=${step.input_error ?? (step.metadata?.omitted ? "It is too large to be shown here; the API returns it." : null)} /></details>
    <details open=${step.status === "completed"}><summary>Output</summary>${step.output_error ? html`<${Notice} kind="error"><${Text}>${step.output_error}</${Text}></${Notice}>` : html`<${Output} value=${step.output} />`}</details>
    ${step.metadata?.prediction_id ? html`<p><${Link} to=${`/app/runs/${step.metadata.prediction_id}`}>The model's run</${Link}></p>` : null}
    ${step.metadata?.execution_id ? html`<p><${Link} to=${`/app/runs/${step.metadata.execution_id}?type=workflow`}>The run that it started</${Link}></p>` : null}`
        : null
    }</div>`;
}

function sentenceOf(one) {
  switch (one.reason) {
    case "lane":
      // The numbers count only the organization's own work; the work of other organizations may occupy every slot.
      return `It waits in the queue${one.position ? `, at position ${one.position}` : ""}${one.running ? `; ${one.running} of the same workflow ${one.running === 1 ? "is" : "are"} running` : ""}.`;
    case "model":
      return one.running
        ? `“${one.step_id}” waits for the model ${one.model}, which has ${one.running} running and ${one.queued} waiting.`
        : `“${one.step_id}” waits for a free slot of the model ${one.model}.`;
    case "timer":
      return `“${one.step_id}” waits until ${inFull(one.until)}.`;
    case "retry":
      return `“${one.step_id}” is retried at ${inFull(one.at)}, attempt ${one.attempt}.`;
    case "step":
      return `“${one.step_id}” is running${one.attempt > 1 ? `, attempt ${one.attempt}` : ""}.`;
    case "event":
      return html`“${one.step_id}” waits for the event “${one.event}” until ${inFull(one.until)}. ${may("operator") ? html`<a href=${one.resume_url} target="_blank" rel="noopener noreferrer">Answer it</a>` : null}`;
    case "workflow":
      return html`“${one.step_id}” waits for <${Link} to=${`/app/runs/${one.execution_id}?type=workflow`}>the run that it started</${Link}>.`;
    default:
      return "The service had a problem and is retrying.";
  }
}
