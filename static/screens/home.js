// Home: what runs, what failed, what to do first.

import { html } from "/static/vendor/preact.js";
import { Icon, Link, Page, Status, Text, Time, ask, bytes, count, duration, money, session, useLoad } from "/static/core.js";

const API = "/api/base";

// One figure that cannot be read does not hide the others.
const or = (promise) => promise.catch((error) => { if (error.name === "AbortError") throw error; return null; });

async function load(signal) {
  const get = (path) => or(ask("GET", path, undefined, { signal }));
  const since = new Date(Date.now() - 86400000).toISOString();
  const [status, failed, recent, balance, usage, keys] = await Promise.all([
    get("/status.json"), get(`${API}/v1/executions?status=error,failed&from=${since}&limit=1`),
    get(`${API}/v2/executions?limit=6`), get(`${API}/v1/billing/balance`), get(`${API}/v1/files/usage`), get("/keys"),
  ]);
  return { status, failed, recent, balance, usage, keys };
}

export function List() {
  const home = useLoad(load, []);
  const { status, failed, recent, balance, usage, keys } = home.data ?? {};
  const rows = recent?.executions ?? [];
  const isNew = home.data && rows.length === 0;
  return html`<${Page} title="Home" intro=${`Hello, ${session.value.member.name}.`}>
    <dl class="facts large">
      <div><dt>Running now</dt><dd>${status ? count(status.executions.running) : "–"}</dd></div>
      <div><dt>In the queue</dt><dd>${status ? count(status.executions.queued) : "–"}</dd></div>
      <div><dt>Failed in 24 hours</dt><dd>${failed ? html`<${Link} to="/app/runs?status=failed">${count(failed.total_count)}${failed.total_capped ? "+" : ""}</${Link}>` : "–"}</dd></div>
      <div><dt>Balance</dt><dd>${balance ? money(balance.balance_usd) : "–"}</dd></div>
      <div><dt>Files</dt><dd>${usage ? bytes(usage.bytes) : "–"}</dd></div>
    </dl>
    ${isNew ? html`<section><h2>First steps</h2><div class="cards">
      <${Link} to="/app/models/text-sentiment" class="tile"><h3><${Icon} name="play" />Run a first model</h3><p>“text-sentiment” says how a text sounds. It is built in and needs nothing else.</p></${Link}>
      <${Link} to="/app/models" class="tile"><h3><${Icon} name="box" />Look at the models</h3><p>All models of this machine, each with a form to try it.</p></${Link}>
      <${Link} to="/app/workflows" class="tile"><h3><${Icon} name="workflow" />Make a workflow</h3><p>Put models together, from a template.</p></${Link}>
      ${session.value.member.api_key_access ? html`<${Link} to="/app/keys" class="tile"><h3><${Icon} name="key-round" />${keys?.keys?.length ? "Your API keys" : "Create an API key"}</h3><p>With a key, your programs use the same models.</p></${Link}>` : null}
      ${session.value.member.role === "owner" ? html`<${Link} to="/app/members" class="tile"><h3><${Icon} name="users" />Invite people</h3><p>Everybody in your organization sees the same models and runs.</p></${Link}>` : null}
    </div></section>` : null}
    ${rows.length ? html`<section><div class="page-head"><h2>Latest runs</h2><${Link} to="/app/runs">All runs</${Link}></div>
      <div class="card scroll"><table><thead><tr><th scope="col">What</th><th scope="col">Status</th><th scope="col">Started</th><th scope="col" class="number">Took</th></tr></thead>
      <tbody>${rows.map((run) => html`<tr key=${run.id}><th scope="row"><${Link} to=${`/app/runs/${run.id}`}><${Text}>${run.workflow_name ?? run.model ?? run.type}</${Text}></${Link}></th>
        <td data-label="Status"><${Status} of=${run.status} /></td><td data-label="Started"><${Time} at=${run.created_at} /></td><td data-label="Took" class="number">${run.run_time === null ? "–" : duration(run.run_time)}</td></tr>`)}</tbody></table></div></section>` : null}
  </${Page}>`;
}

export const Detail = List;
