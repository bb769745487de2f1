// The versions of a workflow: their content, the differences between two versions, locking and sharing.

import { html, useMemo, useState } from "../vendor/preact.js";
import { Button, Confirm, Copy, Dialog, Field, Icon, Link, Loaded, Notice, Text, Time, count, session, useLoad } from "../core.js";
import { place, setQuery } from "../location.js";
import { differences } from "./flow.js";
import { loadVersion, putVersion } from "./service.js";

// Number of context lines around a difference.
const AROUND = 3;

export function VersionsTab({ workflow, version, onChange }) {
  const [acting, setActing] = useState(null);
  const all = [...workflow.versions].reverse();
  const base = session.value.hosts?.find((host) => host.role === "base")?.url ?? "";
  const other = place.value.query.get("with") ?? all.find((one) => one.version_id !== version.version_id)?.version_id ?? "";
  // Saves a version again with its own definition, so that only its metadata changes.
  const put = async (id, fields) => {
    const held = await loadVersion(workflow.workflow_id, id);
    const { locked, production, allowed_to_share, definition } = held;
    await putVersion(workflow.workflow_id, id, { locked, production, allowed_to_share, definition, ...fields }, held.tag);
    onChange();
  };
  return html`<div class="card scroll"><table><thead><tr><th scope="col">Version</th><th scope="col">Changed</th><th scope="col" class="number">Runs</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${all.map(
      (
        one,
      ) => html`<tr key=${one.version_id}><th scope="row"><${Link} to=${`${place.value.path}?v=${encodeURIComponent(one.version_id)}`}>${one.version_id}</${Link}>
        ${one.version_id === workflow.latest_version_id ? html` <span class="tag">latest</span>` : null}${one.locked ? html` <span class="tag"><${Icon} name="lock" /> locked</span>` : null}${one.allowed_to_share ? html` <span class="tag"><${Icon} name="share-2" /> shared</span>` : null}</th>
      <td data-label="Changed"><${Time} at=${one.updated_at} /></td><td data-label="Runs" class="number">${count(one.trigger_count)}</td>
      <td class="end"><span class="actions end">${one.allowed_to_share ? html`<${Button} icon="link" onClick=${() => setActing({ what: "link", one })}>Address</${Button}>` : null}
        ${
          one.locked || workflow.locked
            ? null
            : html`<${Button} icon="share-2" needs="editor" onClick=${() => setActing({ what: one.allowed_to_share ? "unshare" : "share", one })}>${one.allowed_to_share ? "Stop sharing" : "Share"}</${Button}>
        <${Button} icon="lock" needs="editor" onClick=${() => setActing({ what: "lock", one })}>Lock</${Button}>`
        }</span></td></tr>`,
    )}</tbody></table></div>
    <p class="hint">Saving a version again makes it the latest, and so does sharing or locking it.</p>
    ${
      all.length > 1
        ? html`<section><h2>Differences</h2><div class="filters"><${Field} label=${`${version.version_id} with`}>${(field) => html`<select ...${field} value=${other} onChange=${(event) => setQuery({ with: event.currentTarget.value })}>${all.filter((one) => one.version_id !== version.version_id).map((one) => html`<option value=${one.version_id}>${one.version_id}</option>`)}</select>`}</${Field}></div>
      <${Between} id=${workflow.workflow_id} other=${other} version=${version} /></section>`
        : html`<p class="quiet">There is one version. When there are more, their differences appear here.</p>`
    }
    ${acting?.what === "lock" ? html`<${Confirm} title=${`Lock ${acting.one.version_id}?`} action="Lock it permanently" onDo=${() => put(acting.one.version_id, { locked: true })} onClose=${() => setActing(null)}><p>A locked version never changes again, and cannot be unlocked. Later changes make new versions.</p></${Confirm}>` : null}
    ${acting?.what === "share" ? html`<${Confirm} title=${`Share ${acting.one.version_id}?`} action="Share it" onDo=${() => put(acting.one.version_id, { allowed_to_share: true })} onClose=${() => setActing(null)}><p>Every holder of an API key of this service, of other organizations too, may run it, and pays for it. They can see the outputs of its steps.</p></${Confirm}>` : null}
    ${acting?.what === "unshare" ? html`<${Confirm} title=${`Stop sharing ${acting.one.version_id}?`} action="Stop sharing" onDo=${() => put(acting.one.version_id, { allowed_to_share: false })} onClose=${() => setActing(null)}><p>Others can no longer start it.</p></${Confirm}>` : null}
    ${acting?.what === "link" ? html`<${Shared} url=${`${base}/v1/public/${workflow.workflow_id}/versions/${acting.one.version_id}/trigger`} onClose=${() => setActing(null)} />` : null}`;
}

function Shared({ url, onClose }) {
  const command = `curl -s ${url} \\\n  -d '{"api_key": "smk_…", "inputs": {}}'`;
  return html`<${Dialog} title="For others" onClose=${onClose}><div class="stack"><p>Others run it with a key of their own:</p><pre class="code" tabindex="0"><code>${command}</code></pre><div class="actions"><${Copy} text=${command} /></div></div></${Dialog}>`;
}

function Between({ id, other, version }) {
  const found = useLoad((signal) => loadVersion(id, other, signal), [id, other]);
  return html`<${Loaded} of=${found}>${(before) => html`<${Compared} before=${before.definition} after=${version.definition} beforeName=${before.version_id} afterName=${version.version_id} />`}</${Loaded}>`;
}

// Compares two definitions line by line: lines only in the first, lines only in the second, and context.
export function Compared({ before, after, beforeName, afterName }) {
  const [isWhole, setWhole] = useState(false);
  const lines = useMemo(() => differences(JSON.stringify(before, null, 2), JSON.stringify(after, null, 2)), [before, after]);
  const near = useMemo(() => {
    const shown = new Set();
    lines.forEach((line, at) => {
      if (line.kind !== "same") for (let i = at - AROUND; i <= at + AROUND; i += 1) shown.add(i);
    });
    return shown;
  }, [lines]);
  const [out, into] = ["out", "in"].map((kind) => lines.filter((line) => line.kind === kind).length);
  if (!out && !into) return html`<${Notice} kind="good">They are the same.</${Notice}>`;
  const rows = [];
  lines.forEach((line, at) => {
    if (isWhole || near.has(at))
      rows.push(
        html`<div key=${at} class=${`line ${line.kind}`}><span class="sign">${{ out: "−", in: "+", same: " " }[line.kind]}</span><bdi>${line.text}</bdi></div>`,
      );
    else if (near.has(at - 1) || at === 0) rows.push(html`<div key=${at} class="line omitted">⋯</div>`);
  });
  return html`<div class="compared"><p class="legend-row"><span class="line out"><span class="sign">−</span><${Text}>${beforeName}</${Text}>, ${count(out)}</span><span class="line in"><span class="sign">+</span><${Text}>${afterName}</${Text}>, ${count(into)}</span></p>
    <div class="code lines" tabindex="0" role="group" aria-label="Differences">${rows}</div>
    ${rows.length < lines.length && !isWhole ? html`<p><${Button} onClick=${() => setWhole(true)}>Show all ${count(lines.length)} lines</${Button}></p>` : null}</div>`;
}
