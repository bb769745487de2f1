// API keys: the list with each key's last use, limits and spending; creation and rotation (the key is shown once),
// changes of the limits, blocking, and deletion.

import { html, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Dialog,
  Empty,
  IconButton,
  Input,
  Field,
  Loaded,
  Notice,
  Once,
  Page,
  Text,
  Time,
  ask,
  sentence,
  session,
  useChanges,
  useLoad,
} from "../core.js";
import { Rows } from "../rows.js";
import { LimitFields, fieldsOf, spent, summary, valuesOf } from "./key_limits.js";
import { SpentByDay } from "./usage.js";

export function List() {
  const keys = useLoad((signal) => ask("GET", "/keys", undefined, { signal }), []);
  useChanges(["keys"], keys);
  const [isCreating, setCreating] = useState(false);
  const [deleting, setDeleting] = useState(null);
  const [changing, setChanging] = useState(null);
  const [rotating, setRotating] = useState(null);
  const block = async (key) => {
    await ask("PATCH", `/keys/${key.id}`, { blocked: !key.blocked });
    keys.reload();
  };
  const { member } = session.value;
  const mayManage = member.api_key_access;
  return html`<${Page} title="API keys" intro="A key lets a program use the API on behalf of your organization. Keys belong to the organization: they keep working when the person who created them leaves."
    actions=${mayManage ? html`<${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>Create a key</${Button}>` : null}>
    ${mayManage ? null : html`<${Notice}>You can see the keys. To create or delete one, ask the Owner for the permission “API key access”.</${Notice}>`}
    <${Loaded} of=${keys} empty=${(data) =>
      data.keys.length
        ? null
        : html`<${Empty} icon="key-round" title="No keys yet">
      <p>Programs need a key to call the API. The dashboard itself needs none.</p></${Empty}>`}>${(data) => html`
      <div class="card scroll"><table><thead><tr><th scope="col">Name</th><th scope="col">Created</th><th scope="col">Last used</th><th scope="col">Expires</th><th scope="col">Spent</th>${mayManage ? html`<th scope="col"><span class="hidden">Actions</span></th>` : null}</tr></thead>
      <${Rows} all=${data.keys} columns="6">${(
        key,
      ) => html`<tr key=${key.id}><th scope="row"><${Text}>${key.name}</${Text}><p class="hint"><code>${key.prefix}…</code></p>${summary(key) ? html`<p class="hint"><${Text}>${summary(key)}</${Text}></p>` : null}</th>
        <td data-label="Created"><div><${Time} at=${key.created_at} /><p class="hint"><${Text}>${key.created_by}</${Text}></p></div></td>
        <td data-label="Last used"><${Time} at=${key.last_used_at} /></td><td data-label="Expires"><${Expiry} of=${key} /></td><td data-label="Spent">${spent(key)}</td>
        ${mayManage ? html`<td class="end"><${IconButton} icon="pencil" label=${`Change the limits of ${key.name}`} onClick=${() => setChanging(key)} /><${IconButton} icon="rotate-ccw" label=${`Rotate the key ${key.name}`} onClick=${() => setRotating(key)} /><${IconButton} icon=${key.blocked ? "lock-open" : "lock"} label=${`${key.blocked ? "Unblock" : "Block"} the key ${key.name}`} onClick=${() => block(key)} /><${IconButton} icon="trash-2" label=${`Delete the key ${key.name}`} onClick=${() => setDeleting(key)} /></td>` : null}</tr>`}</${Rows}></table></div>`}</${Loaded}>
    ${
      isCreating
        ? html`<${Create} onClose=${() => {
            setCreating(false);
            keys.reload();
          }} />`
        : null
    }
    ${
      changing
        ? html`<${Change} of=${changing} onClose=${() => {
            setChanging(null);
            keys.reload();
          }} />`
        : null
    }
    ${
      rotating
        ? html`<${Rotate} of=${rotating} onClose=${() => {
            setRotating(null);
            keys.reload();
          }} />`
        : null
    }
    ${
      deleting
        ? html`<${Confirm} title="Delete this key?" action="Delete the key" onClose=${() => setDeleting(null)} onDo=${async () => {
            await ask("DELETE", `/keys/${deleting.id}`);
            keys.reload();
          }}>
      <p>Programs that use <strong><${Text}>${deleting.name}</${Text}></strong> (<code>${deleting.prefix}…</code>) lose access immediately. This cannot be undone.</p></${Confirm}>`
        : null
    }
  </${Page}>`;
}

export const Detail = List;

function Expiry({ of: { blocked, expires_at: at } }) {
  if (blocked) return html`<span class="status off">Blocked</span>`;
  if (at && new Date(at) <= new Date()) return html`<span class="status bad">Expired</span>`;
  return html`<${Time} at=${at} />`;
}

// The full text of a new or rotated key.
function Made({ title, text, onClose }) {
  return html`<${Dialog} title=${title} onClose=${onClose} modal=${false}><div class="stack">
    <${Notice} kind="warning">Copy the key now and keep it in a safe place. It is shown only once.</${Notice}>
    <${Once} text=${text} label="The new API key" />
    <div class="actions end"><${Button} kind="primary" onClick=${onClose}>I have copied it</${Button}></div></div></${Dialog}>`;
}

function Change({ of: key, onClose }) {
  const [values, setValues] = useState(valuesOf(key));
  const [state, setState] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await ask("PATCH", `/keys/${key.id}`, fieldsOf(values));
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${`Limits of ${key.name}`} onClose=${onClose}><form class="stack" onSubmit=${submit}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${SpentByDay} id=${key.id} />
    <${LimitFields} values=${values} onValues=${setValues} />
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>Save</${Button}></div></form></${Dialog}>`;
}

function Rotate({ of: key, onClose }) {
  const [grace, setGrace] = useState("86400");
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, made: null });
    try {
      const made = await ask("POST", `/keys/${key.id}/rotate`, { grace_seconds: Number(grace) });
      setState({ busy: false, error: null, made });
    } catch (error) {
      setState({ busy: false, error, made: null });
    }
  };
  if (state.made) return html`<${Made} title="Your rotated key" text=${state.made.key} onClose=${onClose} />`;
  return html`<${Dialog} title="Rotate this key?" onClose=${onClose}><form class="stack" onSubmit=${submit}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <p>The key <strong><${Text}>${key.name}</${Text}></strong> gets a new text. Its limits and its history stay.</p>
    <${Field} label="The old text works">${(
      field,
    ) => html`<select ...${field} name="grace" value=${grace} onChange=${(event) => setGrace(event.currentTarget.value)}>
      <option value="0">No longer</option><option value="3600">For another hour</option><option value="86400">For another day</option><option value="604800">For another week</option></select>`}</${Field}>
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>Rotate the key</${Button}></div></form></${Dialog}>`;
}

function Create({ onClose }) {
  const [name, setName] = useState("");
  const [limits, setLimits] = useState(valuesOf());
  const [days, setDays] = useState("");
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, made: null });
    try {
      const made = await ask("POST", "/keys", { name, expires_in_days: days ? Number(days) : null, ...fieldsOf(limits) });
      setState({ busy: false, error: null, made });
    } catch (error) {
      setState({ busy: false, error, made: null });
    }
  };
  if (state.made) {
    return html`<${Made} title="Your new key" text=${state.made.key} onClose=${onClose} />`;
  }
  return html`<${Dialog} title="Create a key" onClose=${onClose}><form class="stack" onSubmit=${submit}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Input} label="What is the key for?" name="name" required maxlength="64" value=${name} onValue=${setName} first=${true} hint="For example the name of the program that uses it." />
    <${Field} label="Expires">${(
      field,
    ) => html`<select ...${field} name="days" value=${days} onChange=${(event) => setDays(event.currentTarget.value)}>
      <option value="">Never</option><option value="7">In 7 days</option><option value="30">In 30 days</option><option value="90">In 90 days</option><option value="365">In a year</option></select>`}</${Field}>
    <details><summary>Limits</summary><div class="stack"><${LimitFields} values=${limits} onValues=${setLimits} /></div></details>
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>Create the key</${Button}></div></form></${Dialog}>`;
}
