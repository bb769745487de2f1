// API keys: the list with each key's last use, creation (the key is shown once), and deletion.

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

export function List() {
  const keys = useLoad((signal) => ask("GET", "/keys", undefined, { signal }), []);
  useChanges(["keys"], keys);
  const [isCreating, setCreating] = useState(false);
  const [deleting, setDeleting] = useState(null);
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
      <div class="card scroll"><table><thead><tr><th scope="col">Name</th><th scope="col">Key</th><th scope="col">Created by</th><th scope="col">Created</th><th scope="col">Last used</th><th scope="col">Expires</th>${mayManage ? html`<th scope="col"><span class="hidden">Actions</span></th>` : null}</tr></thead>
      <${Rows} all=${data.keys} columns="7">${(
        key,
      ) => html`<tr key=${key.id}><th scope="row"><${Text}>${key.name}</${Text}></th><td data-label="Key"><code>${key.prefix}…</code></td>
        <td data-label="Created by"><${Text}>${key.created_by}</${Text}></td><td data-label="Created"><${Time} at=${key.created_at} /></td>
        <td data-label="Last used"><${Time} at=${key.last_used_at} /></td><td data-label="Expires"><${Expiry} at=${key.expires_at} /></td>
        ${mayManage ? html`<td class="end"><${IconButton} icon="trash-2" label=${`Delete the key ${key.name}`} onClick=${() => setDeleting(key)} /></td>` : null}</tr>`}</${Rows}></table></div>`}</${Loaded}>
    ${
      isCreating
        ? html`<${Create} onClose=${() => {
            setCreating(false);
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

function Expiry({ at }) {
  if (at && new Date(at) <= new Date()) return html`<span class="status bad">Expired</span>`;
  return html`<${Time} at=${at} />`;
}

function Create({ onClose }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState("");
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, made: null });
    try {
      const made = await ask("POST", "/keys", { name, expires_in_days: days ? Number(days) : null });
      setState({ busy: false, error: null, made });
    } catch (error) {
      setState({ busy: false, error, made: null });
    }
  };
  if (state.made) {
    return html`<${Dialog} title="Your new key" onClose=${onClose} modal=${false}><div class="stack">
      <${Notice} kind="warning">Copy the key now and keep it in a safe place. It is shown only once.</${Notice}>
      <${Once} text=${state.made.key} label="The new API key" />
      <div class="actions end"><${Button} kind="primary" onClick=${onClose}>I have copied it</${Button}></div></div></${Dialog}>`;
  }
  return html`<${Dialog} title="Create a key" onClose=${onClose}><form class="stack" onSubmit=${submit}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Input} label="What is the key for?" name="name" required maxlength="64" value=${name} onValue=${setName} first=${true} hint="For example the name of the program that uses it." />
    <${Field} label="Expires">${(
      field,
    ) => html`<select ...${field} name="days" value=${days} onChange=${(event) => setDays(event.currentTarget.value)}>
      <option value="">Never</option><option value="7">In 7 days</option><option value="30">In 30 days</option><option value="90">In 90 days</option><option value="365">In a year</option></select>`}</${Field}>
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>Create the key</${Button}></div></form></${Dialog}>`;
}
