// Balance: the remaining amount, the month's budget, spending by day and model, usage by key and month, and the ledger.

import { html, useMemo } from "../vendor/preact.js";
import { Button, Empty, Field, Link, Loaded, Notice, Page, Text, Time, ask, count, money, onDay, useChanges, useLoad } from "../core.js";
import { place, setQuery } from "../location.js";
import { Rows } from "../rows.js";
import { ByKey, Columns } from "./usage.js";

const WORDS = { top_up: "Topped up", charge: "A run", refund: "Refunded" };

// Returns the ledger's entries as CSV. No value contains a comma or a quotation mark.
export function csvOf(entries) {
  const lines = [
    "created_at,kind,amount_usd,execution_id",
    ...entries.map((one) => `${one.created_at},${one.kind},${one.amount_usd},${one.execution_id ?? ""}`),
  ];
  return `${lines.join("\n")}\n`;
}

export function List() {
  const limit = Number(place.value.query.get("limit")) || 50;
  const all = useLoad(
    async (signal) => {
      const [balance, ledger, limits] = await Promise.all([
        ask("GET", "/api/base/v1/billing/balance", undefined, { signal }).catch((error) => {
          if (error.status === 503) return null;
          throw error;
        }),
        ask("GET", `/ledger?limit=${limit}`, undefined, { signal }),
        ask("GET", "/api/base/v1/limits", undefined, { signal }),
      ]);
      return { balance, limit, budget: limits.monthly_budget_usd, ...ledger };
    },
    [limit],
  );
  useChanges(["balance"], all);
  const download = (entries) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(entries)], { type: "text/csv" }));
    link.download = "ledger.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return html`<${Page} title="Balance" intro="What your organization can still spend on paid models."
    actions=${all.data?.entries.length ? html`<${Button} icon="download" onClick=${() => download(all.data.entries)}>Download the ledger as CSV</${Button}>` : null}>
    <${Loaded} of=${all}>${(
      data,
    ) => html`<dl class="facts large"><div><dt>Balance</dt><dd>${data.balance ? money(data.balance.balance_usd) : "Billing is switched off"}</dd></div>
        ${data.budget.limit === null ? null : html`<div><dt>Spent this month</dt><dd>${money(data.budget.used)} of ${money(data.budget.limit)}</dd></div>`}</dl>
      <p class="quiet">The person who runs this machine adds to it: <code>orrery balance top-up --amount USD</code></p>
      ${
        data.entries.length
          ? html`<div class="reserved"><${Spent} /></div><${ByKey} />
      <section><h2>Ledger</h2><div class="card scroll"><table><thead><tr><th scope="col">When</th><th scope="col">What</th><th scope="col" class="number">Amount</th></tr></thead>
      <${Rows} all=${data.entries} columns="3">${(
        one,
      ) => html`<tr key=${`${one.created_at} ${one.kind} ${one.execution_id}`}><td><${Time} at=${one.created_at} /></td><td data-label="What">${one.execution_id ? html`<${Link} to=${`/app/runs/${one.execution_id}`}>${WORDS[one.kind] ?? one.kind}</${Link}>` : (WORDS[one.kind] ?? one.kind)}</td>
        <td data-label="Amount" class="number">${money(one.amount_usd)}</td></tr>`}</${Rows}></table></div>
        ${data.entries.length >= data.limit && data.limit < 1000 ? html`<p class="more"><${Button} busy=${all.loading} onClick=${() => setQuery({ limit: 1000 })}>Show more</${Button}></p>` : null}</section>`
          : html`<${Empty} icon="wallet" title="Nothing was spent yet"><p>Charges of paid models appear here.</p></${Empty}><${ByKey} />`
      }`}</${Loaded}></${Page}>`;
}

export const Detail = List;

// Number of models with their own color in the chart; the other models share one color.
const COLOURS = 5;

// Spending by day, as columns stacked by model.
function Spent() {
  const days = Number(place.value.query.get("days")) || 30;
  const all = useLoad((signal) => ask("GET", `/costs?days=${days}`, undefined, { signal }), [days]);
  const choice = html`<${Field} label="Time">${(
    field,
  ) => html`<select ...${field} value=${String(days)} onChange=${(event) => setQuery({ days: event.currentTarget.value === "30" ? "" : event.currentTarget.value })}>
    <option value="7">The last 7 days</option><option value="30">The last 30 days</option><option value="90">The last 90 days</option></select>`}</${Field}>`;
  return html`<section><h2>Spent by day and model</h2><div class="filters">${choice}</div>
    <${Loaded} of=${all} empty=${(data) => (data.costs.length ? null : html`<p class="quiet">Nothing was spent in this period.</p>`)}>${(
      data,
    ) => html`<${Plot} costs=${data.costs} days=${days} />
      ${data.complete ? null : html`<${Notice}>Only the newest charges are included.</${Notice}>`}`}</${Loaded}></section>`;
}

function Plot({ costs, days }) {
  const { models, columns } = useMemo(() => {
    const byModel = new Map();
    const byDay = new Map();
    for (const one of costs) {
      const known = byModel.get(one.model) ?? { cost: 0, charges: 0 };
      byModel.set(one.model, { cost: known.cost + one.cost_usd, charges: known.charges + one.charges });
      byDay.set(one.day, [...(byDay.get(one.day) ?? []), one]);
    }
    const ordered = [...byModel].sort((a, b) => b[1].cost - a[1].cost);
    const last = Date.now();
    const all = Array.from({ length: days }, (_, at) => new Date(last - (days - 1 - at) * 86400000).toISOString().slice(0, 10)).map(
      (day) => {
        const parts = byDay.get(day) ?? [];
        return { day, parts, sum: parts.reduce((sum, one) => sum + one.cost_usd, 0) };
      },
    );
    const colour = new Map(ordered.map(([name], at) => [name, Math.min(at, COLOURS)]));
    for (const one of all) one.parts = one.parts.map((part) => ({ ...part, name: part.model, colour: colour.get(part.model) }));
    return { models: ordered, columns: all };
  }, [costs, days]);
  return html`<div class="card pad plot"><${Columns} columns=${columns} />
    <div class="scroll"><table class="slim"><thead><tr><th scope="col">Model</th><th scope="col" class="number">Charges</th><th scope="col" class="number">Cost</th></tr></thead><tbody>${models.map(
      (
        [name, one],
        at,
      ) => html`<tr key=${name}><th scope="row"><span class=${`swatch model-${Math.min(at, COLOURS)}`} aria-hidden="true"></span> <${Text}>${name}</${Text}></th>
      <td data-label="Charges" class="number">${count(one.charges)}</td><td data-label="Cost" class="number">${money(one.cost)}</td></tr>`,
    )}</tbody></table></div>
    <details><summary>By day, as a table</summary><div class="scroll"><table class="slim"><thead><tr><th scope="col">Day</th><th scope="col">Model</th><th scope="col" class="number">Cost</th></tr></thead><tbody>${costs.map((one) => html`<tr key=${one.day + one.model}><th scope="row">${onDay(one.day)}</th><td data-label="Model"><${Text}>${one.model}</${Text}></td><td data-label="Cost" class="number">${money(one.cost_usd)}</td></tr>`)}</tbody></table></div></details></div>`;
}
