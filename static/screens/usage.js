// Usage: requests, tokens and cost by key and month, with a download, and the spending of one key by day.

import { Field, Icon, Loaded, Text, ask, count, money, onDay, useLoad } from "../core.js";
import { html } from "../vendor/preact.js";
import { place, setQuery } from "../location.js";
import { Rows } from "../rows.js";

const DAY = 86400000;
const SPANS = [
  ["1", "This month"],
  ["3", "The last 3 months"],
  ["12", "The last 12 months"],
];
const months = new Intl.DateTimeFormat("en", { month: "short", year: "numeric", timeZone: "UTC" });

/** Returns the first day of the month `back` months before `today`, which is a day such as 2026-11-30. */
export function firstDay(today, back) {
  const [year, month] = today.split("-").map(Number);
  return new Date(Date.UTC(year, month - 1 - back, 1)).toISOString().slice(0, 10);
}

/** Returns a column with the cost of each of the last `days` days up to `today`, oldest first. */
export function columnsOf(groups, today, days) {
  const spent = new Map(groups.map((one) => [one.day, one.cost_usd]));
  const last = Date.parse(today);
  return Array.from({ length: days }, (_, at) => {
    const day = new Date(last - (days - 1 - at) * DAY).toISOString().slice(0, 10);
    const sum = spent.get(day) ?? 0;
    return { day, sum, parts: sum > 0 ? [{ name: "spent", cost_usd: sum, colour: 0 }] : [] };
  });
}

/** Sorts groups by month, newest first, and within a month by cost, highest first. */
export const newestFirst = (groups) => [...groups].sort((a, b) => b.month.localeCompare(a.month) || b.cost_usd - a.cost_usd);

const today = () => new Date().toISOString().slice(0, 10);

/** Days as columns; each column is stacked from its parts. */
export function Columns({ columns }) {
  const most = Math.max(...columns.map((one) => one.sum), 0);
  if (most === 0) return null;
  return html`<div class="columns" aria-hidden="true">${columns.map(
    ({ day, parts, sum }) => html`<div key=${day} class="column" title=${`${onDay(day)}: ${money(sum)}`}>
      ${parts.map((one) => html`<span key=${one.name} class=${`model-${one.colour}`} style=${{ height: `${(one.cost_usd / most) * 100}%` }}></span>`)}</div>`,
  )}</div>
    <p class="quiet ends" aria-hidden="true"><span>${onDay(columns[0].day)}</span><span>at most ${money(most)} a day</span><span>${onDay(columns.at(-1).day)}</span></p>`;
}

/** The usage of each key in each month. */
export function ByKey() {
  const back = SPANS.find(([months]) => months === place.value.query.get("months"))?.[0] ?? "1";
  const path = `/api/base/v1/usage?group_by=key,month&from=${firstDay(today(), Number(back) - 1)}`;
  const all = useLoad((signal) => ask("GET", path, undefined, { signal }), [path]);
  const choice = html`<${Field} label="Months">${(
    field,
  ) => html`<select ...${field} value=${back} onChange=${(event) => setQuery({ months: event.currentTarget.value === "1" ? "" : event.currentTarget.value })}>
    ${SPANS.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}</select>`}</${Field}>`;
  const link = html`<a class="button plain" href=${`${path}&format=csv`} download="usage.csv"><${Icon} name="download" /><span>Download the usage as CSV</span></a>`;
  return html`<section><h2>Usage by key and month</h2><div class="filters">${choice}${link}</div>
    <${Loaded} of=${all} empty=${(data) => (data.data.length ? null : html`<p class="quiet">Nothing was used in this period.</p>`)}>${(
      data,
    ) => html`<div class="card scroll"><table><thead><tr><th scope="col">Key</th><th scope="col">Month</th><th scope="col" class="number">Requests</th><th scope="col" class="number">Input tokens</th><th scope="col" class="number">Output tokens</th><th scope="col" class="number">Cost</th></tr></thead>
      <${Rows} all=${newestFirst(data.data)} columns="6">${(
        one,
      ) => html`<tr key=${`${one.month} ${one.key_id}`}><th scope="row"><${Text}>${one.key_id ? (one.key ?? one.key_id) : "The dashboard"}</${Text}></th><td data-label="Month">${months.format(new Date(one.month))}</td>
        <td data-label="Requests" class="number">${count(one.requests)}</td><td data-label="Input tokens" class="number">${count(one.input_tokens)}</td>
        <td data-label="Output tokens" class="number">${count(one.output_tokens)}</td><td data-label="Cost" class="number">${money(one.cost_usd)}</td></tr>`}</${Rows}></table></div>`}</${Loaded}></section>`;
}

/** The spending of a key on each of the last 30 days. */
export function SpentByDay({ id }) {
  const days = 30;
  const from = new Date(Date.parse(today()) - (days - 1) * DAY).toISOString().slice(0, 10);
  const path = `/api/base/v1/usage?group_by=day&key_id=${id}&from=${from}`;
  const all = useLoad((signal) => ask("GET", path, undefined, { signal }), [path]);
  return html`<section aria-label="Spent by day"><${Loaded} of=${all}>${(data) => {
    const columns = columnsOf(data.data, today(), days);
    const sum = columns.reduce((total, one) => total + one.sum, 0);
    const requests = data.data.reduce((total, one) => total + one.requests, 0);
    return html`<p>In the last 30 days: ${money(sum)} for ${count(requests)} ${requests === 1 ? "request" : "requests"}.</p>
      ${sum > 0 ? html`<div class="plot"><${Columns} columns=${columns} /></div>` : null}`;
  }}</${Loaded}></section>`;
}
