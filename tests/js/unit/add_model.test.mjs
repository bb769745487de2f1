// Tests of the command that adds a model, from static/screens/add_model.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { RECIPES, commandOf, needsModel } from "../../../static/screens/add_model.js";

const recipe = (name) => RECIPES.find((one) => one.name === name);

test("the command has only the options that the recipe takes", () => {
  const check = (name, slug, url, model, expected) =>
    assert.equal(commandOf(recipe(name), { slug, url, model }), `orrery model add ${expected}`);
  check("ollama", "", "", "llama3.2:3b", "ollama --model llama3.2:3b");
  check("ollama", "ollama", "http://box/v1", "m", "ollama --url http://box/v1 --model m");
  check("piper", "voice", "", "/v/en.onnx", "piper --slug voice --model /v/en.onnx");
  check("piper", "", "http://box:5000", "left over", "piper --url http://box:5000");
  check("diffusers", "", "http://left-over", "a/b", "diffusers --model a/b");
});

test("a graph is named by its file", () => {
  const command = commandOf(recipe("comfyui"), { slug: "", url: "", model: "left over", graph: "/g.json" });
  assert.equal(command, "orrery model add comfyui --graph /g.json");
});

test("values are quoted for the shell", () => {
  const command = commandOf(recipe("llama-server"), { slug: "", url: "", model: "/my models/it's $(x).gguf" });
  assert.equal(command, "orrery model add llama-server --model '/my models/it'\\''s $(x).gguf'");
});

test("a model is needed where the server has several or is started", () => {
  assert.equal(needsModel(recipe("llama-server"), ""), true);
  assert.equal(needsModel(recipe("llama-server"), "http://h"), null);
  assert.equal(needsModel(recipe("sd-server"), "http://h"), false);
  assert.equal(needsModel(recipe("speaches"), ""), true);
});
