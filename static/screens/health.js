// Health: whether the service works, the findings of `orrery doctor`, the state of models, and the service's addresses.

import { html } from "../vendor/preact.js";
import { Button, Icon, Link, Loaded, Page, Status, Text, ask, count, duration, useChanges, useLoad } from "../core.js";
import { BASE } from "../location.js";
import { Rows } from "../rows.js";

export function List() {
  const all = useLoad(async (signal) => {
    const [status, own, loads, doctor] = await Promise.all(
      ["/status.json", "/status", "/models", "/health/findings"].map((path) => ask("GET", path, undefined, { signal })),
    );
    return { status, own, models: loads.models, upstreams: loads.upstreams, findings: doctor.findings };
  }, []);
  useChanges(["status", "webhooks"], all);
  return html`<${Page} title="Health" wide=${true} intro="How the service on this machine is doing." actions=${html`<${Button} icon="refresh-cw" busy=${all.loading} onClick=${all.reload}>Refresh</${Button}>`}>
    <${Loaded} of=${all}>${({ status, own, models, upstreams, findings }) => html`
      <dl class="facts"><div><dt>Service</dt><dd>${status.ready ? html`<span class="status good">Ready</span>` : html`<span class="status waiting">Starting</span>`}</dd></div><div><dt>Version</dt><dd>${status.version} (<a href=${`${BASE}/docs/`}>documentation</a>)</dd></div><div><dt>Up for</dt><dd>${duration(status.uptime_seconds)}</dd></div>
        <div><dt>Running</dt><dd>${count(own.running)}</dd></div><div><dt>In the queue</dt><dd>${own.waiting_is_capped ? "up to " : ""}${count(own.queued)}</dd></div><div><dt>Webhooks to send</dt><dd>${count(own.webhooks_pending)}</dd></div></dl>
      <section><h2>Findings</h2><div class="card scroll"><table><thead><tr><th scope="col">What</th><th scope="col">Found</th></tr></thead>
      <tbody>${findings.map(
        (
          one,
        ) => html`<tr key=${one.subject + one.detail}><th scope="row">${one.concern ? html`<span class="status waiting"><${Icon} name="triangle-alert" label="Needs attention" />${one.subject}</span>` : html`<span class="status good"><${Icon} name="check" label="Good" />${one.subject}</span>`}</th>
        <td data-label="Found"><${Text}>${one.detail}</${Text}></td></tr>`,
      )}</tbody></table></div></section>
      <section><h2>Models</h2><div class="card scroll"><table><thead><tr><th scope="col">Model</th><th scope="col">State</th><th scope="col">Kind</th><th scope="col" class="number">Running</th><th scope="col" class="number">Waiting</th><th scope="col" class="number">Concurrency</th></tr></thead>
      <${Rows} all=${models} columns="6">${(
        model,
      ) => html`<tr key=${model.slug}><th scope="row"><${Link} to=${`/app/models/${model.slug}`}><${Text}>${model.slug}</${Text}></${Link}>${model.reason ? html`<div class="reason"><${Text}>${model.reason}</${Text}></div>` : null}</th>
        <td data-label="State">${model.health === "failing" ? html`<${Status} of="failed" />` : html`<span class="status good">${model.health === "ok" ? "Works" : model.health}</span>`}${model.server ? html`<div><${Server} of=${model} changed=${all.reload} /></div>` : null}${model.workers ? html`<div class="quiet">${workersOf(model.workers)}</div>` : null}</td><td data-label="Kind">${model.runner}</td>
        <td data-label="Running" class="number">${count(model.running)}</td><td data-label="Waiting" class="number">${count(model.queued)}</td><td data-label="Concurrency" class="number">${count(model.concurrency)}</td></tr>`}</${Rows}></table></div></section>
      ${upstreams.length === 0 ? null : html`<${Upstreams} all=${upstreams} />`}
      <section><h2>Addresses</h2><div class="card scroll"><table><thead><tr><th scope="col">For</th><th scope="col">Address</th></tr></thead>
      <tbody>${status.hosts.map((host) => html`<tr key=${host.role}><th scope="row">${HOSTS[host.role] ?? host.role}</th><td data-label="Address"><code>${host.url}</code></td></tr>`)}</tbody></table></div></section>
      <p class="quiet">For the same list with a fix for each problem, run <code>orrery doctor</code></p>`}</${Loaded}></${Page}>`;
}

// The number of a model's workers, and of its jobs that no worker has claimed.
function workersOf({ workers, waiting }) {
  const present = workers === 1 ? "1 worker" : `${count(workers)} workers`;
  return waiting === 0 ? present : `${present}, ${count(waiting)} unclaimed`;
}

// The state of a server that the service starts for a model, and the button that changes it.
function Server({ of, changed }) {
  const runs = of.server.state === "ready" || of.server.state === "loading";
  const act = async () => {
    await ask("POST", `/api/base/v1/models/${of.slug}/${runs ? "unload" : "load"}`);
    changed();
  };
  return html`<span class="quiet">${SERVER_STATES[of.server.state] ?? of.server.state}</span> <${Button} onClick=${act}>${runs ? "Unload" : "Load"}</${Button}>`;
}

const SERVER_STATES = {
  unloaded: "Not loaded",
  loading: "Loading",
  ready: "Loaded",
  draining: "Ends its last calls",
  failed: "Did not start",
};

function Upstreams({ all }) {
  return html`<section><h2>Upstreams</h2><div class="card scroll"><table><thead><tr><th scope="col">Upstream</th><th scope="col">State</th><th scope="col">API</th><th scope="col" class="number">Keys</th><th scope="col" class="number">Resting keys</th></tr></thead>
    <${Rows} all=${all} columns="5">${(
      upstream,
    ) => html`<tr key=${upstream.name}><th scope="row"><${Text}>${upstream.name}</${Text}></th><td data-label="State"><span class=${`status ${UPSTREAM_STATES[upstream.state]?.[0] ?? ""}`}>${UPSTREAM_STATES[upstream.state]?.[1] ?? upstream.state}</span></td><td data-label="API">${upstream.kind}</td>
      <td data-label="Keys" class="number">${count(upstream.keys)}</td><td data-label="Resting keys" class="number">${count(upstream.resting_keys)}</td></tr>`}</${Rows}></table></div></section>`;
}

const UPSTREAM_STATES = {
  used: ["good", "Works"],
  tried: ["waiting", "Being tried again"],
  "left out": ["bad", "Left out: it keeps failing"],
};

export const Detail = List;

const HOSTS = {
  base: "The API",
  workflows: "Workflows, for older programs",
  flows: "Legacy workflows",
  agent: "The agent",
  dashboard: "This dashboard",
};
