// Workflows: the list with its search, creation, and import of other formats. The editor handles a single workflow.

import { html, useState } from "../vendor/preact.js";
import {
  Button,
  Dialog,
  Empty,
  Field,
  Icon,
  Input,
  Link,
  Loaded,
  Notice,
  Page,
  Refusal,
  Status,
  Text,
  Time,
  ask,
  count,
  duration,
  money,
  sentence,
  statusOf,
  useChanges,
  useLoad,
} from "../core.js";
import { go, place, setQuery } from "../location.js";
import { API, FLOWS, TEMPLATES, readImport } from "../workflows/service.js";

export { Editor as Detail } from "../workflows/editor.js";

const PAGE = 25;
const SORTS = [
  ["", "Newest first"],
  ["updated_at", "Last changed"],
  ["name", "By name"],
];

export function List() {
  const { query } = place.value;
  const [keyword, tag, status, sort] = ["q", "tag", "status", "sort"].map((name) => query.get(name) ?? "");
  const offset = Number(query.get("offset")) || 0;
  const all = useLoad(
    async (signal) => {
      const asked = new URLSearchParams({ limit: String(PAGE), offset: String(offset) });
      for (const [name, value] of [
        ["keyword", keyword],
        ["tag", tag],
        ["status", status || "active"],
        ["sort_key", sort],
        ["sort_direction", sort === "name" ? "asc" : ""],
      ])
        if (value) asked.set(name, value);
      const page = await ask("GET", `${API}/workflows?${asked}`, undefined, { signal });
      const ids = page.workflows.map((one) => one.workflow_id).join(",");
      const { runs } = ids ? await ask("GET", `/workflows/runs?workflows=${ids}`, undefined, { signal }) : { runs: [] };
      return { ...page, runs: new Map(runs.map((run) => [run.workflow_id, run])) };
    },
    [keyword, tag, status, sort, offset],
  );
  useChanges(["workflows", "runs", "status"], all);
  const [open, setOpen] = useState(null);
  const set = (changes) => setQuery({ ...changes, offset: "" });
  const tags = [...new Set([...(all.data?.workflows ?? []).flatMap((one) => one.tags), ...(tag ? [tag] : [])])].sort();
  const isFiltered = keyword || tag || status;
  const start = html`<${Button} kind="primary" icon="plus" needs="editor" onClick=${() => setOpen("new")}>New workflow</${Button}>`;
  return html`<${Page} title="Workflows" wide=${true} intro="Steps that run models and call services, one after another or at the same time."
    actions=${html`<${Button} icon="upload" needs="editor" onClick=${() => setOpen("import")}>Import</${Button}>${start}`}>
    <div class="filters"><${Field} label="Search">${(field) => html`<input ...${field} type="search" value=${keyword} placeholder="A part of the name" onInput=${(event) => set({ q: event.currentTarget.value })} />`}</${Field}>
      <${Field} label="Tag">${(field) => html`<select ...${field} value=${tag} onChange=${(event) => set({ tag: event.currentTarget.value })}><option value="">Any</option>${tags.map((one) => html`<option value=${one}>${one}</option>`)}</select>`}</${Field}>
      <${Field} label="Status">${(field) => html`<select ...${field} value=${status} onChange=${(event) => set({ status: event.currentTarget.value })}><option value="">Active</option><option value="archived">Archived</option></select>`}</${Field}>
      <${Field} label="Order">${(field) => html`<select ...${field} value=${sort} onChange=${(event) => set({ sort: event.currentTarget.value })}>${SORTS.map(([value, word]) => html`<option value=${value}>${word}</option>`)}</select>`}</${Field}></div>
    <${Loaded} of=${all} empty=${(data) =>
      data.workflows.length || offset
        ? null
        : isFiltered
          ? html`<${Empty} icon="search" title="No matching workflows"><${Button} onClick=${() => go("/app/workflows")}>Show all</${Button}></${Empty}>`
          : html`<${Empty} icon="workflow" title="No workflows yet"><p>A workflow combines models: the output of one is the input of the next. Start with a template, or import a definition.</p><div class="actions center">${start}</div></${Empty}>`}>${(
      data,
    ) => html`
      <div class="card scroll"><table aria-busy=${all.loading}><thead><tr><th scope="col">Name</th><th scope="col">Version</th><th scope="col">Last run</th><th scope="col" class="number">Took</th><th scope="col" class="number">Cost</th><th scope="col" class="number">Runs</th></tr></thead>
      <tbody>${data.workflows.map((one) => html`<${Row} key=${one.workflow_id} of=${one} run=${data.runs.get(one.workflow_id)} onTag=${(tag) => set({ tag })} />`)}</tbody></table></div>
      <div class="actions">${offset ? html`<${Button} onClick=${() => setQuery({ offset: Math.max(0, offset - PAGE) || "" }, {})}>Previous</${Button}>` : null}
        ${offset + data.workflows.length < data.total_count ? html`<${Button} icon="chevron-right" onClick=${() => setQuery({ offset: offset + PAGE }, {})}>Next</${Button}>` : null}<span class="quiet">${count(data.total_count)} in all</span></div>`}</${Loaded}>
    ${open === "new" ? html`<${New} onClose=${() => setOpen(null)} />` : null}
    ${open === "import" ? html`<${Import} onClose=${() => setOpen(null)} />` : null}</${Page}>`;
}

function Row({ of, run, onTag }) {
  const path = `/app/workflows/${of.slug}`;
  return html`<tr class="opens" onClick=${(event) => {
    if (!event.target.closest("a, button") && !getSelection().toString()) go(path);
  }}>
    <th scope="row"><${Link} to=${path}><${Text}>${of.name}</${Text}></${Link}>${of.locked ? html` <span class="tag"><${Icon} name="lock" /> locked</span>` : null}
      ${of.tags.map((tag) => html` <button type="button" class="tag" key=${tag} onClick=${() => onTag(tag)} aria-label=${`Show workflows with the tag ${tag}`}><${Text}>${tag}</${Text}></button>`)}
      <div class="quiet note clamp"><${Text}>${of.description}</${Text}></div></th>
    <td data-label="Version"><code>${of.latest_version_id}</code></td>
    <td data-label="Last run"><span>${run ? html`<${Link} to=${`/app/runs/${run.execution_id}?type=workflow`}><${Status} of=${statusOf(run)} /></${Link}> <span class="quiet"><${Time} at=${run.created_at} /></span>` : html`<span class="quiet">never</span>`}</span></td>
    <td data-label="Took" class="number">${run && Number.isFinite(run.run_time) ? duration(run.run_time) : "–"}</td>
    <td data-label="Cost" class="number">${run ? money(run.cost) : "–"}</td><td data-label="Runs" class="number">${count(run?.total ?? 0)}</td></tr>`;
}

function New({ onClose }) {
  const [fields, setFields] = useState({ name: "", description: "", template: "text" });
  const [state, setState] = useState({ busy: false, error: null });
  const set = (change) => setFields((now) => ({ ...now, ...change }));
  const create = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      const template = TEMPLATES[fields.template];
      const made = await ask("POST", `${API}/workflows`, {
        name: fields.name,
        description: fields.description || template.description,
        definition: template.definition,
      });
      go(`/app/workflows/${made.slug}`);
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title="New workflow" onClose=${onClose}><form class="stack" onSubmit=${create}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Input} label="Name" first=${true} required maxlength="200" value=${fields.name} onValue=${(name) => set({ name })} />
    <${Input} label="What is it for?" optional=${true} maxlength="4000" value=${fields.description} onValue=${(description) => set({ description })} />
    <fieldset class="choices"><legend>Begin with</legend>${Object.entries(TEMPLATES).map(([name, one]) => html`<label class="tile" key=${name}><span class="box"><input type="radio" name="template" checked=${fields.template === name} onChange=${() => set({ template: name })} /> <strong>${one.title}</strong></span><span class="quiet">${one.description}</span></label>`)}</fieldset>
    <${Button} kind="primary" type="submit" busy=${state.busy}>Create the workflow</${Button}></form></${Dialog}>`;
}

// Imports exports from this dashboard, bare definitions, or drawings from the legacy editor.
function Import({ onClose }) {
  const [text, setText] = useState("");
  const [name, setName] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const read = text.trim() ? readImport(text) : null;
  const take = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      const body = { ...read.body, name: name || read.body.name };
      if (!body.name) throw new Refusal(400, "Give it a name");
      const made = await ask("POST", read.kind === "legacy" ? FLOWS : `${API}/workflows`, body);
      go(`/app/workflows/${made.slug ?? made.workflow_id}`);
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const load = async (file) => {
    if (file) setText(await file.text());
  };
  const drop = (event) => {
    if (event.dataTransfer?.files.length) {
      event.preventDefault();
      load(event.dataTransfer.files[0]);
    }
  };
  return html`<${Dialog} title="Import a workflow" onClose=${onClose}><form class="stack" onSubmit=${take} onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
    <p class="quiet">A file that was exported here, a definition, or a drawing of the older editor.</p>
    ${
      state.error
        ? html`<${Notice} kind="error">${sentence(state.error)}${Object.values(state.error.fields ?? {})
            .slice(1, 6)
            .map((one) => html`<p key=${one}><${Text}>${one}</${Text}></p>`)}</${Notice}>`
        : null
    }
    <${Field} label="File" optional=${true}>${(field) => html`<input ...${field} type="file" accept=".json,application/json" onChange=${(event) => load(event.currentTarget.files[0])} />`}</${Field}>
    <${Field} label="JSON" error=${read?.problem}>${(field) => html`<textarea ...${field} class="mono" rows="10" spellcheck=${false} value=${text} onInput=${(event) => setText(event.currentTarget.value)} />`}</${Field}>
    ${read?.kind ? html`<p class="quiet" role="status">${{ legacy: "A drawing of the older editor", whole: "A workflow", definition: "A definition" }[read.kind]} with ${count(read.steps)} ${read.steps === 1 ? "step" : "steps"}.</p>` : null}
    <${Input} label="Name" optional=${Boolean(read?.body?.name)} value=${name} placeholder=${read?.body?.name ?? ""} onValue=${setName} />
    <${Button} kind="primary" type="submit" busy=${state.busy} disabled=${!read?.kind}>Import</${Button}></form></${Dialog}>`;
}
