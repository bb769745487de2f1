// Interprets a JSON Schema for a form: the kind of field for each part, and its initial value. Parts that no field
// supports get a JSON field, so that no part of a schema is omitted.

// Maximum depth of nested objects and lists that have their own fields.
export const DEPTH_MAX = 5;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// Resolves references within the document; cyclic references stay unresolved.
export function resolve(schema, root) {
  let at = schema;
  for (let steps = 0; steps < 16 && isObject(at) && typeof at.$ref === "string"; steps += 1) {
    if (!at.$ref.startsWith("#")) return at;
    const { $ref, ...beside } = at;
    let found = root;
    for (const part of $ref.slice(1).split("/").filter(Boolean)) {
      const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
      found = isObject(found) || Array.isArray(found) ? found[name] : undefined;
    }
    if (!isObject(found)) return at;
    at = { ...found, ...beside };
  }
  return at;
}

const COMPOSED = ["allOf", "not", "if", "patternProperties", "dependentSchemas", "prefixItems"];

// Returns the kind of field for a schema: const, enum, boolean, integer, number, text, choice, list, object or json.
export function kindOf(schema, depth) {
  if (!isObject(schema) || typeof schema.$ref === "string" || depth > DEPTH_MAX) return "json";
  if ("const" in schema) return "const";
  if (Array.isArray(schema.enum)) return "enum";
  if (COMPOSED.some((name) => name in schema)) return "json";
  if (Array.isArray(schema.oneOf) || Array.isArray(schema.anyOf)) return "choice";
  const types = typesOf(schema);
  if (types.length !== 1) return "json";
  switch (types[0]) {
    case "boolean":
      return "boolean";
    case "integer":
      return "integer";
    case "number":
      return "number";
    case "string":
      return "text";
    case "array":
      return isObject(schema.items) ? "list" : "json";
    case "object":
      return isObject(schema.properties) && Object.keys(schema.properties).length ? "object" : "json";
    default:
      return "json";
  }
}

// The types of a schema, except null.
export function typesOf(schema) {
  const all = Array.isArray(schema.type) ? schema.type : schema.type ? [schema.type] : isObject(schema.properties) ? ["object"] : [];
  return all.filter((type) => type !== "null");
}

export const isNullable = (schema) =>
  isObject(schema) && ((Array.isArray(schema.type) && schema.type.includes("null")) || schema.nullable === true);

/**
 * The properties in form order: by x-order if given, otherwise as declared.
 * @returns {[string, any][]}
 */
export function propertiesOf(schema) {
  const all = Object.entries(isObject(schema?.properties) ? schema.properties : {});
  const order = ([, part]) => (Number.isFinite(part?.["x-order"]) ? part["x-order"] : Infinity);
  return all
    .map((one, at) => /** @type {const} */ ([one, at]))
    .sort(([a, i], [b, j]) => (order(a) === order(b) ? i - j : order(a) - order(b)))
    .map(([one]) => one);
}

const two = (number) => String(number).padStart(2, "0");

// Converts a date-time to the browser's local time, up to the year 9999, which is the maximum of the browser's inputs.
function localOf(text) {
  const at = new Date(text);
  const year = at.getFullYear();
  if (!(year >= 0 && year <= 9999)) return undefined;
  const day = `${String(year).padStart(4, "0")}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function instantOf(local) {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? local : at.toISOString();
}

const TIME = /^(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?$/i;

// A time of day keeps its offset; a new time of day gets the browser's offset.
function timeOf(local, before) {
  const minutes = -new Date().getTimezoneOffset();
  const size = Math.abs(minutes);
  const own = `${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
  return `${local.length === 5 ? `${local}:00` : local}${TIME.exec(before)?.[2] ?? own}`;
}

/**
 * String formats for which browsers have an input: the input's attributes, the conversion of a text to what the input
 * shows (undefined if it cannot show the text), and the conversion back.
 * @type {Record<string, { input: object, shown: (text: string) => string | undefined, text: (local: string, before: string) => string }>}
 */
export const MOMENTS = {
  "date-time": { input: { type: "datetime-local", step: "1", max: "9999-12-31T23:59:59" }, shown: localOf, text: instantOf },
  date: {
    input: { type: "date", max: "9999-12-31" },
    shown: (text) => (/^\d{4}-\d\d-\d\d$/.test(text) ? text : undefined),
    text: (local) => local,
  },
  time: { input: { type: "time", step: "1" }, shown: (text) => TIME.exec(text)?.[1], text: timeOf },
};

// The initial value of a form: defaults and constants, and false for a required checkbox. Optional fields without a
// default are absent.
export function initial(schema, root, depth = 0) {
  const part = resolve(schema, root);
  if (!isObject(part) || depth > DEPTH_MAX) return undefined;
  if (part.default !== undefined) return part.default;
  if ("const" in part) return part.const;
  if (kindOf(part, depth) !== "object") return undefined;
  const value = {};
  const required = Array.isArray(part.required) ? part.required : [];
  for (const [name, of] of propertiesOf(part)) {
    const inner = resolve(of, root);
    const isBox = required.includes(name) && kindOf(inner, depth + 1) === "boolean";
    const start = initial(of, root, depth + 1) ?? (isBox ? false : undefined);
    if (start !== undefined && (required.includes(name) || inner?.default !== undefined || "const" in (inner ?? {}))) value[name] = start;
  }
  return depth === 0 || Object.keys(value).length || required.length ? value : undefined;
}

// An example from the schema's author, if there is one.
export function example(schema) {
  const found = Array.isArray(schema?.examples) ? schema.examples[0] : schema?.example;
  return isObject(found) ? found : null;
}

// Returns whether a value roughly matches this schema; used to choose the alternative that a form shows first.
export function couldBe(value, schema, root) {
  const part = resolve(schema, root);
  if (!isObject(part)) return true;
  if ("const" in part) return JSON.stringify(part.const) === JSON.stringify(value);
  if (Array.isArray(part.enum)) return part.enum.some((one) => JSON.stringify(one) === JSON.stringify(value));
  const types = Array.isArray(part.type) ? part.type : part.type ? [part.type] : [];
  const type = value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
  const fits = !types.length || types.includes(type) || (type === "number" && types.includes("integer") && Number.isInteger(value));
  if (!fits || type !== "object") return fits;
  return (part.required ?? []).every((name) => name in value);
}
