// Analyzes a definition for the editor: its steps and their locations, which references are
// allowed, which steps wait for which other steps, and the differing lines of two definitions. Does
// not access the page or the service.

// Icon, name and purpose of each type of step.
export const TYPES = {
  model: ["box", "Model", "Runs a model of this machine"],
  http: ["globe", "HTTP request", "Sends a request to another service"],
  parallel: ["layers", "Parallel", "Runs branches at the same time"],
  choice: ["git-branch", "Choice", "Takes one of two branches"],
  map: ["repeat", "For each", "Runs steps for each item of a list"],
  wait: ["timer", "Wait", "Waits for a time, a moment or an event"],
  workflow: ["workflow", "Workflow", "Runs another workflow"],
  pass: ["pencil", "Value", "Builds a value"],
};

// The subject of a step in one word: what it runs or waits for, otherwise its type.
export function subjectOf(step) {
  const of = { model: step?.model, workflow: step?.workflow, wait: step?.event?.name }[step?.type];
  return String(of || (TYPES[step?.type]?.[1] ?? step?.type ?? ""));
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// The name of a map's item within the map; empty for other steps.
export const itemOf = (step) => (step?.type === "map" ? (step.item_name ?? "item") : "");

export const idOf = (step) => String((isObject(step) ? (step.step_id ?? step.id) : undefined) ?? "");

// ---- Places: lists of names and numbers ----

export const pointer = (path) => path.map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");

export const partsOf = (text) =>
  text
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"))
    .map((part) => (/^\d+$/.test(part) ? Number(part) : part));

export const valueAt = (value, path) => path.reduce((at, part) => (at === null || at === undefined ? undefined : at[part]), value);

// Returns the value with the part at the location replaced; undefined removes the part. Everything else is unchanged.
export function changed(value, path, next) {
  if (!path.length) return next;
  const [part, ...rest] = path;
  if (Array.isArray(value)) {
    const list = [...value];
    if (!rest.length && next === undefined) list.splice(part, 1);
    else list[part] = changed(list[part], rest, next);
    return list;
  }
  const object = isObject(value) ? { ...value } : {};
  const inner = changed(object[part], rest, next);
  if (inner === undefined) delete object[part];
  else object[part] = inner;
  return object;
}

// Returns the lists of steps inside a step: their locations and names.
export function blocksOf(step) {
  if (!isObject(step)) return [];
  switch (step.type) {
    case "parallel":
      return (Array.isArray(step.branches) ? step.branches : []).map((branch, at) => ({
        path: ["branches", at, "steps"],
        name: branch?.name ?? `Branch ${at + 1}`,
      }));
    case "choice":
      return [
        { path: ["condition_met_branch", "steps"], name: "If so" },
        { path: ["default_branch", "steps"], name: "Otherwise" },
      ];
    case "map":
      return [{ path: ["steps"], name: `For each ${itemOf(step)}` }];
    default:
      return [];
  }
}

const stepsAt = (value, path) => {
  const list = valueAt(value, path);
  return Array.isArray(list) ? list : [];
};

// Returns every step with its location and depth, in the order of the definition.
export function walk(definition) {
  const found = [];
  const block = (path, depth) =>
    stepsAt(definition, path).forEach((step, at) => {
      const own = [...path, at];
      found.push({ step, path: own, depth });
      for (const inner of blocksOf(step)) block([...own, ...inner.path], depth + 1);
    });
  block(["steps"], 0);
  return found;
}

// ---- References ----

const REFERENCE = /(\\?)\{\{\s*([\w-]+)(\.resume_url\b)?/g;
// Matches the first names of a reference, which is in braces or, in a condition, after `$.`.
const NAMES = String.raw`([\w-]+)(\.[^.[\]{}'"\s]+|\['[^']*'\]|\["[^"]*"\])?`;
const IN_BRACES = new RegExp(String.raw`(\\?\{\{\s*)${NAMES}`, "g");
const IN_CONDITION = new RegExp(String.raw`^(\s*\$\.)${NAMES}`);
const isCondition = (value) => isObject(value) && typeof value.operator === "string" && IN_CONDITION.test(value.expression);

// Returns the first names of the references in a value, that is, the steps that it needs. The link that resumes a step
// is available before that step begins.
export function rootsOf(value, found = new Set()) {
  if (typeof value === "string")
    for (const [, escape, name, isLink] of value.matchAll(REFERENCE)) {
      if (!escape && !isLink) found.add(name);
    }
  else if (value !== null && typeof value === "object") for (const part of Object.values(value)) rootsOf(part, found);
  if (isCondition(value)) found.add(IN_CONDITION.exec(value.expression)[2]);
  return found;
}

// Returns the part of a reference for a name, and the name for such a part.
const partFor = (name) => (/^[\w-]+$/.test(name) ? `.${name}` : name.includes("'") ? `["${name}"]` : `['${name}']`);
const nameOf = (part) => (part?.startsWith(".") ? part.slice(1) : part?.slice(2, -2));

// Returns the value with each reference in its texts changed: `change(root, part)` returns the new first names. In
// `depends_on`, there are only roots. `hides`: whether the root has another meaning inside a map.
function withReferences(value, change, hides) {
  const replaced = (text, form) =>
    text.replace(form, (all, before, root, part) => (before.startsWith("\\") ? all : before + change(root, part ?? "")));
  if (typeof value === "string") return replaced(value, IN_BRACES);
  if (Array.isArray(value)) return value.map((part) => withReferences(part, change, hides));
  if (!isObject(value)) return value;
  const each = ([name, part]) => {
    if (hides(value) && ["steps", "output"].includes(name)) return [name, part];
    if (name === "depends_on" && Array.isArray(part)) return [name, part.map((id) => (typeof id === "string" ? change(id, "") : id))];
    if (name === "expression" && isCondition(value)) return [name, replaced(part, IN_CONDITION)];
    return [name, withReferences(part, change, hides)];
  };
  return Object.fromEntries(Object.entries(value).map(each));
}

// Returns the value with each reference to the step or item `from` renamed to `to`, including in `depends_on`.
export const renamed = (value, from, to) =>
  withReferences(
    value,
    (root, part) => (root === from ? to : root) + part,
    (map) => itemOf(map) === from,
  );

// Returns the definition with each reference to the input `from` renamed to `to`.
export function renamedInput(definition, from, to) {
  const change = (root, part) => root + (root === "inputs" && nameOf(part) === from ? partFor(to) : part);
  const { input_schema: schema, ...others } = definition;
  return { ...withReferences(others, change, () => false), ...(schema === undefined ? null : { input_schema: schema }) };
}

// Reserved first names of references, which no step or item may have.
const ROOTS = ["inputs", "execution", "secrets"];

// Replaces a step with `next`. If the step's id or, for a map, its item's name changes, references
// to that name are renamed too, except while the new name already means something else. To make
// this work while a name is being typed, `naming` (from the previous call) contains the names that
// references currently use. Returns the definition and the next `naming`.
export function withStep(definition, path, next, naming = null) {
  const before = valueAt(definition, path);
  const of = [idOf, itemOf].find((one) => one(before) !== one(next));
  const whole = changed(definition, path, next);
  if (!of) return { whole, naming };
  const at = pointer(path);
  const [old, name] = [of(before), of(next)];
  const from = naming?.at === at && naming.of === of && naming.name === old ? naming.from : old;
  const others = walk(definition).filter((one) => pointer(one.path) !== at);
  const ids = others.map(({ step }) => idOf(step));
  // An item is available only within its map.
  const isItem = of === itemOf;
  const within = isItem ? walk({ steps: before.steps }) : others;
  const used = rootsOf(isItem ? [before.steps, before.output] : definition);
  const taken = new Set([...ROOTS, isItem ? idOf(next) : "item", ...used, ...ids, ...within.map(({ step }) => itemOf(step))]);
  const follows = from && /^[\w-]+$/.test(name) && (name === from || !taken.has(name)) && !ids.includes(from);
  const latest = { at, of, name, from: follows ? name : from };
  if (!follows) return { whole, naming: latest };
  if (!isItem) return { whole: renamed(whole, from, name), naming: latest };
  const inner = ["steps", "output"].filter((part) => part in next).map((part) => [part, renamed(next[part], from, name)]);
  return { whole: changed(definition, path, { ...next, ...Object.fromEntries(inner) }), naming: latest };
}

// Returns what a step at this location may refer to: inputs, the items of enclosing loops, and earlier steps.
export function offersAt(definition, path) {
  const offers = [];
  const schema = definition?.input_schema;
  for (const [name, part] of Object.entries(isObject(schema?.properties) ? schema.properties : {})) {
    offers.push({ text: /^[\w-]+$/.test(name) ? `inputs.${name}` : `inputs['${name}']`, note: part?.title ?? "Input" });
  }
  for (let length = 2; length <= path.length; length += 1) {
    const around = valueAt(definition, path.slice(0, length));
    if (typeof path[length - 1] !== "number" || path[length - 2] !== "steps") continue;
    for (const step of stepsAt(definition, path.slice(0, length - 1)).slice(0, path[length - 1])) offerStep(step, offers);
    if (around?.type === "map" && length < path.length) offers.push({ text: itemOf(around), note: "The item" });
  }
  for (const { step, path: at } of walk(definition)) {
    if (isObject(step.event) && idOf(step) && pointer(at) !== pointer(path))
      offers.push({ text: `${idOf(step)}.resume_url`, note: "Answers it" });
  }
  offers.push({ text: "execution.id", note: "This run" });
  return offers;
}

function offerStep(step, offers) {
  const id = idOf(step);
  if (!id) return;
  const note = step.name ?? TYPES[step.type]?.[1] ?? "Step";
  offers.push({ text: `${id}.output`, note });
  if (step.type === "http") offers.push({ text: `${id}.body`, note }, { text: `${id}.status_code`, note });
  if (isObject(step.event)) offers.push({ text: `${id}.event.source`, note });
  offers.push({ text: `${id}.primary`, note }, { text: `${id}.status`, note });
  if (step.type !== "map") for (const block of blocksOf(step)) for (const inner of stepsAt(step, block.path)) offerStep(inner, offers);
}

// Returns, for each step of a list, the indexes of the steps that it directly waits for.
export function waitsOf(steps) {
  const home = new Map();
  const note = (step, at) => {
    home.set(idOf(step), at);
    for (const block of blocksOf(step)) for (const inner of stepsAt(step, block.path)) note(inner, at);
  };
  steps.forEach(note);
  let barrier = -1;
  const reach = [];
  return steps.map((step, at) => {
    const named = Array.isArray(step?.depends_on) ? step.depends_on : null;
    const waits = new Set([...rootsOf(step)].map((name) => home.get(name)).filter((from) => from !== undefined && from < at));
    for (const name of named ?? []) if (home.get(name) < at) waits.add(home.get(name));
    if (!named && step?.type !== "model") {
      for (let from = 0; from < at; from += 1) waits.add(from);
      barrier = at;
    } else if (!named && barrier >= 0) waits.add(barrier);
    // Transitive waits are not drawn.
    reach.push(new Set([...waits].flatMap((from) => [from, ...reach[from]])));
    return [...waits].filter((from) => ![...waits].some((other) => other !== from && reach[other].has(from)));
  });
}

// ---- Problems ----

// Returns the problems by the location of their step; problems that belong to no step are under "".
export function problemsByStep(problems, steps) {
  const places = steps.map(({ path }) => pointer(path)).sort((a, b) => b.length - a.length);
  const found = new Map();
  for (const problem of problems) {
    const place = places.find((one) => problem.path === one || problem.path.startsWith(`${one}/`)) ?? "";
    found.set(place, [...(found.get(place) ?? []), { ...problem, within: problem.path.slice(place.length + 1) }]);
  }
  return found;
}

// ---- Differences ----

// Maximum number of line pairs compared; above this, all differing lines are shown as replaced.
const COMPARED_MAX = 4e6;

// Compares the lines of two texts: lines in both, only in the first, or only in the second.
export function differences(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const inA = a.slice(head, a.length - tail);
  const inB = b.slice(head, b.length - tail);
  const same = (text) => ({ kind: "same", text });
  return [...a.slice(0, head).map(same), ...middle(inA, inB), ...a.slice(a.length - tail).map(same)];
}

function middle(a, b) {
  const out = (text) => ({ kind: "out", text });
  const into = (text) => ({ kind: "in", text });
  if (a.length * b.length > COMPARED_MAX) return [...a.map(out), ...b.map(into)];
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] =
        a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i] });
      i += 1;
      j += 1;
    } else if (i < a.length && (j >= b.length || longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      lines.push(out(a[i]));
      i += 1;
    } else {
      lines.push(into(b[j]));
      j += 1;
    }
  }
  return lines;
}
