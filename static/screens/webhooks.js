// Webhooks: deliveries with every attempt, and redelivery.

import { html, useEffect, useState } from "../vendor/preact.js";
import {
  Button,
  Empty,
  Field,
  Icon,
  Link,
  Loaded,
  Page,
  Status,
  Text,
  Time,
  Due,
  Refusal,
  ask,
  count,
  duration,
  request,
  sentence,
  session,
  useChanges,
  useLoad,
} from "../core.js";
import { place, setQuery } from "../location.js";
import { LongText } from "../output.js";

const API = "/api/base/v1/webhooks";
const STATES = [
  ["", "All"],
  ["pending", "Waiting"],
  ["delivering", "Being delivered"],
  ["delivered", "Delivered"],
  ["failed", "Given up"],
];
const PAGE = 50;
// Minimum and maximum milliseconds until a pending delivery is reloaded.
const LOOK_MS = 2000;
const LOOK_MAX_MS = 600000;

// Returns the key of a delivery: the delivery's own id if the delivery is for an endpoint,
// otherwise the run's id.
const idOf = (delivery) => (delivery.endpoint_id ? delivery.delivery_id : delivery.execution_id);

export function List() {
  const status = place.value.query.get("status") ?? "";
  const offset = Number(place.value.query.get("offset")) || 0;
  const all = useLoad(
    (signal) => ask("GET", `${API}?limit=${PAGE}&offset=${offset}${status ? `&status=${status}` : ""}`, undefined, { signal }),
    [status, offset],
  );
  useChanges(["webhooks"], all);
  const base = session.value.hosts?.find((host) => host.role === "base")?.url ?? "";
  return html`<${Page} title="Webhooks" intro="When a run ends, the service notifies the URL given with the run." actions=${html`<${Button} icon="refresh-cw" busy=${all.loading} onClick=${all.reload}>Refresh</${Button}>`}>
    <${Receivers} />
    <div class="filters"><${Field} label="Status">${(field) => html`<select ...${field} value=${status} onChange=${(event) => setQuery({ status: event.currentTarget.value, offset: "" })}>${STATES.map(([value, word]) => html`<option value=${value}>${word}</option>`)}</select>`}</${Field}></div>
    <${Loaded} of=${all} empty=${(data) =>
      data.webhooks.length || offset
        ? null
        : status
          ? html`<${Empty} icon="search" title="No webhooks with this status"><${Button} onClick=${() => setQuery({ status: "" })}>Show all</${Button}></${Empty}>`
          : html`<${Empty} icon="webhook" title="No webhooks yet"><p>A program asks for one with the field <code>webhook_url</code>:</p>
        <pre class="code left" tabindex="0">${`curl -s ${base}/v1/prediction/ -H "X-API-Key: $ORRERY_KEY" -d '{\n  "model": "text-sentiment", "version": "0.0.1",\n  "input": {"text": "What a beautiful night!"},\n  "webhook_url": "https://example.com/hook"}'`}</pre></${Empty}>`}>${(
      data,
    ) => html`
      <${Deliveries} all=${data.webhooks} hasRuns=${true} />
      <div class="actions">${offset ? html`<${Button} onClick=${() => setQuery({ offset: Math.max(0, offset - PAGE) || "" }, {})}>Newer</${Button}>` : null}
        ${offset + data.webhooks.length < data.total_count ? html`<${Button} icon="chevron-right" onClick=${() => setQuery({ offset: offset + PAGE }, {})}>Older</${Button}>` : null}<span class="quiet">${data.total_count} in all</span></div>`}</${Loaded}></${Page}>`;
}

// Why a delivery was made: for an endpoint's event, by the last word of the event's name, or at the run's own request.
const EVENTS = { started: "when it started", completed: "when it completed", failed: "when it failed", test: "as a test" };
const whyOf = ({ event }) => (event ? `for an endpoint, ${EVENTS[event.split(".")[1]] ?? event}` : "for the run itself");
const runOf = (delivery) => `/app/runs/${delivery.execution_id}${delivery.execution_type === "workflow" ? "?type=workflow" : ""}`;

function Deliveries({ all, hasRuns }) {
  return html`<div class="card scroll"><table><thead><tr><th scope="col">Receiver</th><th scope="col">Status</th><th scope="col">Created</th><th scope="col">Next attempt</th>${hasRuns ? html`<th scope="col">Run</th>` : null}</tr></thead>
    <tbody>${all.map(
      (
        one,
      ) => html`<tr key=${one.delivery_id}><th scope="row"><${Link} to=${`/app/webhooks/${idOf(one)}`}><${Text}>${one.url}</${Text}></${Link}><div class="quiet note">${whyOf(one)}</div></th>
      <td data-label="Status"><${Status} of=${one.status} /></td><td data-label="Created"><${Time} at=${one.created_at} /></td><td data-label="Next attempt"><${Due} at=${one.next_attempt_at} /></td>
      ${hasRuns ? html`<td data-label="Run"><${Link} to=${runOf(one)}><code>${one.execution_id.slice(-8)}</code></${Link}></td>` : null}</tr>`,
    )}</tbody></table></div>`;
}

// The deliveries of one run, for its page.
export function DeliveriesOf({ run }) {
  const all = useLoad((signal) => ask("GET", `${API}?execution=${run}&limit=${PAGE}`, undefined, { signal }), [run]);
  useChanges(["webhooks"], all);
  return html`<${Loaded} of=${all} empty=${(data) =>
    data.webhooks.length
      ? null
      : html`<p class="quiet">No webhook was sent for this run: it asked for none, and no webhook endpoint is notified of it.</p>`}>${(
    data,
  ) => html`<${Deliveries} all=${data.webhooks} hasRuns=${false} />`}</${Loaded}>`;
}

// The receivers, including those for which deliveries are waiting.
function Receivers() {
  const all = useLoad((signal) => ask("GET", "/webhooks/receivers", undefined, { signal }), []);
  useChanges(["webhooks"], all);
  if (!all.data?.receivers.length) return null;
  return html`<section><h2>Receivers</h2><div class="card scroll"><table><thead><tr><th scope="col">Receiver</th><th scope="col">State</th><th scope="col" class="number">Delivered</th><th scope="col" class="number">Waiting</th><th scope="col" class="number">Given up</th><th scope="col">Newest</th></tr></thead>
    <tbody>${all.data.receivers.map(
      (one) => html`<tr key=${one.receiver}><th scope="row"><${Text}>${one.receiver}</${Text}></th>
      <td data-label="State">${one.circuit_open ? html`<div><span class="status bad"><${Icon} name="circle-alert" />Paused</span> <span class="quiet">after ${count(one.failures)} failures, next attempt <${Due} at=${one.next_probe_at} /></span></div>` : html`<span class="status good"><${Icon} name="check" />Working</span>`}</td>
      <td data-label="Delivered" class="number">${count(one.delivered)}</td><td data-label="Waiting" class="number">${count(one.pending)}</td><td data-label="Given up" class="number">${one.failed ? html`<${Link} to="/app/webhooks?status=failed">${count(one.failed)}</${Link}>` : "0"}</td>
      <td data-label="Newest"><${Time} at=${one.newest_at} /></td></tr>`,
    )}</tbody></table></div>${all.data.capped ? html`<p class="hint">Only the newest deliveries are counted.</p>` : null}</section>`;
}

export function Detail({ id }) {
  const one = useLoad(
    async (signal) => {
      const answer = await request("GET", `${API}/${encodeURIComponent(id)}`, undefined, { signal });
      const wait = Number(answer.headers.get("retry-after")) || 0;
      return { ...(await answer.json()), until: wait ? Date.now() + wait * 1000 : null };
    },
    [id],
  );
  const isMoving = one.data && ["pending", "delivering"].includes(one.data.status);
  // While the delivery is pending and the page is visible, its record is reloaded when the next attempt is due.
  useEffect(() => {
    if (!isMoving) return undefined;
    const due = Date.parse(one.data.next_attempt_at ?? "") - Date.now();
    const again = () => {
      if (!document.hidden) one.reload();
    };
    const clock = setTimeout(again, Math.min(Math.max(due + 500 || 0, LOOK_MS), LOOK_MAX_MS));
    document.addEventListener("visibilitychange", again);
    return () => {
      clearTimeout(clock);
      document.removeEventListener("visibilitychange", again);
    };
  }, [isMoving, id, one.data]);
  if (!one.data && one.error instanceof Refusal && one.error.status === 404) {
    return html`<${Page} title="Webhook"><${Empty} icon="webhook" title="There is no webhook here"><p>No delivery has this id, or its record is no longer stored. <${Link} to="/app/webhooks">See all webhooks</${Link}>, or <${Link} to=${`/app/runs/${encodeURIComponent(id)}?tab=webhook`}>the webhooks of the run</${Link}> with this id.</p></${Empty}></${Page}>`;
  }
  return html`<${Page} title="Webhook" intro=${one.data ? html`<${Text}>${one.data.url}</${Text}>` : null} actions=${one.data ? html`<${Redeliver} of=${one.data} reload=${one.reload} />` : null}>
    <${Loaded} of=${one}>${(
      delivery,
    ) => html`<dl class="facts"><div><dt>Status</dt><dd><${Status} of=${delivery.status} /></dd></div><div><dt>Created</dt><dd><${Time} at=${delivery.created_at} /></dd></div>
      <div><dt>Next attempt</dt><dd><${Due} at=${delivery.next_attempt_at} /></dd></div><div><dt>Run</dt><dd><${Link} to=${runOf(delivery)}><code>${delivery.execution_id.slice(-8)}</code></${Link}></dd></div></dl>
      <section><h2>Attempts</h2>${
        delivery.attempts?.length
          ? html`<div class="card scroll"><table><thead><tr><th scope="col">Number</th><th scope="col">Result</th><th scope="col">When</th><th scope="col" class="number">Took</th><th scope="col">Response of the receiver</th></tr></thead>
        <tbody>${delivery.attempts.map(
          (
            attempt,
          ) => html`<tr key=${attempt.number}><th scope="row">${attempt.number}${attempt.redelivery ? html` <span class="tag">again</span>` : null}</th>
          <td data-label="Result"><${Status} of=${{ SUCCESS: "delivered", FAILED: "failed", PENDING: "delivering" }[attempt.status] ?? attempt.status} /></td><td data-label="When"><${Time} at=${attempt.created_at} none="now" /></td>
          <td data-label="Took" class="number">${attempt.duration_ms === null ? "–" : duration(attempt.duration_ms / 1000)}</td>
          <td data-label="Answer"><div>${attempt.status_code ? html`<code>${attempt.status_code}</code> ` : null}<${Text}>${attempt.error_message ?? ""}</${Text}>${attempt.response ? html`<details><summary>Body</summary><${LongText} text=${attempt.response} /></details>` : null}</div></td></tr>`,
        )}</tbody></table></div>`
          : html`<p class="quiet">Nothing was sent yet.</p>`
      }</section>
      <section><h2>What is sent</h2>${delivery.request === null ? html`<p class="quiet">The payload is no longer stored.</p>` : html`<${LongText} text=${delivery.request} />`}
        <details><summary>Headers</summary><div class="card scroll"><table><tbody>${Object.entries(delivery.headers).map(([name, value]) => html`<tr key=${name}><th scope="row"><code>${name}</code></th><td><${Text}>${typeof value === "string" ? value : JSON.stringify(value)}</${Text}></td></tr>`)}</tbody></table></div></details></section>`}</${Loaded}></${Page}>`;
}

// The button is shown exactly when a redelivery would be accepted; otherwise, the reason is shown. When a cooldown is
// over, its reason is replaced by the button.
function Redeliver({ of, reload }) {
  const [state, setState] = useState({ busy: false, error: null });
  const [now, setNow] = useState(Date.now());
  const left = of.until ? Math.ceil((of.until - now) / 1000) : 0;
  useEffect(() => {
    if (!of.until) return undefined;
    setNow(Date.now());
    const clock = setInterval(() => {
      setNow(Date.now());
      if (Date.now() >= of.until) {
        clearInterval(clock);
        reload();
      }
    }, 500);
    return () => clearInterval(clock);
  }, [of.until]);
  const send = async () => {
    setState({ busy: true, error: null });
    try {
      await ask("POST", `${API}/${idOf(of)}/redeliver`, {});
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
    reload();
  };
  const isWaiting = of.status === "pending" && Date.parse(of.next_attempt_at ?? "") > Date.now();
  const reason =
    isWaiting && left <= 0
      ? html`Next attempt <${Due} at=${of.next_attempt_at} />`
      : of.status === "delivering"
        ? "Delivery in flight"
        : of.status === "pending" && !isWaiting
          ? "Waits for the receiver"
          : of.request === null
            ? "Payload no longer stored"
            : left > 0
              ? `Again in ${duration(left)}`
              : "It cannot be sent again right now";
  return html`${state.error ? html`<span class="status bad" role="alert">${sentence(state.error)}</span>` : null}
    ${of.redeliverable ? html`<${Button} kind="primary" icon="send" needs="operator" busy=${state.busy} onClick=${send}>${of.status === "pending" ? "Send now" : "Send again"}</${Button}>` : html`<span class="status waiting" role="status"><${Icon} name="clock" />${reason}</span>`}`;
}
