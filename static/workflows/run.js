// Runs a stored version of a workflow: once, or for up to ten inputs at once.

import { html, useState } from "../vendor/preact.js";
import {
  Button,
  Copy,
  IconButton,
  Link,
  Loaded,
  Notice,
  Status,
  Text,
  Time,
  ask,
  sentence,
  session,
  statusOf,
  useChanges,
  useLoad,
} from "../core.js";
import { Json, SchemaForm } from "../form.js";
import { go } from "../location.js";
import { example, initial } from "../schema.js";
import { API } from "./service.js";

// Maximum number of inputs in one bulk run.
const BULK_MAX = 10;

export function RunTab({ workflow, version, isDirty }) {
  const schema = version.definition.input_schema ?? { type: "object" };
  const key = `inputs:${workflow.workflow_id}`;
  const start = () => example(schema) ?? initial(schema, schema) ?? {};
  const [inputs, setInputs] = useState(() => {
    try {
      const found = JSON.parse(sessionStorage.getItem(key));
      if (Array.isArray(found) && found.length) return found;
    } catch {
      /* Starts empty. */
    }
    return [start()];
  });
  const [state, setState] = useState({ busy: false, error: null, taken: null });
  const keep = (next) => {
    setInputs(next);
    try {
      sessionStorage.setItem(key, JSON.stringify(next));
    } catch {
      /* Kept only while the page is open. */
    }
  };
  const set = (at, value) => keep(inputs.map((one, index) => (index === at ? value : one)));
  const run = async (event) => {
    event?.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null, taken: null });
    try {
      if (inputs.length === 1) {
        const made = await ask("POST", `${API}/${workflow.workflow_id}/trigger`, { version_id: version.version_id, inputs: inputs[0] });
        go(`/app/runs/${made.execution_id}?type=workflow`);
        return;
      }
      const made = await ask("POST", `${API}/${workflow.workflow_id}/bulk-trigger`, { version_id: version.version_id, inputs });
      setState({ busy: false, error: null, taken: made });
    } catch (error) {
      setState({ busy: false, error, taken: null });
    }
  };
  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
  };
  const hasForm = Object.keys(schema.properties ?? {}).length > 0;
  const base = session.value.hosts?.find((host) => host.role === "base")?.url ?? "";
  const command = `curl -s ${base}/v1/workflows/${workflow.slug}/trigger \\\n  -H "X-API-Key: $ORRERY_KEY" -H "Content-Type: application/json" \\\n  -d '${JSON.stringify({ inputs: inputs[0] }).replaceAll("'", "'\\''")}'`;
  return html`<div class="panels"><section aria-label="Inputs" onKeyDown=${onKey}>
      ${isDirty ? html`<${Notice} kind="warning">${version.version_id} runs as saved, without unsaved changes.</${Notice}>` : null}
      ${workflow.status === "archived" ? html`<${Notice} kind="warning">An archived workflow cannot be run.</${Notice}>` : null}
      <form class="stack" onSubmit=${run}>
        ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
        ${inputs.map((input, at) => {
          const errors = at === 0 && inputs.length === 1 ? (state.error?.fields ?? {}) : {};
          const form = hasForm
            ? html`<${SchemaForm} schema=${schema} value=${input} errors=${errors} onValue=${(value) => set(at, value)} />`
            : html`<${Json} label="Inputs as JSON" rows=${6} value=${input} onValue=${(value) => set(at, value ?? {})} />`;
          return inputs.length === 1
            ? html`<div key="one">${form}</div>`
            : html`<fieldset key=${at}><legend>Run ${at + 1}</legend>${form}
            <div><${IconButton} icon="x" label=${`Remove run ${at + 1}`} onClick=${() => keep(inputs.filter((_, index) => index !== at))} /></div></fieldset>`;
        })}
        <div class="actions"><${Button} kind="primary" type="submit" icon="play" needs="operator" busy=${state.busy} title="Ctrl+Enter">${inputs.length === 1 ? `Run ${version.version_id}` : `Run ${inputs.length} times`}</${Button}>
          <${Button} icon="plus" disabled=${inputs.length >= BULK_MAX} onClick=${() => keep([...inputs, inputs.at(-1)])}>Another input</${Button}></div></form></section>
    <section aria-label="Runs">${state.taken ? html`<h2>Started</h2><ul class="plain">${state.taken.executions.map((one, at) => html`<li key=${at}>Run ${at + 1}: ${one.execution_id ? html`<${Link} to=${`/app/runs/${one.execution_id}?type=workflow`}>open it</${Link}>` : html`<span class="status bad"><${Text}>${one.message}</${Text}></span>`}</li>`)}</ul>` : null}
      <${Recent} workflow=${workflow} key=${state.taken?.bulk_id ?? ""} />
      <details><summary>Run it from a program</summary><pre class="code" tabindex="0"><code>${command}</code></pre><div class="actions"><${Copy} text=${command} /></div></details></section></div>`;
}

function Recent({ workflow }) {
  const recent = useLoad(
    (signal) => ask("GET", `${API}/workflows/${workflow.workflow_id}/executions?limit=8`, undefined, { signal }),
    [workflow.workflow_id],
  );
  useChanges(["runs"], recent);
  return html`<h2>Latest runs</h2><${Loaded} of=${recent} empty=${(data) => (data.executions.length ? null : html`<p class="quiet">It has not run yet. Fill in the form and press Run.</p>`)}>${(
    data,
  ) => html`
    <div class="card scroll"><table><tbody>${data.executions.map((one) => html`<tr key=${one.execution_id}><th scope="row"><${Link} to=${`/app/runs/${one.execution_id}?type=workflow`}><${Status} of=${statusOf(one)} /></${Link}></th><td data-label="Version"><code>${one.version_id}</code></td><td data-label="Started"><${Time} at=${one.created_at} /></td></tr>`)}</tbody></table></div>
    <p><${Link} to=${`/app/runs?type=workflow&workflow_id=${workflow.workflow_id}`}>All its runs</${Link}></p>`}</${Loaded}>`;
}
