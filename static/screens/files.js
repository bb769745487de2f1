// Files: uploads and outputs of runs, with totals, previews and deletion.

import { html, useRef, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Dialog,
  Empty,
  IconButton,
  Link,
  Loaded,
  Notice,
  Page,
  Text,
  Time,
  ask,
  bytes,
  count,
  sentence,
  useChanges,
  useLoad,
} from "../core.js";
import { place, setQuery } from "../location.js";
import { Preview } from "../output.js";

const API = "/api/base/v1/files";

export function List() {
  const cursor = place.value.query.get("cursor") ?? "";
  const files = useLoad(
    async (signal) => {
      const [page, usage] = await Promise.all([
        ask("GET", `${API}?limit=50${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, undefined, { signal }),
        ask("GET", `${API}/usage`, undefined, { signal }),
      ]);
      return { ...page, usage };
    },
    [cursor],
  );
  useChanges(["files"], files);
  const [deleting, setDeleting] = useState(null);
  const [shown, setShown] = useState(null);
  const [state, setState] = useState({ busy: false, error: null });
  const input = useRef(null);
  const upload = async (list) => {
    setState({ busy: true, error: null });
    try {
      for (const file of list) {
        const form = new FormData();
        form.append("file", file, file.name);
        await ask("POST", API, form);
      }
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
    files.reload();
  };
  const drop = (event) => {
    if (event.dataTransfer?.files.length) {
      event.preventDefault();
      upload([...event.dataTransfer.files]);
    }
  };
  return html`<${Page} title="Files" wide=${true} intro="Uploads and files created by runs. Each file is deleted when it expires."
    actions=${html`<input type="file" multiple class="hidden" tabindex="-1" aria-label="Files to upload" ref=${input} onChange=${(event) => upload([...event.currentTarget.files])} /><${Button} kind="primary" icon="upload" needs="operator" busy=${state.busy} onClick=${() => input.current.click()}>Upload</${Button}>`}>
    <div class="stack" onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Loaded} of=${files} empty=${(data) => (data.files.length || cursor ? null : html`<${Empty} icon="file" title="No files yet"><p>Drop files here, or run a model that creates one.</p></${Empty}>`)}>${(
      data,
    ) => html`
      <dl class="facts"><div><dt>Files</dt><dd>${count(data.usage.count)}</dd></div><div><dt>In all</dt><dd>${bytes(data.usage.bytes)}</dd></div></dl>
      <div class="card scroll"><table><thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col" class="number">Size</th><th scope="col">From</th><th scope="col">Created</th><th scope="col">Deleted on</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${data.files.map(
        (
          file,
        ) => html`<tr key=${file.id}><th scope="row">${file.status === "ready" ? html`<button type="button" class="twist" onClick=${() => setShown(file)}><u><${Text}>${file.filename ?? "unnamed"}</${Text}></u></button>` : html`<${Text}>${file.filename ?? "unnamed"}</${Text}> <span class="tag">announced</span>`}</th>
        <td data-label="Type"><${Text}>${file.content_type}</${Text}></td><td data-label="Size" class="number">${bytes(file.size)}</td>
        <td data-label="From">${file.execution_id ? html`<${Link} to=${`/app/runs/${file.execution_id}`}>a run</${Link}>` : "an upload"}</td><td data-label="Created"><${Time} at=${file.created_at} /></td><td data-label="Deleted on"><${Time} at=${file.expires_at} /></td>
        <td class="end"><${IconButton} icon="trash-2" needs="editor" label=${`Delete ${file.filename ?? "the file"}`} onClick=${() => setDeleting(file)} /></td></tr>`,
      )}</tbody></table></div>
      <div class="actions">${cursor ? html`<${Button} onClick=${() => setQuery({ cursor: "" }, {})}>Newest</${Button}>` : null}${data.has_more ? html`<${Button} icon="chevron-right" onClick=${() => setQuery({ cursor: data.next_cursor }, {})}>Older files</${Button}>` : null}</div>`}</${Loaded}></div>
    ${shown ? html`<${Dialog} title=${shown.filename ?? "File"} onClose=${() => setShown(null)}><${Preview} file=${shown} /></${Dialog}>` : null}
    ${
      deleting
        ? html`<${Confirm} title="Delete this file?" action="Delete the file" onClose=${() => setDeleting(null)} onDo=${async () => {
            await ask("DELETE", `${API}/${deleting.id}`);
            files.reload();
          }}>
      <p><strong><${Text}>${deleting.filename ?? "The file"}</${Text}></strong> (${bytes(deleting.size)}) is deleted, and links to it stop working. This cannot be undone.</p></${Confirm}>`
        : null
    }</${Page}>`;
}

export const Detail = List;
