// What an API key may do: the fields that are shared by the form for a new key and the form for an existing key, and the
// words that summarize the limits in the list.

import { html } from "../vendor/preact.js";
import { Field, Input, money } from "../core.js";

const SCOPES = [
  ["predict", "Run models"],
  ["chat", "Chat, embeddings, the agent"],
  ["workflow.run", "Run workflows"],
  ["workflow.write", "Change workflows and schedules"],
  ["files", "Upload files"],
  ["read", "Read everything"],
  ["secrets", "Manage secrets"],
];
const PERIODS = [
  ["", "in total"],
  ["1d", "per day"],
  ["7d", "per week"],
  ["1mo", "per month"],
];

/** The values of the form, all texts but the scopes, for a key or, without one, for a new key. */
export function valuesOf(key) {
  const text = (value) => (value === null || value === undefined ? "" : String(value));
  return {
    models: (key?.models ?? []).join(", "),
    scopes: key?.scopes ?? null,
    max_budget: text(key?.max_budget),
    budget_duration: text(key?.budget_duration),
    rpm_limit: text(key?.rpm_limit),
    tpm_limit: text(key?.tpm_limit),
    max_parallel_requests: text(key?.max_parallel_requests),
  };
}

/** The fields of a request. An empty field removes the limit. */
export function fieldsOf(values) {
  const number = (text) => (text.trim() === "" ? null : Number(text));
  const models = values.models
    .split(",")
    .map((model) => model.trim())
    .filter(Boolean);
  const budget = number(values.max_budget);
  return {
    models: models.length ? models : null,
    scopes: values.scopes,
    max_budget: budget,
    budget_duration: budget === null ? null : values.budget_duration || null,
    rpm_limit: number(values.rpm_limit),
    tpm_limit: number(values.tpm_limit),
    max_parallel_requests: number(values.max_parallel_requests),
  };
}

/** The limits of a key in a few words; empty without limits. */
export function summary(key) {
  const parts = [];
  if (key.scopes) parts.push(key.scopes.join(", "));
  if (key.models) parts.push(`models: ${key.models.join(", ")}`);
  if (key.rpm_limit !== null) parts.push(`${key.rpm_limit} requests/min`);
  if (key.tpm_limit !== null) parts.push(`${key.tpm_limit} tokens/min`);
  if (key.max_parallel_requests !== null) parts.push(`${key.max_parallel_requests} at a time`);
  return parts.join(" · ");
}

/** What a key has spent, with its budget. */
export function spent(key) {
  if (key.max_budget === null) return money(key.spend);
  const [, period] = PERIODS.find(([name]) => name === (key.budget_duration ?? "")) ?? ["", `per ${key.budget_duration}`];
  return `${money(key.spend)} of ${money(key.max_budget)} ${period}`;
}

export function LimitFields({ values, onValues }) {
  const set = (name) => (value) => onValues({ ...values, [name]: value });
  const isRestricted = values.scopes !== null;
  const toggle = (scope) => {
    const rest = values.scopes.filter((one) => one !== scope);
    onValues({ ...values, scopes: rest.length === values.scopes.length ? [...rest, scope] : rest });
  };
  const known = PERIODS.some(([name]) => name === values.budget_duration);
  const periods = known ? PERIODS : [...PERIODS, [values.budget_duration, `per ${values.budget_duration}`]];
  return html`<${Input} label="Models" optional=${true} name="models" value=${values.models} onValue=${set("models")}
      hint="Names of the models that the key may use, separated by commas. * stands for any text. Empty: all models." />
    <fieldset><legend>The key may</legend>
      <label class="box"><input type="checkbox" checked=${!isRestricted} onChange=${() => onValues({ ...values, scopes: isRestricted ? null : ["chat", "read"] })} /> Do everything</label>
      ${
        isRestricted
          ? SCOPES.map(
              ([scope, label]) =>
                html`<label class="box" key=${scope}><input type="checkbox" checked=${values.scopes.includes(scope)} onChange=${() => toggle(scope)} /> ${label}</label>`,
            )
          : null
      }</fieldset>
    <div class="fields"><${Input} label="Budget in US dollars" optional=${true} name="max_budget" type="number" min="0" step="any" value=${values.max_budget} onValue=${set("max_budget")} />
      <${Field} label="Budget period">${(
        field,
      ) => html`<select ...${field} name="budget_duration" value=${values.budget_duration} onChange=${(event) => set("budget_duration")(event.currentTarget.value)}>
        ${periods.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select>`}</${Field}></div>
    <div class="fields"><${Input} label="Requests per minute" optional=${true} name="rpm_limit" type="number" min="1" value=${values.rpm_limit} onValue=${set("rpm_limit")} />
      <${Input} label="Tokens per minute" optional=${true} name="tpm_limit" type="number" min="1" value=${values.tpm_limit} onValue=${set("tpm_limit")} />
      <${Input} label="Requests at a time" optional=${true} name="max_parallel_requests" type="number" min="1" value=${values.max_parallel_requests} onValue=${set("max_parallel_requests")} /></div>`;
}
