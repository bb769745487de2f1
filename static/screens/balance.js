// Balance: what is left, what it was spent on by day, and the ledger that adds up to it.

import { html, useMemo } from "/static/vendor/preact.js";
import { Button, Empty, Link, Loaded, Page, Time, ask, money, place, setQuery, useLoad } from "/static/core.js";

const WORDS = { top_up: "Topped up", charge: "A run", refund: "Refunded" };

export function List() {
  const limit = Number(place.value.query.get("limit")) || 200;
  const all = useLoad(async (signal) => {
    const [balance, ledger] = await Promise.all([
      ask("GET", "/api/base/v1/billing/balance", undefined, { signal }).catch((error) => { if (error.status === 503) return null; throw error; }),
      ask("GET", `/ledger?limit=${limit}`, undefined, { signal }),
    ]);
    return { balance, ...ledger };
  }, [limit]);
  const download = (entries) => {
    const lines = ["created_at,kind,amount_usd,execution_id", ...entries.map((one) => `${one.created_at},${one.kind},${one.amount_usd},${one.execution_id ?? ""}`)];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = "ledger.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return html`<${Page} title="Balance" intro="What your organization has left to spend on models that cost something."
    actions=${all.data?.entries.length ? html`<${Button} icon="download" onClick=${() => download(all.data.entries)}>Download as CSV</${Button}>` : null}>
    <${Loaded} of=${all}>${(data) => html`<dl class="facts large"><div><dt>Balance</dt><dd>${data.balance ? money(data.balance.balance_usd) : "Billing is switched off"}</dd></div></dl>
      <p class="quiet">The person who runs this machine adds to it: <code>orrery balance top-up --amount USD</code></p>
      ${data.entries.length ? html`<${Days} entries=${data.entries} />
      <section><h2>Ledger</h2><div class="card scroll"><table><thead><tr><th scope="col">When</th><th scope="col">What</th><th scope="col" class="number">Amount</th></tr></thead>
      <tbody>${data.entries.map((one, at) => html`<tr key=${at}><td><${Time} at=${one.created_at} /></td><td data-label="What">${one.execution_id ? html`<${Link} to=${`/app/runs/${one.execution_id}`}>${WORDS[one.kind] ?? one.kind}</${Link}>` : WORDS[one.kind] ?? one.kind}</td>
        <td data-label="Amount" class="number">${money(one.amount_usd)}</td></tr>`)}</tbody></table></div>
        ${data.entries.length >= limit && limit < 1000 ? html`<p class="more"><${Button} onClick=${() => setQuery({ limit: 1000 })}>Show more</${Button}></p>` : null}</section>`
      : html`<${Empty} icon="wallet" title="Nothing was spent yet"><p>Charges of models that cost something appear here.</p></${Empty}>`}`}</${Loaded}></${Page}>`;
}

export const Detail = List;

// What was spent on each of the last days that the entries cover.
function Days({ entries }) {
  const days = useMemo(() => {
    const sums = new Map();
    for (const one of entries) if (one.kind !== "top_up") sums.set(one.created_at.slice(0, 10), (sums.get(one.created_at.slice(0, 10)) ?? 0) - one.amount_usd);
    return [...sums].sort().slice(-30);
  }, [entries]);
  const most = Math.max(...days.map(([, sum]) => sum), 0);
  if (most <= 0) return null;
  return html`<section><h2>Spent by day</h2><div class="card pad plot"><table class="hidden"><caption>Spent by day</caption><tbody>${days.map(([day, sum]) => html`<tr key=${day}><th scope="row">${day}</th><td>${money(sum)}</td></tr>`)}</tbody></table>
    <div class="columns" aria-hidden="true">${days.map(([day, sum]) => html`<div key=${day} class="column" title=${`${day}: ${money(sum)}`}><span style=${{ height: `${Math.max(1, (sum / most) * 100)}%` }}></span></div>`)}</div>
    <p class="quiet ends"><span>${days[0][0]}</span><span>at most ${money(most)} a day</span><span>${days.at(-1)[0]}</span></p></div></section>`;
}
