// The fields of one step, by its type. A field changes only its own part of the step; parts without a field stay as
// written.

import { html, useRef, useState } from "../vendor/preact.js";
import { Button, Field, Icon, Input, Link, Notice, Text, useLoad } from "../core.js";
import { Json } from "../form.js";
import { isNullable, propertiesOf, resolve, typesOf } from "../schema.js";
import { useAlternatives } from "../values.js";
import { changed, idOf, valueAt } from "./flow.js";
import { allWorkflows, workflowWithInputs } from "./service.js";
import { Pairs, Template } from "./text.js";

const CLASSES = [
  "content_moderation",
  "execution_timeout",
  "invalid_user_input",
  "invalid_model_config",
  "provider_auth",
  "provider_error",
  "provider_rate_limit",
  "provider_unavailable",
  "internal_error",
  "unknown",
];
const OPERATORS = {
  equals: "is",
  not_equals: "is not",
  greater_than: "is more than",
  less_than: "is less than",
  greater_than_or_equal: "is at least",
  less_than_or_equal: "is at most",
  contains: "contains",
  matches: "matches the pattern",
  in: "is one of",
  not_in: "is none of",
  exists: "is there",
  not_exists: "is not there",
  is_null: "is null",
  is_not_null: "is not null",
};
const UNARY = ["exists", "not_exists", "is_null", "is_not_null"];

// `errors`: the service's errors by their location in the step.
export function StepFields({ step, onStep, offers, errors, models, own, siblings }) {
  const set = (path, next, said) => onStep(changed(step, path, next), said);
  const error = (place) => errors.find((one) => one.within === place)?.message;
  const tools = { step, set, onStep, offers, error, errors, models, own };
  const Part = { model: Model, http: Http, parallel: Parallel, choice: Choice, map: Each, wait: Wait, workflow: Other, pass: Value }[
    step.type
  ];
  const shown = new Set();
  const general = errors.filter(
    (one) => !one.within.includes("/") && !FIELDS.has(one.within) && !shown.has(one.message) && shown.add(one.message),
  );
  const key = step.step_id === undefined && step.id !== undefined ? "id" : "step_id";
  return html`<div class="stack">${general.length ? html`<${Notice} kind="error">${general.map((one) => html`<p key=${one.message}><${Text}>${one.message}</${Text}></p>`)}</${Notice}>` : null}
    <div class="pairs-2"><${Input} label="Id" class="mono" hint="References to this step begin with it." error=${error("step_id") ?? error("id")} value=${idOf(step)} maxlength="64" onValue=${(next) => set([key], next)} />
      <${Input} label="Name" optional=${true} error=${error("name")} value=${step.name ?? ""} onValue=${(next) => set(["name"], next || undefined)} /></div>
    ${Part ? html`<${Part} ...${tools} />` : html`<${Notice} kind="warning">Steps of the type “<${Text}>${String(step.type)}</${Text}>” have no fields here. The JSON tab shows all of it.</${Notice}>`}
    <${Running} ...${tools} siblings=${siblings} /></div>`;
}

// Locations of errors that the field itself shows.
const FIELDS = new Set([
  "step_id",
  "id",
  "name",
  "model",
  "url",
  "items",
  "item_name",
  "seconds",
  "until",
  "result",
  "condition",
  "output",
  "body",
  "max_concurrency",
  "timeout_seconds",
  "depends_on",
  "method",
  "headers",
  "query_params",
  "fail_when",
  "workflow",
  "version_id",
  "inputs",
  "wait",
]);

function ModelChoice({ label, value, onValue, models, error }) {
  const known = models?.some((one) => one.slug === value);
  return html`<${Field} label=${label} error=${error}>${(
    field,
  ) => html`<select ...${field} value=${value ?? ""} onChange=${(event) => onValue(event.currentTarget.value)}>
    ${known ? null : html`<option value=${value ?? ""}>${value ? `${value} (unknown)` : "Please choose"}</option>`}
    ${(models ?? []).map((one) => html`<option value=${one.slug}>${one.title === one.slug ? one.slug : `${one.title} (${one.slug})`}</option>`)}</select>`}</${Field}>`;
}

function Model({ step, set, offers, error, errors, models }) {
  const model = models?.find((one) => one.slug === step.model);
  return html`<${ModelChoice} label="Model" value=${step.model} models=${models} error=${error("model")} onValue=${(next) => set(["model"], next)} />
    <${Params} schema=${model?.request_schema} value=${step.params} errors=${errors} at="params" offers=${offers} onValue=${(next) => set(["params"], next)} />
    ${model ? html`<p class="hint"><${Link} to=${`/app/models/${model.slug}`}>Try ${model.slug}</${Link}> in its playground.</p>` : null}
    <details open=${Boolean(step.fallback)}><summary>If it fails</summary><div class="stack">
      <p class="hint">Another model runs if this one fails and is not retried.</p>
      ${
        step.fallback
          ? html`<${ModelChoice} label="Model instead" value=${step.fallback.model} models=${models} error=${error("fallback/model")} onValue=${(next) => set(["fallback", "model"], next)} />
        <${Params} schema=${models?.find((one) => one.slug === step.fallback.model)?.request_schema} value=${step.fallback.params} errors=${errors} at="fallback/params" offers=${offers} onValue=${(next) => set(["fallback", "params"], next)} />
        <div><${Button} icon="x" onClick=${() => set(["fallback"], undefined, "The fallback is removed.")}>Remove the fallback</${Button}></div>`
          : html`<div><${Button} icon="plus" onClick=${() => set(["fallback"], { model: "", params: step.params ?? {} })}>Add a fallback</${Button}></div>`
      }</div></details>`;
}

// The input of a model: a field for each part.
function Params({ schema, value, onValue, errors, at, offers }) {
  const root = resolve(schema, schema) ?? {};
  const known = propertiesOf(root);
  const required = Array.isArray(root.required) ? root.required : [];
  const given = value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
  const others = Object.keys(given)
    .filter((name) => !known.some(([one]) => one === name))
    .map((name) => /** @type {[string, any]} */ ([name, {}]));
  const error = (name) => errors.find((one) => one.within === `${at}/${name}` || one.within.startsWith(`${at}/${name}/`))?.message;
  const whole = errors.find((one) => one.within === at)?.message;
  if (!known.length && !others.length) return html`<${Json} label="Input" value=${value} error=${whole} onValue=${onValue} />`;
  return html`<fieldset><legend>Input</legend>${whole ? html`<p class="field-error"><${Icon} name="circle-alert" /><${Text}>${whole}</${Text}></p>` : null}
    ${[...known, ...others].map(([name, one]) => {
      const part = resolve(one, root) ?? {};
      const isText = typesOf(part).join() === "string" && !isNullable(part) && !part.enum;
      const choices = Array.isArray(part.enum)
        ? `One of ${part.enum.map((item) => JSON.stringify(item)).join(", ")}. `
        : typesOf(part).includes("boolean")
          ? "true or false. "
          : "";
      return html`<${Template} key=${name} label=${part.title ?? name} hint=${`${choices}${typeof part.description === "string" ? part.description : ""}` || undefined} error=${error(name)}
        optional=${!required.includes(name)} isText=${isText} rows=${isText && !(part.maxLength <= 200) && !part.format ? 2 : 1} value=${given[name]} offers=${offers}
        onValue=${(next) => onValue(changed(given, [name], next))} />`;
    })}</fieldset>`;
}

const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

function Http({ step, set, offers, error }) {
  const auth = step.auth ?? null;
  const kind = auth?.type ?? "";
  const [leaveAuth, leaveFailing] = [useAlternatives(), useAlternatives()];
  const text = (label, path, more = {}) =>
    html`<${Template} label=${label} isText=${true} optional=${true} value=${valueAt(step, path)} error=${error(path.join("/"))} offers=${offers} onValue=${(next) => set(path, next)} ...${more} />`;
  const failing = Array.isArray(step.fail_when) ? "codes" : (step.fail_when ?? "connection_error");
  return html`<div class="pairs-1-3"><${Field} label="Method" error=${error("method")}>${(field) => html`<select ...${field} value=${step.method ?? "GET"} onChange=${(event) => set(["method"], event.currentTarget.value)}>${METHODS.map((one) => html`<option>${one}</option>`)}</select>`}</${Field}>
      ${text("URL", ["url"], { optional: false })}</div>
    <${Template} label="Body" hint="JSON, or a text that is sent as it is." optional=${true} rows=${3} value=${step.body} error=${error("body")} offers=${offers} onValue=${(next) => set(["body"], next)} />
    <${Pairs} label="Headers" name="X-Header" isText=${true} value=${step.headers} offers=${offers} error=${error("headers")} onValue=${(next, said) => set(["headers"], next, said)} />
    <${Pairs} label="Query" name="name" value=${step.query_params} offers=${offers} error=${error("query_params")} onValue=${(next, said) => set(["query_params"], next, said)} />
    <fieldset><legend>Authentication <span class="quiet">(optional)</span></legend>
      <${Field} label="Kind" error=${error("auth/type")}>${(
        field,
      ) => html`<select ...${field} value=${kind} onChange=${({ currentTarget: { value } }) => set(["auth"], leaveAuth(kind, auth ?? undefined, value, value ? { type: value } : undefined))}>
        <option value="">None</option><option value="bearer">Bearer token</option><option value="basic">Name and password</option><option value="api_key">API key</option></select>`}</${Field}>
      ${auth ? html`<p class="hint">It is stored encrypted; three asterisks represent the stored value.</p>` : null}
      ${auth?.type === "bearer" ? text("Token", ["auth", "token"], { optional: false }) : null}
      ${auth?.type === "basic" ? html`${text("User name", ["auth", "username"], { optional: false })}${text("Password", ["auth", "password"], { optional: false })}` : null}
      ${
        auth?.type === "api_key"
          ? html`${text("Name of the header or parameter", ["auth", "name"])}${text("Key", ["auth", "value"], { optional: false })}
        <${Field} label="Where">${(field) => html`<select ...${field} value=${auth.in ?? "header"} onChange=${(event) => set(["auth", "in"], event.currentTarget.value)}><option value="header">In a header</option><option value="query">In the query</option></select>`}</${Field}>`
          : null
      }</fieldset>
    <${Field} label="The step fails" error=${error("fail_when")}>${(
      field,
    ) => html`<select ...${field} value=${failing} onChange=${({ currentTarget: { value } }) => set(["fail_when"], leaveFailing(failing, step.fail_when ?? failing, value, value === "codes" ? [500] : value))}>
      <option value="connection_error">when nothing answers</option><option value="non_2xx">when the answer is not a success (2xx)</option><option value="codes">on certain status codes</option></select>`}</${Field}>
    ${failing === "codes" ? html`<${Json} label="Status codes" hint="A list of numbers" rows=${2} value=${step.fail_when} onValue=${(next) => set(["fail_when"], next)} />` : null}
    <details open=${Boolean(step.fallback)}><summary>If it fails</summary><${Json} label="A second request" hint="url, and optionally method, headers, query_params, body" optional=${true} value=${step.fallback} onValue=${(next) => set(["fallback"], next)} error=${error("fallback")} /></details>`;
}

function Parallel({ step, set, error }) {
  const branches = Array.isArray(step.branches) ? step.branches : [];
  return html`<p class="hint">The branches run at the same time. The output is a list with the output of each branch's last step.</p>
    ${error("branches") ? html`<${Notice} kind="error"><${Text}>${error("branches")}</${Text}></${Notice}>` : null}
    ${branches.map(
      (
        branch,
        at,
      ) => html`<div class="item" key=${at}><${Input} label=${`Name of branch ${at + 1}`} optional=${true} error=${error(`branches/${at}/name`)} value=${branch?.name ?? ""} onValue=${(next) => set(["branches", at, "name"], next || undefined)} />
      <${Button} icon="trash-2" disabled=${branches.length < 2} onClick=${() => set(["branches", at], undefined, "The branch is deleted with its steps.")}>Delete with its ${(branch?.steps ?? []).length} steps</${Button}></div>`,
    )}
    <div><${Button} icon="plus" onClick=${() => set(["branches"], [...branches, { steps: [] }])}>Add a branch</${Button}></div>`;
}

function Choice({ step, set, offers, error, errors }) {
  const condition = step.condition ?? {};
  const isComposed = ["and", "or", "not"].some((name) => name in condition);
  const problem = error("condition") ?? errors.find((one) => one.within.startsWith("condition"))?.message;
  if (isComposed)
    return html`<${Json} label="Condition" rows=${10} value=${condition} error=${problem} onValue=${(next) => set(["condition"], next ?? {})} />`;
  return html`<fieldset><legend>Take “If so” when</legend>
      <${Template} label="Value" isText=${true} value=${condition.expression} offers=${offers} error=${problem} hint="A reference, such as {{inputs.size}}" onValue=${(next) => set(["condition", "expression"], next)} />
      <${Field} label="Comparison">${(
        field,
      ) => html`<select ...${field} value=${condition.operator ?? ""} onChange=${(event) => set(["condition"], { ...condition, operator: event.currentTarget.value })}>
        ${condition.operator in OPERATORS ? null : html`<option value=${condition.operator ?? ""}>Please choose</option>`}${Object.entries(OPERATORS).map(([name, word]) => html`<option value=${name}>${word}</option>`)}</select>`}</${Field}>
      ${UNARY.includes(condition.operator) ? null : html`<${Template} label="With" value=${condition.value} offers=${offers} hint="A number, a text, a list, or a reference" onValue=${(next) => set(["condition", "value"], next)} />`}</fieldset>
    <p class="hint">For several conditions together, write {"and": […]}, {"or": […]} or {"not": {…}} in the JSON tab.</p>`;
}

function Each({ step, set, offers, error }) {
  return html`<${Template} label="List" hint="A reference to a list, such as {{inputs.images}}" value=${step.items} offers=${offers} error=${error("items")} onValue=${(next) => set(["items"], next)} />
    <div class="pairs-2"><${Input} label="Name of an item" class="mono" hint="Its steps refer to it." error=${error("item_name")} value=${step.item_name ?? ""} placeholder="item" onValue=${(next) => set(["item_name"], next || undefined)} />
      <${Numeric} label="At the same time" error=${error("max_concurrency")} value=${step.max_concurrency} onValue=${(next) => set(["max_concurrency"], next)} /></div>
    <${Template} label="Output for each item" optional=${true} hint="Without it, the output of the last step" value=${step.output} error=${error("output")} offers=${(Array.isArray(step.steps) ? step.steps : []).map((one) => ({ text: `${idOf(one)}.output`, note: "Within" })).concat(offers)} onValue=${(next) => set(["output"], next)} />`;
}

// The three kinds of waits, with their initial values.
const WAITS = { seconds: 60, until: "", event: { name: "approval" } };

function Wait({ step, set, onStep, offers, error, errors }) {
  const leave = useAlternatives();
  // If a field is cleared, the step no longer has any kind of wait; the form then keeps showing the last kind.
  const last = useRef("seconds");
  const choice = Object.keys(WAITS).findLast((name) => step[name] !== undefined) ?? last.current;
  last.current = choice;
  const choose = (next) => {
    last.current = next;
    const others = Object.fromEntries(Object.entries(step).filter(([name]) => !(name in WAITS)));
    onStep({ ...others, [next]: leave(choice, step[choice], next, WAITS[next]) });
  };
  return html`<${Field} label="Wait">${(field) => html`<select ...${field} value=${choice} onChange=${(event) => choose(event.currentTarget.value)}><option value="seconds">for a time</option><option value="until">until a moment</option><option value="event">for an event</option></select>`}</${Field}>
    ${
      choice === "event"
        ? html`<${AwaitedEvent} step=${step} set=${set} error=${error} errors=${errors} />`
        : choice === "seconds"
          ? html`<${Template} label="Seconds" value=${step.seconds} offers=${offers} error=${error("seconds")} onValue=${(next) => set(["seconds"], next)} />`
          : html`<${Template} label="Moment" isText=${true} hint="Such as 2026-11-21T10:00:00Z, or a reference" value=${step.until} offers=${offers} error=${error("until")} onValue=${(next) => set(["until"], next)} />`
    }`;
}

// What a person or a program may answer, and what happens if nobody does.
function AwaitedEvent({ step, set, error, errors }) {
  const event = step.event !== null && typeof step.event === "object" ? step.event : {};
  const problem = (name) => error(`event/${name}`) ?? errors.find((one) => one.within.startsWith(`event/${name}/`))?.message;
  return html`${error("event") ? html`<${Notice} kind="error"><${Text}>${error("event")}</${Text}></${Notice}>` : null}
    <${Input} label="Name of the event" class="mono" hint="Unique in the workflow. Its sender names the run and the event." maxlength="64" error=${problem("name")} value=${event.name ?? ""} onValue=${(next) => set(["event", "name"], next)} />
    <p class="hint">Steps before this one can hand out the link that answers it: <code>${`{{${idOf(step)}.resume_url}}`}</code> opens a page with a form.</p>
    <${Json} label="Schema of the answer" hint="A JSON Schema; its plain properties are the fields of the page" optional=${true} rows=${6} value=${event.schema} error=${problem("schema")} onValue=${(next) => set(["event", "schema"], next)} />
    <${Numeric} label="Waits at most, in seconds" hint="After that, the step's output is the default; without a default, the step fails." error=${problem("timeout_seconds")} value=${event.timeout_seconds} onValue=${(next) => set(["event", "timeout_seconds"], next)} />
    <${Json} label="Default" hint="The output if nobody answers in time" optional=${true} rows=${3} value=${event.default} error=${problem("default")} onValue=${(next) => set(["event", "default"], next)} />`;
}

// Another workflow of the organization: which one, which version, and its inputs.
function Other({ step, set, offers, error, errors, own }) {
  const all = useLoad((signal) => allWorkflows(signal), []);
  const named = typeof step.workflow === "string" ? step.workflow : "";
  const choices = (all.data ?? []).filter(({ slug }) => slug !== own);
  const found = choices.find(({ slug, workflow_id: id }) => [slug, id].includes(named));
  const one = useLoad(
    (signal) => (found ? workflowWithInputs(found.slug, step.version_id, signal) : Promise.resolve(null)),
    [found?.slug, step.version_id],
  );
  const versions = one.data?.versions ?? [];
  const isKnown = !step.version_id || versions.includes(step.version_id);
  return html`<${Field} label="Workflow" error=${error("workflow")}>${(
    field,
  ) => html`<select ...${field} value=${found?.slug ?? named} onChange=${(event) => set(["workflow"], event.currentTarget.value)}>
      ${found ? null : html`<option value=${named}>${named ? (all.data ? `${named} (unknown)` : named) : "Please choose"}</option>`}
      ${choices.map(({ slug, name }) => html`<option key=${slug} value=${slug}>${name === slug ? slug : `${name} (${slug})`}</option>`)}</select>`}</${Field}>
    <${Field} label="Version" error=${error("version_id")}>${(
      field,
    ) => html`<select ...${field} value=${step.version_id ?? ""} onChange=${(event) => set(["version_id"], event.currentTarget.value || undefined)}>
      <option value="">The latest one when it runs</option>${isKnown ? null : html`<option value=${step.version_id}>${step.version_id}</option>`}${versions.map((id) => html`<option key=${id} value=${id}>${id}</option>`)}</select>`}</${Field}>
    <${Params} key=${`${named} ${one.data?.version}`} schema=${one.data?.schema} value=${step.inputs} errors=${errors} at="inputs" offers=${offers} onValue=${(next) => set(["inputs"], next)} />
    <label class="box"><input type="checkbox" checked=${step.wait !== false} onChange=${(event) => set(["wait"], event.currentTarget.checked ? undefined : false)} /> Wait until it finishes; its output becomes this step's output</label>
    ${found ? html`<p class="hint"><${Link} to=${`/app/workflows/${found.slug}`}>Open ${found.slug}</${Link}>. Its run is listed on its own, and is cancelled with this one while this step waits for it.</p>` : null}`;
}

function Value({ step, set, offers, error }) {
  return html`<${Template} label="Result" hint="Any JSON, with references in it" rows=${5} value=${step.result} offers=${offers} error=${error("result")} onValue=${(next) => set(["result"], next)} />`;
}

function Numeric({ label, hint, error, value, onValue, ...rest }) {
  return html`<${Input} label=${label} hint=${hint} error=${error} optional=${true} type="number" min="0" step="any" value=${value ?? ""} onValue=${(next) => onValue(next === "" ? undefined : Number(next))} ...${rest} />`;
}

// Dependencies, timeout and repetition: options of every type of step.
function Running({ step, set, error, siblings }) {
  const retry = step.retry ?? null;
  const [leaveRetry, leaveOrder] = [useAlternatives(), useAlternatives()];
  // Open at first if an option is set. Clearing the last option does not close it.
  const [isOpen] = useState(() =>
    Boolean(step.depends_on !== undefined || step.continue_on_error || step.timeout_seconds !== undefined || step.on_exhausted || retry),
  );
  return html`<details open=${isOpen}><summary>Order, timeout and retries</summary><div class="stack">
    <label class="box"><input type="checkbox" checked=${step.continue_on_error === true} onChange=${(event) => set(["continue_on_error"], event.currentTarget.checked || undefined)} /> Dependent steps continue even if it fails</label>
    <${Numeric} label="Timeout in seconds" error=${error("timeout_seconds")} value=${step.timeout_seconds} onValue=${(next) => set(["timeout_seconds"], next)} />
    <fieldset><legend>Begins after</legend>
      <label class="box"><input type="checkbox" checked=${step.depends_on === undefined} onChange=${(event) => set(["depends_on"], leaveOrder(step.depends_on === undefined, step.depends_on, event.currentTarget.checked, event.currentTarget.checked ? undefined : []))} /> The steps it refers to (default)</label>
      ${step.depends_on === undefined ? null : siblings.map((id) => html`<label class="box" key=${id}><input type="checkbox" checked=${step.depends_on.includes?.(id)} onChange=${(event) => set(["depends_on"], event.currentTarget.checked ? [...step.depends_on, id] : step.depends_on.filter((one) => one !== id))} /> <code>${id}</code></label>`)}
      ${error("depends_on") ? html`<p class="field-error"><${Icon} name="circle-alert" /><${Text}>${error("depends_on")}</${Text}></p>` : null}</fieldset>
    ${
      ["model", "http", "workflow"].includes(step.type)
        ? html`<fieldset><legend>When it fails</legend>
      <label class="box"><input type="checkbox" checked=${Boolean(retry)} onChange=${(event) => set(["retry"], leaveRetry(Boolean(retry), step.retry, event.currentTarget.checked, event.currentTarget.checked ? { max_attempts: 3, initial_delay_seconds: 1 } : undefined))} /> Try again</label>
      ${
        retry
          ? html`<div class="pairs-2">
        <${Numeric} label="Total attempts" error=${error("retry/max_attempts")} value=${retry.max_attempts} onValue=${(next) => set(["retry", "max_attempts"], next)} />
        <${Numeric} label="First pause in seconds" error=${error("retry/initial_delay_seconds")} value=${retry.initial_delay_seconds} onValue=${(next) => set(["retry", "initial_delay_seconds"], next)} />
        <${Numeric} label="Factor between pauses" error=${error("retry/backoff_multiplier")} value=${retry.backoff_multiplier} onValue=${(next) => set(["retry", "backoff_multiplier"], next)} />
        <${Numeric} label="Longest pause in seconds" error=${error("retry/max_delay_seconds")} value=${retry.max_delay_seconds} onValue=${(next) => set(["retry", "max_delay_seconds"], next)} /></div>
        <${Field} label="Only after" optional=${true} hint="By default: timeouts and provider errors" error=${error("retry/retry_on")}>${(
          field,
        ) => html`<select ...${field} multiple size="4" onChange=${(event) => {
          const all = [...event.currentTarget.selectedOptions].map((one) => one.value);
          set(["retry", "retry_on"], all.length ? all : undefined);
        }}>
          ${CLASSES.map((one) => html`<option value=${one} selected=${retry.retry_on?.includes?.(one)}>${one.replaceAll("_", " ")}</option>`)}</select>`}</${Field}>`
          : null
      }
      <label class="box"><input type="checkbox" checked=${step.on_exhausted === "pause"} onChange=${(event) => set(["on_exhausted"], event.currentTarget.checked ? "pause" : undefined)} /> Pause the run for a person when every attempt has failed</label></fieldset>`
        : null
    }</div></details>`;
}

// ---- Inputs and outputs ----

const KINDS = { string: "Text", number: "Number", integer: "Whole number", boolean: "Yes or no", array: "List", object: "Object" };
const SIMPLE = ["type", "title", "description", "default"];

// The inputs as a list; the schema below it shows everything that the list cannot. `onSchema` is called with the
// schema, and with `renamed` (the old and the new name) or `said` (a message about a deletion).
export function InputFields({ schema, onSchema, errors }) {
  const value = schema ?? {};
  const properties = Object.entries(value.properties ?? {});
  const required = Array.isArray(value.required) ? value.required : [];
  const write = (next, needed = required, more = {}) =>
    onSchema(
      {
        ...value,
        type: value.type ?? "object",
        properties: Object.fromEntries(next),
        required: needed.length ? needed : undefined,
      },
      more,
    );
  const rename = (at, name) => {
    const [before] = properties[at];
    if (!name || name === before || properties.some(([one]) => one === name)) return false;
    write(
      properties.map((one, index) => (index === at ? [name, one[1]] : one)),
      required.map((one) => (one === before ? name : one)),
      { renamed: [before, name] },
    );
    return true;
  };
  const free = () => {
    let number = 1;
    while (properties.some(([name]) => name === `input_${number}`)) number += 1;
    return `input_${number}`;
  };
  return html`<div class="stack"><p class="hint">The inputs of a run. Steps refer to an input as <code>{{inputs.name}}</code>.</p>
    ${errors.map((one) => html`<${Notice} key=${one.message} kind="error"><${Text}>${one.message}</${Text}></${Notice}>`)}
    ${properties.map(
      ([name, part], at) => html`<fieldset key=${at}><legend><code><${Text}>${name}</${Text}></code></legend>
      <div class="pairs-2"><${Field} label="Name">${(field) =>
        html`<input ...${field} class="mono" value=${name} onChange=${(event) => {
          if (!rename(at, event.currentTarget.value)) event.currentTarget.value = name;
        }} />`}</${Field}>
        <${Field} label="Kind">${(
          field,
        ) => html`<select ...${field} value=${KINDS[part?.type] ? part.type : "other"} onChange=${(event) => write(properties.map((one, index) => (index === at ? [name, { ...part, type: event.currentTarget.value }] : one)))}>
          ${Object.entries(KINDS).map(([kind, word]) => html`<option value=${kind}>${word}</option>`)}${KINDS[part?.type] ? null : html`<option value="other" disabled>By its schema</option>`}</select>`}</${Field}></div>
      <${Input} label="Title" optional=${true} value=${part?.title ?? ""} onValue=${(next) => write(properties.map((one, index) => (index === at ? [name, changed(part, ["title"], next || undefined)] : one)))} />
      <${Input} label="Explanation" optional=${true} value=${part?.description ?? ""} onValue=${(next) => write(properties.map((one, index) => (index === at ? [name, changed(part, ["description"], next || undefined)] : one)))} />
      <${Template} label="Default" optional=${true} isText=${part?.type === "string"} value=${part?.default} onValue=${(next) => write(properties.map((one, index) => (index === at ? [name, changed(part, ["default"], next)] : one)))} />
      ${Object.keys(part ?? {}).some((one) => !SIMPLE.includes(one)) ? html`<p class="hint">It has more rules: see its schema below.</p>` : null}
      <div class="actions"><label class="box"><input type="checkbox" checked=${required.includes(name)} onChange=${(event) => write(properties, event.currentTarget.checked ? [...required, name] : required.filter((one) => one !== name))} /> Required</label>
        <${Button} icon="trash-2" onClick=${() =>
          write(
            properties.filter((_, index) => index !== at),
            required.filter((one) => one !== name),
            { said: `The input “${name}” is deleted.` },
          )}>Delete</${Button}></div></fieldset>`,
    )}
    <div><${Button} icon="plus" onClick=${() => write([...properties, [free(), { type: "string" }]])}>Add an input</${Button}></div>
    <details><summary>As a JSON Schema</summary><${Json} label="Schema of the inputs" rows=${14} value=${schema} onValue=${(next) => onSchema(next, {})} /></details></div>`;
}

export function OutputFields({ definition, onDefinition, offers, errors }) {
  const mapping = definition.metadata?.output_mapping;
  const set = (next, said) => {
    const metadata = changed(definition.metadata ?? {}, ["output_mapping"], next);
    onDefinition(changed(definition, ["metadata"], Object.keys(metadata).length ? metadata : undefined), said);
  };
  return html`<div class="stack"><p class="hint">The output of a run. Without names here, it is the output of the last step.</p>
    <${Pairs} label="Output" name="output" value=${mapping} offers=${offers} onValue=${set} error=${errors[0]?.message} /></div>`;
}
