// Requests of the workflow screens, the templates of new workflows, and the import and export formats.

import { ask, request } from "../core.js";

export const API = "/api/workflows/api/v1";
export const FLOWS = "/api/flows/api/v1";

// A version with its definition, and the ETag of its revision.
export async function loadVersion(id, version, signal) {
  const answer = await request("GET", `${API}/workflows/${encodeURIComponent(id)}/versions/${encodeURIComponent(version)}`, undefined, {
    signal,
  });
  const { definition, ...rest } = await answer.json();
  return { ...rest, definition, tag: answer.headers.get("etag") };
}

// Saves a version, provided that the revision on which the version is based is still current.
export async function putVersion(id, version, body, tag) {
  const path = `${API}/workflows/${encodeURIComponent(id)}/versions/${encodeURIComponent(version)}`;
  const answer = await request("PUT", path, { ...body, version_id: version }, { headers: tag ? { "if-match": tag } : {} });
  const { definition, ...rest } = await answer.json();
  return { ...rest, definition, tag: answer.headers.get("etag") };
}

// All models, for selection lists; loaded once per page.
let models = null;
export function allModels() {
  models ??= ask("GET", "/api/base/v1/models?limit=500").catch((error) => {
    models = null;
    throw error;
  });
  return models;
}

// The workflows that a step may run, newest first, up to the maximum length of a selection list.
const CHOICES_MAX = 500;
const PAGE = 100;

export async function allWorkflows(signal) {
  const all = [];
  for (let offset = 0; offset < CHOICES_MAX; offset += PAGE) {
    const page = await ask("GET", `${API}/workflows?limit=${PAGE}&offset=${offset}`, undefined, { signal });
    all.push(...page.workflows);
    if (all.length >= page.total_count || !page.workflows.length) break;
  }
  return all;
}

// A workflow's versions, and the input schema of the active one.
export async function workflowWithInputs(id, version, signal) {
  const workflow = await ask("GET", `${API}/workflows/${encodeURIComponent(id)}`, undefined, { signal });
  const versions = workflow.versions.map((one) => one.version_id);
  const chosen = version ?? workflow.latest_version_id;
  const schema = versions.includes(chosen) ? (await loadVersion(id, chosen, signal)).definition.input_schema : undefined;
  return { versions, version: chosen, schema };
}

// The id of the version that a save creates.
export function nextVersion(versions) {
  const numbers = versions
    .map((one) => /^v(\d{1,9})$/.exec(one.version_id))
    .filter(Boolean)
    .map(([, number]) => Number(number));
  let number = Math.max(versions.length, ...numbers) + 1;
  while (versions.some((one) => one.version_id === `v${number}`)) number += 1;
  return `v${number}`;
}

const text = { type: "object", required: ["text"], properties: { text: { type: "string", title: "Text", minLength: 1 } } };
const model = (step_id, slug, params) => ({ step_id, type: "model", model: slug, params });

export const TEMPLATES = {
  text: {
    title: "One model",
    description: "Rates the sentiment of a text.",
    definition: { input_schema: text, steps: [model("mood", "text-sentiment", { text: "{{inputs.text}}" })] },
  },
  together: {
    title: "Several at once",
    description: "Mood and language of a text, then a sentence about both.",
    definition: {
      input_schema: text,
      steps: [
        model("mood", "text-sentiment", { text: "{{inputs.text}}" }),
        model("tongue", "text-language", { text: "{{inputs.text}}" }),
        model("say", "text-template", {
          template: "\\{{ mood }} in \\{{ language }}",
          values: { mood: "{{mood.output.label}}", language: "{{tongue.output.language}}" },
        }),
      ],
    },
  },
  each: {
    title: "A list",
    description: "Runs a model for each item of a list.",
    definition: {
      input_schema: {
        type: "object",
        required: ["texts"],
        properties: { texts: { type: "array", title: "Texts", items: { type: "string" } } },
      },
      steps: [
        {
          step_id: "each",
          type: "map",
          items: "{{inputs.texts}}",
          item_name: "text",
          max_concurrency: 4,
          steps: [model("mood", "text-sentiment", { text: "{{text}}" })],
          output: "{{mood.output.label}}",
        },
      ],
    },
  },
  choice: {
    title: "A choice",
    description: "Chooses one of two branches by a model's output.",
    definition: {
      input_schema: text,
      steps: [
        model("mood", "text-sentiment", { text: "{{inputs.text}}" }),
        {
          step_id: "good",
          type: "choice",
          condition: { expression: "{{mood.output.label}}", operator: "equals", value: "positive" },
          condition_met_branch: { steps: [{ step_id: "thanks", type: "pass", result: "Thank you!" }] },
          default_branch: { steps: [{ step_id: "sorry", type: "pass", result: "We are sorry." }] },
        },
      ],
    },
  },
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// Parses a text: an export of this dashboard, a bare definition, or a legacy drawing.
export function readImport(written) {
  let value;
  try {
    value = JSON.parse(written);
  } catch (error) {
    return { problem: `This is not JSON: ${error.message}` };
  }
  if (isObject(value?.workflow)) value = value.workflow;
  if (!isObject(value)) return { problem: "A workflow is an object." };
  const texts = {
    name: typeof value.name === "string" ? value.name : "",
    description: typeof value.description === "string" && value.description ? value.description : "Imported",
  };
  if (isObject(value.definition)) {
    const { categories, tags, definition } = value;
    return {
      kind: "whole",
      steps: definition.steps?.length ?? 0,
      body: { ...texts, ...(Array.isArray(categories) ? { categories } : {}), ...(Array.isArray(tags) ? { tags } : {}), definition },
    };
  }
  if (!Array.isArray(value.steps)) return { problem: "There are no steps in it." };
  const isLegacy =
    "nodes_json" in value ||
    "edges_json" in value ||
    "outputs" in value ||
    value.steps.some((step) => isObject(step) && ("model_slug" in step || step.type === "1019Model"));
  if (!isLegacy) {
    const definition = Object.fromEntries(
      ["input_schema", "steps", "metadata", "version"].filter((name) => name in value).map((name) => [name, value[name]]),
    );
    return { kind: "definition", steps: value.steps.length, body: { ...texts, definition } };
  }
  const steps = value.steps.map((step) => ({ ...step }));
  const body = { ...texts, steps };
  for (const name of ["workspace_id", "thumbnail_url", "nodes_json", "edges_json", "inputs", "outputs"]) {
    if (value[name] !== undefined && value[name] !== null)
      body[name] =
        ["nodes_json", "edges_json"].includes(name) && typeof value[name] !== "string" ? JSON.stringify(value[name]) : value[name];
  }
  return { kind: "legacy", steps: steps.length, body };
}

// Makes the browser save a value as a JSON file.
export function download(name, value) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${JSON.stringify(value, null, 2)}\n`], { type: "application/json" }));
  link.download = `${name}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
