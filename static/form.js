// The form for a JSON Schema: a field for each part, and a JSON field for parts that no other field supports. The form
// has no state apart from the value: every change creates a new value, and keeps the parts of the value that the form
// does not show.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { Button, Field, Icon, IconButton, Notice, ask, bytes, sentence } from "./core.js";
import { MOMENTS, couldBe, initial, isNullable, kindOf, propertiesOf, resolve } from "./schema.js";
import { useAlternatives, useForeign } from "./values.js";

// Number of fields shown at first; further optional fields can be expanded.
const SHOWN_MAX = 40;

export function SchemaForm({ schema, value, onValue, errors = {} }) {
  const root = schema;
  const part = resolve(schema, root);
  if (kindOf(part, 0) !== "object") {
    return html`<${Part} schema=${part} root=${root} value=${value} onValue=${onValue} label="Input" path="" errors=${errors} depth=${0} required=${true} />`;
  }
  return html`<${Properties} schema=${part} root=${root} value=${value ?? {}} onValue=${onValue} path="" errors=${errors} depth=${0} />`;
}

// `binds`: whether the object must be present, so that its required fields are required.
function Properties({ schema, root, value, onValue, path, errors, depth, binds = true }) {
  const [showsAll, setShowsAll] = useState(false);
  const required = Array.isArray(schema.required) ? schema.required : [];
  const all = propertiesOf(schema);
  const known = new Set(all.map(([name]) => name));
  const others = Object.keys(value).filter((name) => !known.has(name));
  const first =
    all.length > SHOWN_MAX && !showsAll ? all.filter(([name], at) => required.includes(name) || name in value || at < SHOWN_MAX / 2) : all;
  const set = (name, part) => {
    const next = { ...value };
    if (part === undefined) delete next[name];
    else next[name] = part;
    onValue(next);
  };
  return html`<div class="stack">${first.map(
    ([name, part]) => html`<${Part} key=${name} schema=${resolve(part, root)} root=${root}
      value=${value[name]} onValue=${(next) => set(name, next)} label=${resolve(part, root)?.title ?? name} name=${name}
      path=${path ? `${path}/${name}` : name} errors=${errors} depth=${depth + 1} required=${binds && required.includes(name)} />`,
  )}
    ${first.length < all.length ? html`<div><${Button} icon="chevron-down" onClick=${() => setShowsAll(true)}>Show ${all.length - first.length} more fields</${Button}></div>` : null}
    ${others.length ? html`<p class="hint">The JSON tab also has: ${others.join(", ")}</p>` : null}</div>`;
}

function Part(props) {
  const { schema, depth, path, errors, required } = props;
  const error = errors[path];
  const hint = typeof schema?.description === "string" ? schema.description : undefined;
  const common = { ...props, error, hint, optional: !required };
  switch (kindOf(schema, depth)) {
    case "const":
      return html`<div class="field"><span class="label">${props.label}</span><code>${JSON.stringify(schema.const)}</code></div>`;
    case "enum":
      return html`<${OneOf} ...${common} />`;
    case "boolean":
      return html`<${Yes} ...${common} />`;
    case "integer":
    case "number":
      return html`<${Figure} ...${common} />`;
    case "text":
      return html`<${Words} ...${common} />`;
    case "choice":
      return html`<${Choice} ...${common} />`;
    case "list":
      return html`<${Items} ...${common} />`;
    case "object":
      return html`<${Group} ...${common} />`;
    default:
      return html`<${Json} ...${common} />`;
  }
}

function OneOf({ schema, value, onValue, label, hint, error, optional, required, name }) {
  const at = schema.enum.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
  return html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional}>${(field) => html`
    <select ...${field} name=${name} required=${required} value=${String(at)} onChange=${(event) => onValue(event.currentTarget.value === "-1" ? undefined : schema.enum[Number(event.currentTarget.value)])}>
      ${at < 0 || optional ? html`<option value="-1">${optional ? "As the model decides" : "Please choose"}</option>` : null}
      ${schema.enum.map((one, index) => html`<option value=${String(index)}>${typeof one === "string" ? one : JSON.stringify(one)}</option>`)}</select>`}</${Field}>`;
}

function Yes({ value, onValue, label, hint, error, name }) {
  return html`<div class=${`field ${error ? "wrong" : ""}`}><label class="box"><input type="checkbox" name=${name} checked=${value === true} indeterminate=${value === undefined} class=${value === undefined ? "unset" : ""} onChange=${(event) => onValue(event.currentTarget.checked)} /><span>${label}</span></label>
    ${hint ? html`<p class="hint">${hint}</p>` : null}${error ? html`<p class="field-error"><${Icon} name="circle-alert" />${error}</p>` : null}</div>`;
}

function Figure({ schema, value, onValue, label, hint, error, optional, required, name }) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  const isWhole = schema.type === "integer" || (Array.isArray(schema.type) && schema.type.includes("integer"));
  const step = schema.multipleOf ?? (isWhole ? 1 : "any");
  const span = Number.isFinite(low) && Number.isFinite(high) ? high - low : null;
  const slides = span !== null && span > 0 && (isWhole ? span <= 1000 : span <= 100);
  const read = (event) => {
    const { value: text } = event.currentTarget;
    onValue(text === "" ? undefined : Number(text));
  };
  const bounds = [Number.isFinite(low) ? `at least ${low}` : null, Number.isFinite(high) ? `at most ${high}` : null]
    .filter(Boolean)
    .join(", ");
  return html`<${Field} label=${label} hint=${[hint, bounds && !slides ? `${bounds.charAt(0).toUpperCase()}${bounds.slice(1)}.` : null].filter(Boolean).join(" ") || undefined} error=${error} optional=${optional}>${(
    field,
  ) => html`
    <div class="figure">${slides ? html`<input type="range" aria-label=${`${label}, slider`} min=${low} max=${high} step=${isWhole ? step : (schema.multipleOf ?? span / 100)} class=${value === undefined ? "unset" : ""} aria-valuetext=${value === undefined ? "not set" : undefined} value=${value ?? low + span / 2} onInput=${read} />` : null}
    <input ...${field} type="number" name=${name} required=${required} min=${schema.minimum} max=${schema.maximum} step=${step} value=${value ?? ""} onInput=${read} /></div>`}</${Field}>`;
}

// String formats that are URLs; a file can be uploaded instead of typing one.
const isAddress = (schema) => ["uri", "url", "iri", "uri-reference"].includes(schema.format) || typeof schema.contentMediaType === "string";

function Words({ schema, value, onValue, label, hint, error, optional, required, name }) {
  const isLine =
    isAddress(schema) ||
    Boolean(schema.format) ||
    Boolean(schema.pattern) ||
    (Number.isFinite(schema.maxLength) && schema.maxLength <= 200);
  const isWrongType = value !== undefined && value !== null && typeof value !== "string";
  const set = (text) => onValue(text === "" && (optional || !schema.minLength) ? (optional ? undefined : "") : text);
  const type = { email: "email", password: "password" }[schema.format] ?? "text";
  const shown = isWrongType ? JSON.stringify(value) : (value ?? "");
  const moment = MOMENTS[schema.format];
  const local = moment && (shown === "" ? "" : moment.shown(shown));
  if (local !== undefined) {
    const choose = (text) => onValue(text === "" ? (optional ? undefined : "") : moment.text(text, shown));
    return html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional}>${(field) => html`<input ...${field} ...${moment.input} name=${name} required=${required} value=${local} onInput=${(event) => choose(event.currentTarget.value)} />`}</${Field}>`;
  }
  return html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional}>${(field) =>
    isLine
      ? html`<div class="upload"><input ...${field} type=${type} name=${name} required=${required} maxlength=${schema.maxLength} value=${shown} placeholder=${isNullable(schema) ? "empty" : undefined}
        onInput=${(event) => set(event.currentTarget.value)} />${schema.format === "color" ? html`<input type="color" class=${`swatch-field ${shown === "" ? "unset" : ""}`} aria-label=${`${label}, picker`} value=${/^#[0-9a-f]{6}$/i.test(shown) ? shown : "#808080"} onInput=${(event) => set(event.currentTarget.value)} />` : null}${isAddress(schema) ? html`<${Upload} label=${label} onFile=${(url) => onValue(url)} />` : null}</div>`
      : html`<textarea ...${field} name=${name} required=${required} maxlength=${schema.maxLength} rows="3" value=${shown} onInput=${(event) => set(event.currentTarget.value)} />`}</${Field}>`;
}

// Uploads a file that is chosen, dropped or pasted; returns its URL.
function Upload({ label, onFile }) {
  const input = useRef(null);
  const [state, setState] = useState({ busy: false, error: null, name: null });
  const take = async (file) => {
    if (!file) return;
    setState({ busy: true, error: null, name: file.name });
    try {
      const form = new FormData();
      form.append("file", file, file.name || "pasted");
      const made = await ask("POST", "/api/base/v1/files", form);
      onFile(made.url);
      setState({ busy: false, error: null, name: `${file.name || "Pasted file"}, ${bytes(file.size)}` });
    } catch (error) {
      setState({ busy: false, error, name: null });
    }
  };
  useEffect(() => {
    const zone = input.current.closest(".field");
    const over = (event) => {
      if ([...(event.dataTransfer?.types ?? [])].includes("Files")) {
        event.preventDefault();
        zone.classList.add("over");
      }
    };
    const leave = () => zone.classList.remove("over");
    const drop = (event) => {
      leave();
      if (event.dataTransfer?.files.length) {
        event.preventDefault();
        take(event.dataTransfer.files[0]);
      }
    };
    const paste = (event) => {
      if (event.clipboardData?.files.length) {
        event.preventDefault();
        take(event.clipboardData.files[0]);
      }
    };
    const all = [
      ["dragover", over],
      ["dragleave", leave],
      ["drop", drop],
      ["paste", paste],
    ];
    for (const [name, act] of all) zone.addEventListener(name, act);
    return () => {
      for (const [name, act] of all) zone.removeEventListener(name, act);
    };
  }, []);
  return html`<input type="file" class="hidden" tabindex="-1" aria-label=${`File for ${label}`} ref=${input} onChange=${(event) => take(event.currentTarget.files[0])} />
    <${Button} icon="upload" busy=${state.busy} onClick=${() => input.current.click()}>Upload</${Button}>
    <span class="hint" role="status">${state.busy ? "Uploading…" : (state.name ?? "Or drop or paste a file here.")}</span>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}`;
}

// One of several alternatives, chosen by the user. The choice never changes while the user is
// typing.
function Choice({ schema, root, value, onValue, label, hint, error, optional, path, errors, depth }) {
  const all = schema.oneOf ?? schema.anyOf;
  const [at, setAt] = useState(() =>
    Math.max(
      value === undefined ? -1 : 0,
      all.findIndex((one) => value !== undefined && couldBe(value, one, root)),
    ),
  );
  const word = (one, index) => {
    const part = resolve(one, root);
    return (
      part?.title ??
      (part && "const" in part
        ? JSON.stringify(part.const)
        : part?.type === "null"
          ? "Empty"
          : part?.type
            ? `${part.type}`
            : `Form ${index + 1}`)
    );
  };
  const leave = useAlternatives();
  const choose = (index) => {
    setAt(index);
    const part = resolve(all[index], root);
    onValue(leave(at, value, index, index < 0 ? undefined : part?.type === "null" ? null : initial(part, root, 1)));
  };
  const chosen = at >= 0 ? resolve(all[at], root) : null;
  return html`<fieldset><legend>${label}${optional ? html` <span class="quiet">(optional)</span>` : null}</legend>${hint ? html`<p class="hint">${hint}</p>` : null}
    <${Field} label="Form" error=${error}>${(
      field,
    ) => html`<select ...${field} value=${String(at)} onChange=${(event) => choose(Number(event.currentTarget.value))}>
      <option value="-1">${optional ? "None" : "Please choose"}</option>${all.map((one, index) => html`<option value=${String(index)}>${word(one, index)}</option>`)}</select>`}</${Field}>
    ${chosen && chosen.type !== "null" && !("const" in chosen) ? html`<${Part} key=${at} schema=${chosen} root=${root} value=${value} onValue=${onValue} label=${word(chosen, at)} path=${path} errors=${errors} depth=${depth + 1} required=${true} />` : null}</fieldset>`;
}

function Items({ schema, root, value, onValue, label, hint, error, optional, path, errors, depth }) {
  if (value !== undefined && !Array.isArray(value)) return html`<${Json} ...${{ value, onValue, label, hint, error, optional }} />`;
  const items = value ?? [];
  const part = resolve(schema.items, root);
  const set = (at, next) => onValue(items.map((one, index) => (index === at ? (next ?? null) : one)));
  const remove = (at) => {
    const next = items.filter((_, index) => index !== at);
    onValue(next.length || !optional ? next : undefined);
  };
  const empty = { text: "", boolean: false, list: [], object: {} }[kindOf(part, depth + 1)];
  return html`<fieldset><legend>${label}${optional ? html` <span class="quiet">(optional)</span>` : null}</legend>${hint ? html`<p class="hint">${hint}</p>` : null}
    ${items.map(
      (
        one,
        at,
      ) => html`<div class="item" key=${at}><${Part} schema=${part} root=${root} value=${one === null ? undefined : one} onValue=${(next) => set(at, next)} label=${`${part?.title ?? "Item"} ${at + 1}`} path=${`${path}/${at}`} errors=${errors} depth=${depth + 1} required=${true} />
      <${IconButton} icon="x" label=${`Remove item ${at + 1} of ${label}`} onClick=${() => remove(at)} /></div>`,
    )}
    ${error ? html`<p class="field-error"><${Icon} name="circle-alert" />${error}</p>` : null}
    <div><${Button} icon="plus" disabled=${Number.isFinite(schema.maxItems) && items.length >= schema.maxItems} onClick=${() => onValue([...items, initial(part, root, depth + 1) ?? empty ?? null])}>Add</${Button}></div></fieldset>`;
}

function Group({ schema, root, value, onValue, label, hint, error, optional, path, errors, depth }) {
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  if (value !== undefined && !isObject) return html`<${Json} ...${{ value, onValue, label, hint, error, optional }} />`;
  const change = (next) => onValue(optional && !Object.keys(next).length ? undefined : next);
  return html`<fieldset><legend>${label}${optional ? html` <span class="quiet">(optional)</span>` : null}</legend>${hint ? html`<p class="hint">${hint}</p>` : null}
    ${error ? html`<p class="field-error"><${Icon} name="circle-alert" />${error}</p>` : null}
    <${Properties} schema=${schema} root=${root} value=${value ?? {}} onValue=${change} path=${path} errors=${errors} depth=${depth} binds=${!optional || value !== undefined} /></fieldset>`;
}

// A JSON text field. The value changes only when the text is valid JSON; invalid text stays as typed.
export function Json({ value, onValue, label, hint, error, optional, rows = 4, onValid }) {
  const format = (of) => (of === undefined ? "" : JSON.stringify(of, null, 2));
  const [text, setText] = useState(() => format(value));
  const [problem, setProblem] = useState(null);
  const wrote = useForeign(value, (foreign) => {
    setText(format(foreign));
    setProblem(null);
    onValid?.(true);
  });
  const read = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    try {
      const parsed = next.trim() === "" ? undefined : JSON.parse(next);
      wrote(parsed);
      setProblem(null);
      onValid?.(true);
      onValue(parsed);
    } catch (fault) {
      setProblem(`This is not JSON yet: ${fault.message}`);
      onValid?.(false);
    }
  };
  return html`<${Field} label=${label} hint=${hint ?? "JSON"} error=${problem ?? error} optional=${optional}>${(field) => html`
    <textarea ...${field} class="mono" rows=${rows} spellcheck=${false} value=${text} onInput=${read} />`}</${Field}>`;
}
