// Fallback chains: the models to try, in order, when another one fails. Reorder by dragging or with the arrow keys.

import { html, useRef, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Dialog,
  Empty,
  Field,
  Icon,
  IconButton,
  Input,
  Link,
  Loaded,
  Notice,
  Page,
  Text,
  Time,
  ask,
  may,
  sentence,
  useLoad,
} from "../core.js";
import { Json } from "../form.js";
import { allModels } from "../workflows/service.js";

const ENTRIES_MAX = 10;

export function List() {
  const all = useLoad(async (signal) => {
    const [{ chains }, models] = await Promise.all([ask("GET", "/chains", undefined, { signal }), allModels()]);
    return { chains, models };
  }, []);
  const [open, setOpen] = useState(null);
  const start = html`<${Button} kind="primary" icon="plus" needs="editor" onClick=${() => setOpen({ model: "", name: "default", entries: [{ model: "" }], isNew: true })}>New chain</${Button}>`;
  return html`<${Page} title="Fallback chains" intro="When a model fails, the models of its chain are tried in order. Changes apply to new runs." actions=${start}>
    <${Loaded} of=${all} empty=${(data) => (data.chains.length ? null : html`<${Empty} icon="layers" title="No chains yet"><p>A chain keeps your service working when a provider fails: choose a model, and the models to try instead.</p><div class="actions center">${start}</div></${Empty}>`)}>${(
      data,
    ) => html`
      <div class="stack">${data.chains.map((chain) => html`<${Chain} key=${`${chain.model}/${chain.name}`} chain=${chain} models=${data.models} onEdit=${() => setOpen(chain)} onChange=${all.reload} />`)}</div>`}</${Loaded}>
    ${
      open
        ? html`<${Edit} chain=${open} models=${all.data.models} onClose=${() => setOpen(null)} onDone=${() => {
            setOpen(null);
            all.reload();
          }} />`
        : null
    }</${Page}>`;
}

export const Detail = List;

function Chain({ chain, onEdit, onChange }) {
  const [state, setState] = useState(
    /** @type {{ busy: any, error: any, deleting?: boolean }} */ ({ busy: null, error: null, deleting: false }),
  );
  const [entries, setEntries] = useState(chain.entries);
  const change = async (busy, fields) => {
    setState({ busy, error: null });
    try {
      await ask("PUT", "/chains", { model: chain.model, name: chain.name, ...fields });
      setState({ busy: null, error: null });
      onChange();
    } catch (error) {
      setEntries(chain.entries);
      setState({ busy: null, error });
    }
  };
  const reorder = (next) => {
    setEntries(next);
    change("order", { entries: next });
  };
  return html`<article class="card pad stack"><header class="step-head"><h2><${Link} to=${`/app/models/${chain.model}`}><${Text}>${chain.model}</${Text}></${Link}> <span class="tag"><${Text}>${chain.name}</${Text}></span>${chain.enabled ? null : html` <span class="tag">switched off</span>`}</h2>
      <div class="actions"><${Button} icon="pencil" needs="editor" onClick=${onEdit}>Change</${Button}><${Button} needs="editor" busy=${state.busy === "enabled"} onClick=${() => change("enabled", { enabled: !chain.enabled })}>${chain.enabled ? "Switch off" : "Switch on"}</${Button}
        ><${IconButton} icon="trash-2" needs="editor" label=${`Delete the chain ${chain.name} of ${chain.model}`} onClick=${() => setState({ ...state, deleting: true })} /></div></header>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Order} label=${`Order of the chain ${chain.name} of ${chain.model}`} entries=${entries} onEntries=${reorder} />
    <p class="quiet note">A run selects it with <code>"fallback_selector": "${chain.name}"</code>. Changed <${Time} at=${chain.updated_at} />.</p>
    ${
      state.deleting
        ? html`<${Confirm} title="Delete this chain?" action="Delete the chain" onClose=${() => setState({ ...state, deleting: false })} onDo=${async () => {
            await ask("DELETE", `/chains?model=${encodeURIComponent(chain.model)}&name=${encodeURIComponent(chain.name)}`);
            onChange();
          }}><p>New runs that name it are rejected. Runs that have begun keep it.</p></${Confirm}>`
        : null
    }</article>`;
}

// An ordered list of models, which can be dragged with the mouse, or moved with the arrow keys and buttons.
function Order({ entries, onEntries, label, children }) {
  const [dragged, setDragged] = useState(null);
  const [over, setOver] = useState(null);
  const [said, setSaid] = useState("");
  const list = useRef(null);
  const move = (from, to) => {
    if (to < 0 || to >= entries.length || from === to) return;
    const next = [...entries];
    const [one] = next.splice(from, 1);
    next.splice(to, 0, one);
    onEntries(next);
    setSaid(`${one.model} is now number ${to + 1} of ${entries.length}`);
    setTimeout(() => list.current?.querySelectorAll(".grip")[to]?.focus(), 0);
  };
  const onKey = (at) => (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (by) {
      event.preventDefault();
      move(at, at + by);
    }
  };
  return html`<ol class="order" aria-label=${label} ref=${list}>${entries.map(
    (entry, at) => html`<li key=${at} class=${over === at ? "over" : ""} draggable=${true}
      onDragStart=${(event) => {
        event.dataTransfer.effectAllowed = "move";
        event.dataTransfer.setData("text/plain", entry.model);
        setDragged(at);
      }} onDragEnd=${() => {
        setDragged(null);
        setOver(null);
      }}
      onDragOver=${(event) => {
        if (dragged !== null) {
          event.preventDefault();
          setOver(at);
        }
      }} onDrop=${(event) => {
        event.preventDefault();
        if (dragged !== null) move(dragged, at);
        setDragged(null);
        setOver(null);
      }}>
      ${may("editor") ? html`<button type="button" class="icon-button grip" aria-label=${`Move ${entry.model || "this model"}, number ${at + 1}`} title="Drag, or use the arrow keys" onKeyDown=${onKey(at)}><${Icon} name="grip-vertical" /></button>` : null}
      ${children ? children(entry, at) : html`<span class="number-mark">${at + 1}</span><${Link} to=${`/app/models/${entry.model}`}><${Text}>${entry.model}</${Text}></${Link}>${entry.input_map ? html`<span class="quiet">with its own input</span>` : null}`}
      <span class="tools"><${IconButton} icon="arrow-up" needs="editor" label=${`Move ${entry.model} up`} disabled=${at === 0} onClick=${() => move(at, at - 1)} /><${IconButton} icon="arrow-down" needs="editor" label=${`Move ${entry.model} down`} disabled=${at === entries.length - 1} onClick=${() => move(at, at + 1)} /></span></li>`,
  )}</ol>
    <span class="hidden" role="status">${said}</span>`;
}

function Edit({ chain, models, onClose, onDone }) {
  const [fields, setFields] = useState({ model: chain.model, name: chain.name, entries: chain.entries });
  const [state, setState] = useState({ busy: false, error: null });
  const [isValid, setValid] = useState(true);
  const set = (change) => setFields((now) => ({ ...now, ...change }));
  const entry = (at, next) => set({ entries: fields.entries.map((one, index) => (index === at ? next : one)) });
  const save = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await ask(chain.isNew ? "POST" : "PUT", "/chains", fields);
      onDone();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const choice = (label, value, onValue, without) =>
    html`<select aria-label=${label} required value=${value} onChange=${(event) => onValue(event.currentTarget.value)}><option value="">Please choose</option>${models.filter((one) => one.slug !== without).map((one) => html`<option value=${one.slug}>${one.slug}</option>`)}</select>`;
  return html`<${Dialog} title=${chain.isNew ? "New chain" : `The chain ${chain.name} of ${chain.model}`} onClose=${onClose}><form class="stack" onSubmit=${save}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    ${
      chain.isNew
        ? html`<div class="pairs-2"><${Field} label="When this model fails">${(field) => html`<select ...${field} data-first="" required value=${fields.model} onChange=${(event) => set({ model: event.currentTarget.value })}><option value="">Please choose</option>${models.map((one) => html`<option value=${one.slug}>${one.slug}</option>`)}</select>`}</${Field}>
      <${Input} label="Name" required maxlength="50" pattern="[a-z0-9\\-]+" hint="a-z, 0-9 and -" value=${fields.name} onValue=${(name) => set({ name })} /></div>`
        : null
    }
    <fieldset><legend>Try these instead, in this order</legend>
      <${Order} label="Order" entries=${fields.entries} onEntries=${(entries) => set({ entries })}>${(
        one,
        at,
      ) => html`<div class="entry"><div class="item">${choice(`Model ${at + 1}`, one.model, (model) => entry(at, { ...one, model }), fields.model)}<${IconButton} icon="x" label=${`Remove model ${at + 1}`} disabled=${fields.entries.length < 2} onClick=${() => set({ entries: fields.entries.filter((_, index) => index !== at) })} /></div>
        <details open=${Boolean(one.input_map)}><summary>Its input</summary><${Json} label=${`Input of model ${at + 1}`} optional=${true} rows=${3} hint="If it is empty, the same input is used. {{input.NAME}} is an input of the first model." value=${one.input_map} onValid=${setValid} onValue=${(input_map) => entry(at, { ...one, input_map })} /></details></div>`}</${Order}>
      <div><${Button} icon="plus" disabled=${fields.entries.length >= ENTRIES_MAX} onClick=${() => set({ entries: [...fields.entries, { model: "" }] })}>Add a model</${Button}></div></fieldset>
    <${Button} kind="primary" type="submit" busy=${state.busy} disabled=${!isValid}>${chain.isNew ? "Create the chain" : "Save"}</${Button}></form></${Dialog}>`;
}
