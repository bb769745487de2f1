// Fields of the editor: text fields that complete references, and fields for pairs of names and values.

import { html, useId, useMemo, useRef, useState } from "../vendor/preact.js";
import { Button, Field, Icon, IconButton } from "../core.js";
import { useForeign } from "../values.js";

// Maximum number of references offered.
const OFFERED_MAX = 12;
// The text between the braces before the caret.
const OPEN = /(?<!\\)\{\{\s*([^{}]*)$/;

// The text that a field shows for a value, and the value for a text.
export function textOf(value, isText) {
  if (value === undefined || value === null) return value === null && !isText ? "null" : "";
  if (typeof value !== "string") return JSON.stringify(value, null, typeof value === "object" ? 2 : 0);
  if (isText) return value;
  // Text that would otherwise be parsed as another type is kept in quotation marks.
  try {
    JSON.parse(value);
    return JSON.stringify(value);
  } catch {
    return value;
  }
}

export function valueOf(text, isText) {
  if (isText) return text;
  if (text.trim() === "") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Returns the references that contain the typed text, with the references that begin with the typed
// text first.
export function matching(offers, text) {
  const typed = text.toLowerCase();
  const fits = offers.filter((offer) => offer.text.toLowerCase().includes(typed) && offer.text !== text);
  return [
    ...fits.filter((offer) => offer.text.toLowerCase().startsWith(typed)),
    ...fits.filter((offer) => !offer.text.toLowerCase().startsWith(typed)),
  ].slice(0, OFFERED_MAX);
}

// A field for a value that may contain references: text, or any JSON if `isText` is not set.
export function Template({
  label,
  hint,
  error,
  optional = false,
  value,
  onValue,
  offers = [],
  rows = 1,
  isText = false,
  bare = false,
  ...rest
}) {
  const [text, setText] = useState(() => textOf(value, isText));
  const wrote = useForeign(value, (foreign) => setText(textOf(foreign, isText)));
  const set = (next) => {
    setText(next);
    const parsed = next === "" && optional ? undefined : valueOf(next, isText);
    wrote(parsed);
    onValue(parsed);
  };
  const inner = (field) =>
    html`<${Completed} ...${rest} field=${field} text=${text} onText=${set} offers=${offers} rows=${Math.max(rows, Math.min(12, text.split("\n").length))} />`;
  if (bare) return inner({ "aria-label": label, "aria-invalid": error ? "true" : undefined });
  return html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional}>${inner}</${Field}>`;
}

function Completed({ field, text, onText, offers, rows, ...rest }) {
  const input = useRef(null);
  const list = useId();
  const [state, setState] = useState(null);
  const shown = useMemo(() => (state ? matching(offers, state.typed) : []), [state, offers]);
  const look = (element) => {
    const before = element.value.slice(0, element.selectionStart);
    const open = OPEN.exec(before);
    setState(open ? { typed: open[1], from: before.length - open[1].length, to: element.selectionStart, at: 0 } : null);
  };
  const pick = (offer) => {
    const behind = text.slice(state.to);
    const closed = /^\s*\}\}/.exec(behind)?.[0] ?? "";
    const next = `${text.slice(0, state.from)}${offer.text}}}${behind.slice(closed.length)}`;
    const caret = state.from + offer.text.length + 2;
    onText(next);
    setState(null);
    requestAnimationFrame(() => {
      input.current?.focus();
      input.current?.setSelectionRange(caret, caret);
    });
  };
  const onKey = (event) => {
    if (!shown.length) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setState({ ...state, at: (state.at + step + shown.length) % shown.length });
    } else if (event.key === "Enter" || event.key === "Tab") {
      event.preventDefault();
      pick(shown[Math.min(state.at, shown.length - 1)]);
    } else if (event.key === "Escape") {
      event.stopPropagation();
      event.preventDefault();
      setState(null);
    }
  };
  const common = {
    ...field,
    ...rest,
    ref: input,
    value: text,
    spellcheck: false,
    autocomplete: "off",
    "aria-autocomplete": "list",
    "aria-controls": shown.length ? list : undefined,
    "aria-activedescendant": shown.length ? `${list}-${Math.min(state.at, shown.length - 1)}` : undefined,
    onInput: (event) => {
      onText(event.currentTarget.value);
      look(event.currentTarget);
    },
    onKeyDown: onKey,
    onClick: (event) => look(event.currentTarget),
    onBlur: () => setState(null),
  };
  return html`<div class="completed">${rows > 1 ? html`<textarea class="mono" rows=${rows} ...${common} />` : html`<input class="mono" ...${common} />`}
    ${
      shown.length
        ? html`<ul class="offers" role="listbox" id=${list} aria-label="References">${shown.map(
            (
              offer,
              at,
            ) => html`<li key=${offer.text} id=${`${list}-${at}`} role="option" aria-selected=${at === state.at ? "true" : "false"}
      onMouseDown=${(event) => {
        event.preventDefault();
        pick(offer);
      }}><code>${offer.text}</code><span class="quiet"><bdi>${offer.note}</bdi></span></li>`,
          )}</ul>`
        : null
    }</div>`;
}

// Names and their values, such as headers.
export function Pairs({ label, hint, error, value, onValue, offers, name = "name", isText = false }) {
  const pairs = Object.entries(value ?? {});
  const write = (next, said) => onValue(next.length ? Object.fromEntries(next) : undefined, said);
  const free = () => {
    let number = 1;
    while (`${name}-${number}` in (value ?? {})) number += 1;
    return `${name}-${number}`;
  };
  return html`<fieldset><legend>${label} <span class="quiet">(optional)</span></legend>${hint ? html`<p class="hint">${hint}</p>` : null}
    ${pairs.map(
      ([key, one], at) => html`<div class="pair" key=${at}>
      <input class="mono" aria-label=${`Name ${at + 1} of ${label}`} value=${key} onChange=${(event) => {
        const next = event.currentTarget.value;
        if (next && !(next in value)) write(pairs.map((pair, index) => (index === at ? [next, one] : pair)));
        else event.currentTarget.value = key;
      }} />
      <${Template} bare=${true} label=${`${key} of ${label}`} value=${one} isText=${isText} offers=${offers} onValue=${(next) => write(pairs.map((pair, index) => (index === at ? [key, next ?? ""] : pair)))} />
      <${IconButton} icon="x" label=${`Remove ${key}`} onClick=${() =>
        write(
          pairs.filter((_, index) => index !== at),
          `“${key}” is removed.`,
        )} /></div>`,
    )}
    ${error ? html`<p class="field-error"><${Icon} name="circle-alert" /><bdi>${error}</bdi></p>` : null}
    <div><${Button} icon="plus" onClick=${() => write([...pairs, [free(), ""]])}>Add</${Button}></div></fieldset>`;
}
