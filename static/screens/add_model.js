// Add a model: composes the command that adds it. The files in the models folder belong to the person who runs the
// machine, so nothing is sent.

import { html, useState } from "../vendor/preact.js";
import { Button, Copy, Dialog, Field, Input } from "../core.js";

const FILE = "The path of the model file on the machine. `orrery model pull` downloads one.";
const NAME = "What the server calls the model.";

// The recipes of `orrery model add`. `model` and `url` are the hints of fields that the recipe has; `starts` says
// whether the service can start the server.
export const RECIPES = [
  {
    name: "llama-server",
    about: "Chat with a GGUF file, in llama.cpp's server",
    model: FILE,
    starts: true,
    url: "http://127.0.0.1:8080/v1",
  },
  {
    name: "vllm",
    about: "Chat with a model from Hugging Face on a GPU, in vLLM",
    model: NAME,
    starts: true,
    url: "http://127.0.0.1:8000/v1",
  },
  { name: "ollama", about: "Chat with a model of the Ollama on this machine", model: NAME, url: "http://127.0.0.1:11434/v1" },
  {
    name: "tei",
    about: "Embeddings, in Hugging Face's Text Embeddings Inference",
    model: NAME,
    starts: true,
    url: "http://127.0.0.1:8080/v1",
  },
  {
    name: "whisper-server",
    about: "Transcriptions of audio, in whisper.cpp's server",
    model: FILE,
    starts: true,
    url: "http://127.0.0.1:8080/v1",
  },
  { name: "speaches", about: "Transcriptions of audio, in speaches", model: NAME, url: "http://127.0.0.1:8000/v1" },
  { name: "piper", about: "Speech from text, in Piper's server", model: FILE, starts: true, url: "http://127.0.0.1:5000/synthesize" },
  {
    name: "sd-server",
    about: "Images from text, in stable-diffusion.cpp's server",
    model: FILE,
    starts: true,
    url: "http://127.0.0.1:1234/v1",
  },
  { name: "comfyui", about: "A graph of ComfyUI, exported in its API form", graph: true, url: "http://127.0.0.1:8188" },
  { name: "diffusers", about: "Images from text, in a Python program with Hugging Face's diffusers", model: NAME, starts: true },
];

// Recipes whose server has one model, which only its start command names.
const UNNAMED = ["whisper-server", "piper", "sd-server"];

const quoted = (text) => (/^[\w./:@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// Whether the recipe needs, may have (null) or refuses a model.
export function needsModel(recipe, url) {
  if (!url && recipe.starts) return true;
  if (recipe.graph || UNNAMED.includes(recipe.name)) return false;
  return ["llama-server", "tei"].includes(recipe.name) ? null : true;
}

export function commandOf(recipe, { slug, url, model, graph = "" }) {
  const words = ["orrery", "model", "add", recipe.name];
  if (slug && slug !== recipe.name) words.push("--slug", quoted(slug));
  if (url && recipe.url) words.push("--url", quoted(url));
  if (model && needsModel(recipe, url) !== false) words.push("--model", quoted(model));
  if (recipe.graph) words.push("--graph", quoted(graph));
  return words.join(" ");
}

export function AddModel({ onClose }) {
  const [name, setName] = useState(RECIPES[0].name);
  const [slug, setSlug] = useState("");
  const [url, setUrl] = useState("");
  const [model, setModel] = useState("");
  const [graph, setGraph] = useState("");
  const recipe = RECIPES.find((one) => one.name === name) ?? RECIPES[0];
  const needs = needsModel(recipe, url);
  const command = commandOf(recipe, { slug, url, model, graph });
  const isComplete = (needs !== true || model !== "") && (!recipe.graph || graph !== "");
  const hint = recipe.starts ? `Leave it empty, and Orrery starts the server. Example: ${recipe.url}` : `Without it: ${recipe.url}`;
  return html`<${Dialog} title="Add a model" wide=${true} onClose=${onClose}><form class="stack" onSubmit=${(event) => event.preventDefault()} autocomplete="off">
    <${Field} label="Recipe" hint=${recipe.about}>${(field) => html`<select ...${field} data-first="" value=${name} onChange=${(event) => setName(event.currentTarget.value)}>${RECIPES.map((one) => html`<option key=${one.name}>${one.name}</option>`)}</select>`}</${Field}>
    <${Input} label="Slug" optional=${true} maxlength="200" pattern="[a-zA-Z0-9._:\\-\\/]+" hint="The name by which clients call the model." value=${slug} onValue=${setSlug} />
    ${recipe.url ? html`<${Input} label="URL of a server that runs already" optional=${true} type="url" hint=${hint} value=${url} onValue=${setUrl} />` : null}
    ${needs === false ? null : html`<${Input} label="Model" optional=${needs === null} hint=${url ? NAME : recipe.model} value=${model} onValue=${setModel} />`}
    ${recipe.graph ? html`<${Input} label="Graph" hint="The path of the file that ComfyUI exports with File, Export (API)." value=${graph} onValue=${setGraph} />` : null}
    ${
      isComplete
        ? html`<div><p>Run this command on the machine, as the person who runs it. The model then appears in the list.</p>
      <pre class="code wrap" tabindex="0" aria-label="Command"><code>${command}</code></pre></div>`
        : html`<p class="quiet">Fill in the ${recipe.graph ? "graph" : "model"} to see the command.</p>`
    }
    <div class="actions end"><${Button} onClick=${onClose}>Close</${Button}>${isComplete ? html`<${Copy} text=${command} label="Copy the command" />` : null}</div></form></${Dialog}>`;
}
