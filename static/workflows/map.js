// The map of a workflow: each step is a box, each wait is a line, and nested steps are inside containers. The map is
// drawn from the definition and cannot be edited; the list next to it contains the same information.

import { html, useMemo } from "../vendor/preact.js";
import { blocksOf, idOf, pointer, subjectOf, valueAt, waitsOf } from "./flow.js";

const WIDTH = 164;
const HEIGHT = 40;
const ACROSS = 16;
const DOWN = 26;
const HEAD = 26;
const PAD = 12;
// Number of characters of a name that fit into a box.
const NAME_MAX = 19;

// Arranges the steps of a list in rows: a step is below everything it waits for.
function lay(steps, path) {
  const waits = waitsOf(steps);
  const level = [];
  waits.forEach((from, at) => {
    level[at] = from.length ? Math.max(...from.map((one) => level[one])) + 1 : 0;
  });
  const boxes = steps.map((step, at) => box(step, [...path, at]));
  const rows = [];
  boxes.forEach((one, at) => {
    (rows[level[at]] ??= []).push(one);
  });
  const widthOf = (row) => row.reduce((sum, one) => sum + one.width, 0) + ACROSS * (row.length - 1);
  const width = Math.max(0, ...rows.map(widthOf));
  let y = 0;
  for (const row of rows) {
    let x = (width - widthOf(row)) / 2;
    for (const one of row) {
      one.x = x;
      one.y = y;
      x += one.width + ACROSS;
    }
    y += Math.max(...row.map((one) => one.height)) + DOWN;
  }
  const lines = waits.flatMap((from, at) => from.map((one) => ({ from: boxes[one], to: boxes[at] })));
  return { boxes, lines, width, height: Math.max(0, y - DOWN) };
}

function box(step, path) {
  const blocks = blocksOf(step).map((block) => {
    const steps = valueAt(step, block.path);
    return { name: block.name, laid: lay(Array.isArray(steps) ? steps : [], [...path, ...block.path]) };
  });
  if (!blocks.length) return { step, path, blocks, width: WIDTH, height: HEIGHT };
  const inner = blocks.reduce((sum, block) => sum + Math.max(block.laid.width, WIDTH * 0.7) + ACROSS, -ACROSS);
  const tallest = Math.max(...blocks.map((block) => block.laid.height));
  return { step, path, blocks, width: Math.max(WIDTH, inner + 2 * PAD), height: HEAD + HEAD + tallest + PAD };
}

const short = (text) => (text.length > NAME_MAX ? `${text.slice(0, NAME_MAX - 1)}…` : text);

function Laid({ laid, x, y, chosen, problems, onChoose }) {
  const middle = (one) => x + one.x + one.width / 2;
  return html`${laid.lines.map(({ from, to }, at) => {
    const [x1, y1, x2, y2] = [middle(from), y + from.y + from.height, middle(to), y + to.y];
    const bend = Math.min(DOWN, (y2 - y1) / 2);
    return html`<path key=${`line-${at}`} class="wait" d=${`M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`} />`;
  })}${laid.boxes.map((one) => html`<${Box} key=${pointer(one.path)} of=${one} x=${x + one.x} y=${y + one.y} chosen=${chosen} problems=${problems} onChoose=${onChoose} />`)}`;
}

function Box({ of, x, y, chosen, problems, onChoose }) {
  const place = pointer(of.path);
  const kind = `box ${chosen === place ? "chosen" : ""} ${problems.has(place) ? "bad" : ""} ${of.blocks.length ? "around" : ""}`;
  let left = x + PAD;
  return html`<g class=${kind} onClick=${(event) => {
    event.stopPropagation();
    onChoose(place);
  }}>
    <rect x=${x} y=${y} width=${of.width} height=${of.height} rx="8" />
    <text class="id" x=${x + 10} y=${y + 17}>${short(idOf(of.step) || "…")}</text>
    ${of.blocks.length ? null : html`<text class="type" x=${x + 10} y=${y + 32}>${short(subjectOf(of.step))}</text>`}
    ${of.blocks.map((block, at) => {
      const own = Math.max(block.laid.width, WIDTH * 0.7);
      const start = left;
      left += own + ACROSS;
      return html`<g key=${at}><text class="type" x=${start} y=${y + HEAD + 14}>${short(String(block.name))}</text>
        <${Laid} laid=${block.laid} x=${start + (own - block.laid.width) / 2} y=${y + 2 * HEAD} chosen=${chosen} problems=${problems} onChoose=${onChoose} /></g>`;
    })}</g>`;
}

export function FlowMap({ steps, chosen, problems, onChoose }) {
  const laid = useMemo(() => lay(Array.isArray(steps) ? steps : [], ["steps"]), [steps]);
  if (!laid.boxes.length) return html`<p class="quiet">The map appears when there are steps.</p>`;
  const [width, height] = [laid.width + 4, laid.height + 4];
  return html`<div class="map" tabindex="0" role="group" aria-label="Map"><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`A map of ${laid.boxes.length} steps; the list shows the same as text`}>
    <${Laid} laid=${laid} x=${2} y=${2} chosen=${chosen} problems=${problems} onChoose=${onChoose} /></svg></div>`;
}
