// The steps of a workflow as a list, with the selected step's fields next to it and the map below.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Icon, IconButton, Notice, Text } from "../core.js";
import { place, setQuery } from "../location.js";
import { InputFields, OutputFields, StepFields } from "./fields.js";
import { TYPES, blocksOf, changed, idOf, offersAt, pointer, renamedInput, rootsOf, subjectOf, valueAt, walk, withStep } from "./flow.js";
import { FlowMap } from "./map.js";

// The initial content of a new step of each type.
const NEW = {
  model: { model: "", params: {} },
  http: { method: "GET", url: "https://" },
  parallel: { branches: [{ steps: [] }, { steps: [] }] },
  choice: {
    condition: { expression: "", operator: "equals", value: "" },
    condition_met_branch: { steps: [] },
    default_branch: { steps: [] },
  },
  map: { items: "", item_name: "item", steps: [] },
  wait: { seconds: 60 },
  workflow: { workflow: "", inputs: {} },
  pass: { result: "" },
};
const INPUTS = "inputs";
const OUTPUT = "output";

// Returns a step and its nested steps.
const walkOf = (step) => [step, ...walk({ steps: [step] }).slice(1)];

function freeId(steps, type) {
  const taken = new Set(steps.map(({ step }) => idOf(step)));
  let number = 1;
  while (taken.has(`${type}_${number}`)) number += 1;
  return `${type}_${number}`;
}

export function StepsTab({ definition, onDefinition, steps, byStep, models, own, isLocked }) {
  const { query } = place.value;
  const first = steps.length ? pointer(steps[0].path) : INPUTS;
  const asked = query.get("step") ?? first;
  const one = steps.find(({ path }) => pointer(path) === asked);
  const chosen = one || asked === INPUTS || asked === OUTPUT ? asked : first;
  const fields = useRef(null);
  const choose = (at) => setQuery({ step: at });
  const open = (at) => {
    choose(at);
    if (matchMedia("(max-width: 1100px)").matches) setTimeout(() => fields.current?.scrollIntoView({ block: "start" }), 0);
  };
  const put = (path, next, said) => onDefinition(changed(definition, path, next), said);
  const naming = useRef(null);
  const putStep = (path, next, said) => {
    const put = withStep(definition, path, next, naming.current);
    naming.current = put.naming;
    onDefinition(put.whole, said);
  };
  const putSchema = (schema, { said, renamed }) => {
    const next = changed(definition, ["input_schema"], schema);
    onDefinition(renamed ? renamedInput(next, ...renamed) : next, said);
  };
  const listAt = (path) => {
    const list = valueAt(definition, path);
    return Array.isArray(list) ? list : [];
  };
  const add = (block, at, type) => {
    const list = [...listAt(block)];
    list.splice(at, 0, { step_id: freeId(steps, type), type, ...structuredClone(NEW[type]) });
    put(block, list);
    open(pointer([...block, at]));
  };
  const move = (path, by) => {
    const block = path.slice(0, -1);
    const at = path.at(-1);
    const list = [...listAt(block)];
    if (at + by < 0 || at + by >= list.length) return;
    [list[at], list[at + by]] = [list[at + by], list[at]];
    put(block, list);
    choose(pointer([...block, at + by]));
  };
  const remove = (path) => {
    const { length } = walkOf(valueAt(definition, path));
    put(path, undefined, length > 1 ? `${length} steps are deleted.` : "The step is deleted.");
    choose(path.at(-1) > 0 ? pointer([...path.slice(0, -1), path.at(-1) - 1]) : "");
  };
  const copy = (path) => {
    const step = structuredClone(valueAt(definition, path));
    const list = [...listAt(path.slice(0, -1))];
    list.splice(path.at(-1) + 1, 0, { ...step, step_id: freeId(steps, step.type) });
    put(path.slice(0, -1), list);
    open(pointer([...path.slice(0, -1), path.at(-1) + 1]));
  };
  const tools = { definition, chosen, open, add, move, byStep, isLocked };
  const path = one ? one.path : null;
  const users = one
    ? steps.filter(({ step, path: other }) => other !== path && rootsOf(step).has(idOf(one.step))).map(({ step }) => idOf(step))
    : [];
  const general = byStep.get("") ?? [];
  return html`<div class="flow"><div class="stack">
      <section class="card step-list" aria-label="Steps">
        <${Ends} at=${INPUTS} icon="download" name="Inputs" note=${`${Object.keys(definition.input_schema?.properties ?? {}).length || "any"}`} isBad=${general.some((p) => p.path.startsWith("/input_schema"))} ...${tools} />
        <${Block} path=${["steps"]} ...${tools} />
        <${Ends} at=${OUTPUT} icon="upload" name="Output" note=${definition.metadata?.output_mapping ? "as named" : "of the last step"} isBad=${general.some((p) => p.path.startsWith("/metadata"))} ...${tools} />
      </section>
      <details open><summary>Map</summary><${FlowMap} steps=${definition.steps} chosen=${chosen} problems=${byStep} onChoose=${open} /></details></div>
    <section class="card pad step-fields" aria-label="The chosen step" ref=${fields}>
      ${
        one
          ? html`<header class="step-head"><h2><${Icon} name=${TYPES[one.step?.type]?.[0] ?? "info"} /><${Text}>${one.step?.name ?? idOf(one.step)}</${Text}> <span class="quiet">${TYPES[one.step?.type]?.[1] ?? ""}</span></h2>
          ${
            isLocked
              ? null
              : html`<div class="tools"><${IconButton} icon="arrow-up" label="Move up" disabled=${path.at(-1) === 0} onClick=${() => move(path, -1)} /><${IconButton} icon="arrow-down" label="Move down" disabled=${path.at(-1) >= listAt(path.slice(0, -1)).length - 1} onClick=${() => move(path, 1)} />
            <${IconButton} icon="copy" label="Duplicate" onClick=${() => copy(path)} /><${IconButton} icon="trash-2" label="Delete the step" onClick=${() => remove(path)} /></div>`
          }</header>
        <p class="hint">${TYPES[one.step?.type]?.[2] ?? ""}.${users.length ? html` Its output is used by ${users.map((id, at) => html`${at ? ", " : ""}<code>${id}</code>`)}.` : null}</p>
        <fieldset class="bare" disabled=${isLocked}><${StepFields} key=${chosen} step=${one.step} onStep=${(next, said) => putStep(path, next, said)} offers=${offersAt(definition, path)} errors=${byStep.get(chosen) ?? []} models=${models} own=${own} siblings=${listAt(
          path.slice(0, -1),
        )
          .map(idOf)
          .filter((id) => id && id !== idOf(one.step))} /></fieldset>`
          : chosen === OUTPUT
            ? html`<header class="step-head"><h2><${Icon} name="upload" />Output</h2></header><fieldset class="bare" disabled=${isLocked}><${OutputFields} definition=${definition} onDefinition=${onDefinition} offers=${offersAt(definition, ["steps", (definition.steps ?? []).length])} errors=${general.filter((p) => p.path.startsWith("/metadata"))} /></fieldset>`
            : html`<header class="step-head"><h2><${Icon} name="download" />Inputs</h2></header><fieldset class="bare" disabled=${isLocked}><${InputFields} schema=${definition.input_schema} onSchema=${putSchema} errors=${general.filter((p) => p.path.startsWith("/input_schema"))} /></fieldset>`
      }
    </section></div>
    ${!steps.length ? html`<${Notice}>A workflow needs at least one step: add one with the button in the list.</${Notice}>` : null}`;
}

function Ends({ at, icon, name, note, chosen, open, isBad }) {
  return html`<button type="button" class="step-row end-row" aria-current=${chosen === at ? "true" : undefined} onClick=${() => open(at)}><${Icon} name=${icon} /><span class="step-name"><strong>${name}</strong></span><span class="quiet">${note}</span>${isBad ? html`<${Icon} name="circle-alert" label="There is a problem here" />` : null}</button>`;
}

function Block({ path, definition, ...tools }) {
  const list = valueAt(definition, path);
  const steps = Array.isArray(list) ? list : [];
  return html`<ol class="steps">${steps.map((step, at) => html`<${Row} key=${at} step=${step} path=${[...path, at]} definition=${definition} ...${tools} />`)}
    ${tools.isLocked ? null : html`<li><${Add} onAdd=${(type) => tools.add(path, steps.length, type)} where=${path.length > 1 ? " here" : ""} /></li>`}</ol>`;
}

function Row({ step, path, chosen, open, byStep, ...tools }) {
  const at = pointer(path);
  const [icon] = TYPES[step?.type] ?? ["info"];
  const onKey = (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    if (event.altKey && !tools.isLocked) {
      tools.move(path, by);
      return;
    }
    const rows = [...event.currentTarget.closest(".step-list").querySelectorAll(".step-row")];
    rows[rows.indexOf(event.currentTarget) + by]?.focus();
  };
  const problems = byStep.get(at);
  return html`<li><button type="button" class="step-row" aria-current=${chosen === at ? "true" : undefined} onClick=${() => open(at)} onKeyDown=${onKey} title="Alt and an arrow key move it">
      <${Icon} name=${icon} /><span class="step-name"><strong><${Text}>${step?.name ?? (idOf(step) || "no id")}</${Text}></strong></span><span class="quiet"><${Text}>${subjectOf(step)}</${Text}></span>
      ${problems ? html`<span class="status bad"><${Icon} name="circle-alert" label=${`${problems.length} wrong`} /></span>` : null}</button>
    ${blocksOf(step).map((block) => html`<div class="block" key=${pointer(block.path)}><p class="quiet">${block.name}</p><${Block} path=${[...path, ...block.path]} chosen=${chosen} open=${open} byStep=${byStep} ...${tools} /></div>`)}</li>`;
}

// A button with a menu of the step types. Nothing is added until a type is chosen.
function Add({ onAdd, where }) {
  const [isOpen, setOpen] = useState(false);
  const root = useRef(null);
  const button = useRef(null);
  const items = () => [...root.current.querySelectorAll("[role=menuitem]")];
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  useEffect(() => {
    if (isOpen) items()[0]?.focus();
  }, [isOpen]);
  const onKey = (event) => {
    if (!isOpen) {
      if (event.key === "ArrowDown") {
        event.preventDefault();
        setOpen(true);
      }
      return;
    }
    const all = items();
    const at = all.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      all[next % all.length].focus();
    } else if (event.key === "Escape") {
      event.preventDefault();
      close();
    } else if (event.key === "Tab") setOpen(false);
  };
  const onBlur = (event) => {
    if (!root.current.contains(event.relatedTarget)) setOpen(false);
  };
  return html`<div class="add" ref=${root} onKeyDown=${onKey} onFocusOut=${onBlur}><button type="button" ref=${button} class="step-row add-button" aria-haspopup="menu" aria-expanded=${isOpen ? "true" : "false"} onClick=${() => setOpen(!isOpen)}><${Icon} name="plus" /><span>Add a step${where}</span></button>
    ${
      isOpen
        ? html`<div class="add-menu" role="menu" aria-label="Types of steps">${Object.entries(TYPES).map(
            ([type, [icon, name, purpose]]) =>
              html`<button type="button" role="menuitem" tabindex="-1" key=${type} data-type=${type} onClick=${() => {
                close();
                onAdd(type);
              }}><${Icon} name=${icon} /><span><strong>${name}</strong> <span class="quiet">${purpose}</span></span></button>`,
          )}</div>`
        : null
    }</div>`;
}
