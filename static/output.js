// Displays outputs by type: images, audio, video, files, text, and everything else as a JSON tree. Outputs are never
// inserted as markup, and only http(s) URLs become links.

import { html, useEffect, useState } from "./vendor/preact.js";
import { Button, Copy, Icon, ask, bytes, count } from "./core.js";
import { BASE } from "./location.js";

// Number of characters of a text shown at first.
const TEXT_MAX = 20000;
// Number of members of an object or a list shown at first.
const SHOWN = 100;

const FILE = /\/v1\/files\/([0-9a-f-]{36})\/content(?:\?|$)/;
const IMAGE = /^data:image\/(png|jpeg|webp|gif|bmp|svg\+xml)[;,]/;

export function Output({ value, type }) {
  if (value === null || value === undefined) return html`<p class="quiet">There is no output.</p>`;
  if (typeof value === "string") return html`<${TextOrFile} text=${value} type=${type} />`;
  if (
    Array.isArray(value) &&
    value.length &&
    value.length <= 50 &&
    value.every((one) => typeof one === "string" && (FILE.test(one) || IMAGE.test(one)))
  ) {
    return html`<div class="gallery">${value.map((one, at) => html`<${TextOrFile} key=${at} text=${one} />`)}</div>`;
  }
  return html`<div class="json card pad"><${Tree} value=${value} open=${true} /></div><div class="actions"><${Copy} text=${JSON.stringify(value, null, 2)} label="Copy as JSON" /></div>`;
}

function TextOrFile({ text }) {
  const file = FILE.exec(text);
  if (file && /^https?:\/\//.test(text)) return html`<${OwnFile} id=${file[1]} />`;
  if (IMAGE.test(text)) return html`<figure class="media"><img src=${text} alt="The output, an image" /></figure>`;
  if (/^https?:\/\/\S+$/.test(text) && text.length < 4000) {
    return html`<p><a href=${text} target="_blank" rel="noopener noreferrer">${text} <${Icon} name="external-link" label="opens in a new tab" /></a></p>`;
  }
  return html`<${LongText} text=${text} />`;
}

export function LongText({ text }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole || text.length <= TEXT_MAX ? text : text.slice(0, TEXT_MAX);
  return html`<pre class="code wrap" tabindex="0"><bdi>${shown}</bdi></pre>
    <div class="actions"><${Copy} text=${text} />${
      shown.length < text.length
        ? html`<${Button} onClick=${() => setWhole(true)}>Show all ${count(text.length)} characters</${Button}>`
        : null
    }</div>`;
}

// One of the organization's files, read through the dashboard with the member's session.
export function OwnFile({ id }) {
  const [file, setFile] = useState(null);
  const [isMissing, setMissing] = useState(false);
  useEffect(() => {
    const abort = new AbortController();
    ask("GET", `/api/base/v1/files/${id}`, undefined, { signal: abort.signal }).then(
      setFile,
      () => abort.signal.aborted || setMissing(true),
    );
    return () => abort.abort();
  }, [id]);
  if (isMissing) return html`<p class="quiet">The file no longer exists.</p>`;
  if (!file) return html`<p class="loading">Loading…</p>`;
  return html`<${Preview} file=${file} />`;
}

export function Preview({ file }) {
  const url = `${BASE}/api/base/v1/files/${file.id}/content`;
  const [kind] = file.content_type.split("/");
  const name = file.filename ?? `${file.content_type} file`;
  const shown =
    kind === "image" && file.content_type !== "image/svg+xml"
      ? html`<img src=${url} alt=${name} loading="lazy" />`
      : kind === "audio"
        ? html`<audio controls src=${url} aria-label=${name} />`
        : kind === "video"
          ? html`<video controls src=${url} aria-label=${name} />`
          : html`<${Icon} name="file" />`;
  return html`<figure class="media">${shown}<figcaption><span><bdi>${name}</bdi> <span class="quiet">${bytes(file.size)}</span></span>
    <a class="button plain" href=${url} download=${file.filename ?? ""}><${Icon} name="download" /><span>Download</span></a></figcaption></figure>`;
}

// A JSON tree with collapsible nodes.
export function Tree({ name, value, open = false, depth = 0 }) {
  const [isOpen, setOpen] = useState(open);
  const [most, setMost] = useState(SHOWN);
  const label = name === undefined ? null : html`<span class="key"><bdi>${name}</bdi>: </span>`;
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    const text = kind === "string" ? JSON.stringify(value) : String(value);
    return html`<div class="leaf">${label}<span class=${kind}><bdi>${text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}… (${count(text.length)} characters)` : text}</bdi></span></div>`;
  }
  const parts = Object.entries(value);
  const word = Array.isArray(value)
    ? `list of ${count(parts.length)}`
    : `${count(parts.length)} ${parts.length === 1 ? "field" : "fields"}`;
  if (!parts.length) return html`<div class="leaf">${label}<span class="quiet">${Array.isArray(value) ? "[]" : "{}"}</span></div>`;
  return html`<div class="branch"><button type="button" class="twist" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      <${Icon} name=${isOpen ? "chevron-down" : "chevron-right"} />${label}<span class="quiet">${word}</span></button>
    ${
      isOpen
        ? html`<div class="inner">${parts.slice(0, most).map(([key, part]) => html`<${Tree} key=${key} name=${key} value=${part} open=${depth < 1 && parts.length <= 20} depth=${depth + 1} />`)}
      ${parts.length > most ? html`<${Button} onClick=${() => setMost(most + 10 * SHOWN)}>Show more of ${count(parts.length)}</${Button}>` : null}</div>`
        : null
    }</div>`;
}
