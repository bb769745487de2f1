// Named secrets: names and dates, setting a new value, and deletion. Values are sent to the service and never shown
// again.

import { html, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Dialog,
  Empty,
  Field,
  IconButton,
  Input,
  Loaded,
  Notice,
  Page,
  Text,
  Time,
  ask,
  sentence,
  useChanges,
  useLoad,
} from "../core.js";
import { Rows } from "../rows.js";

const API = "/api/base/v1/secrets";
const pathOf = (name) => `${API}/${encodeURIComponent(name)}`;

export function List() {
  const secrets = useLoad((signal) => ask("GET", API, undefined, { signal }), []);
  useChanges(["secrets"], secrets);
  const [setting, setSetting] = useState(null);
  const [deleting, setDeleting] = useState(null);
  const add = html`<${Button} kind="primary" icon="plus" needs="editor" onClick=${() => setSetting({ name: "" })}>Add a secret</${Button}>`;
  return html`<${Page} title="Secrets" intro="Values for the requests of workflows: a step writes {{secrets.NAME}} where the value belongs. Nobody can read a value back." actions=${add}>
    <${Loaded} of=${secrets} empty=${(data) =>
      data.secrets.length
        ? null
        : html`<${Empty} icon="lock" title="No secrets yet">
      <p>Store the key of a service here, and workflows use it without showing it to anyone.</p></${Empty}>`}>${(data) => html`
      <div class="card scroll"><table><thead><tr><th scope="col">Name</th><th scope="col">In a step</th><th scope="col">Created</th><th scope="col">Value set</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <${Rows} all=${data.secrets} columns="5">${(
        secret,
      ) => html`<tr key=${secret.name}><th scope="row"><${Text}>${secret.name}</${Text}></th><td data-label="In a step"><${Text} as="code">${`{{secrets.${secret.name}}}`}</${Text}></td>
        <td data-label="Created"><${Time} at=${secret.created_at} /></td><td data-label="Value set"><${Time} at=${secret.updated_at} /></td>
        <td class="end"><${IconButton} icon="pencil" needs="editor" label=${`Set a new value of ${secret.name}`} onClick=${() => setSetting(secret)} /><${IconButton} icon="trash-2" needs="editor" label=${`Delete the secret ${secret.name}`} onClick=${() => setDeleting(secret)} /></td></tr>`}</${Rows}></table></div>`}</${Loaded}>
    ${
      setting
        ? html`<${Value} secret=${setting} known=${secrets.data?.secrets ?? []} onClose=${() => setSetting(null)} onDone=${() => {
            setSetting(null);
            secrets.reload();
          }} />`
        : null
    }
    ${
      deleting
        ? html`<${Confirm} title="Delete this secret?" action="Delete the secret" onClose=${() => setDeleting(null)} onDo=${async () => {
            await ask("DELETE", pathOf(deleting.name));
            secrets.reload();
          }}>
      <p>Steps that use <strong><${Text}>${deleting.name}</${Text}></strong> will fail. This cannot be undone.</p></${Confirm}>`
        : null
    }
  </${Page}>`;
}

export const Detail = List;

function Value({ secret, known, onClose, onDone }) {
  const [name, setName] = useState(secret.name);
  const [value, setValue] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const isNew = !secret.name;
  const isTaken = isNew && known.some((one) => one.name === name);
  const save = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await ask("PUT", pathOf(name), { value });
      onDone();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${isNew ? "Add a secret" : `A new value of ${secret.name}`} onClose=${onClose}><form class="stack" onSubmit=${save} autocomplete="off">
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    ${isNew ? html`<${Input} label="Name" name="name" required maxlength="64" pattern="[a-zA-Z0-9_\\-]+" hint="a-z, A-Z, 0-9, _ and -" value=${name} onValue=${setName} first=${true} />` : null}
    ${isTaken ? html`<${Notice} kind="warning">A secret with this name exists. Its value will be replaced.</${Notice}>` : null}
    <${Field} label="Value" hint=${isNew ? "It can have several lines." : "It takes effect at the next attempt of each step."}>${(field) => html`<textarea ...${field} name="value" rows="3" required spellcheck="false" autocomplete="off" data-first=${isNew ? undefined : ""} value=${value} onInput=${(event) => setValue(event.currentTarget.value)}></textarea>`}</${Field}>
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>${isNew ? "Add the secret" : "Set the value"}</${Button}></div></form></${Dialog}>`;
}
