// Chat with a chat model: answers are streamed, can be stopped at any time, and are kept in this
// tab until the tab is closed.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import {
  Button,
  Empty,
  Field,
  IconButton,
  Link,
  Loaded,
  Notice,
  Page,
  Refusal,
  Text,
  ask,
  may,
  money,
  request,
  sentence,
  useLoad,
} from "../core.js";
import { place, setQuery } from "../location.js";
import { Tree } from "../output.js";
import { Agent } from "./agent.js";
import { Tabs } from "./models.js";
import { eventsOf } from "../stream.js";
import { Toast } from "../values.js";

const KEY = "chat";
// Maximum number of images per message, and the longer side in pixels of images as sent to a model and as kept in this
// tab.
const IMAGES_MAX = 4;
const SIDE_MAX = 1024;

// Scales down an image file; returns a data URL.
async function shrunk(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Refusal(415, `“${file.name || "This"}” is not an image that the browser can read`);
  }
  const ratio = Math.min(1, SIDE_MAX / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * ratio));
  canvas.height = Math.max(1, Math.round(bitmap.height * ratio));
  const brush = canvas.getContext("2d");
  brush.fillStyle = "white";
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.85);
}

// Returns a message in the form sent to the model: as text, or as parts if it has images.
const sent = ({ role, content, images }) => ({
  role,
  content: images?.length
    ? [...(content ? [{ type: "text", text: content }] : []), ...images.map((url) => ({ type: "image_url", image_url: { url } }))]
    : content,
});

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

export function List() {
  const withAgent = place.value.query.get("with") === "agent";
  return html`<${Page} title="Chat" intro=${withAgent ? "The agent uses the models and workflows of this machine for you, and remembers the session." : "Chat with a model of this machine or of its upstream."}>
    <${Tabs} tabs=${[
      ["model", "A model"],
      ["agent", "The agent"],
    ]} chosen=${withAgent ? "agent" : "model"} label="With whom" onChoose=${(one) => setQuery({ with: one === "agent" ? one : "", session: "" })} />
    ${withAgent ? html`<${Agent} />` : may("operator") ? html`<${WithModel} />` : html`<${Notice}>To chat with a model, ask the Owner for the role Operator.</${Notice}>`}</${Page}>`;
}

function WithModel() {
  const models = useLoad((signal) => ask("GET", "/api/base/v1/llm-router/model-catalog", undefined, { signal }), []);
  return html`<${Loaded} of=${models} empty=${(all) =>
    all.data.some(isChat)
      ? null
      : html`<${Empty} icon="message-square" title="There is no chat model yet">
    <p>A chat model is a model of this machine of the kind “chat”, or a model of a configured upstream. The person who runs this machine can set one up.</p>
    <p><${Link} to="/app/models">Look at the models</${Link}></p></${Empty}>`}>${(all) => html`<${Conversation} models=${all.data.filter(isChat)} />`}</${Loaded}>`;
}

export const Detail = List;

const isChat = (model) => model.kind === null || model.kind === "chat";

// Adds a chunk of the stream to the answer so far.
function grown(message, chunk) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  const next = { ...message, content: message.content + (typeof delta.content === "string" ? delta.content : "") };
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (typeof thought === "string") next.thought = (message.thought ?? "") + thought;
  for (const call of delta.tool_calls ?? []) {
    const calls = [...(next.tools ?? [])];
    const at = call.index ?? calls.length;
    const known = calls[at] ?? { name: "", input: "" };
    calls[at] = { name: known.name + (call.function?.name ?? ""), input: known.input + (call.function?.arguments ?? "") };
    next.tools = calls;
  }
  if (chunk.usage) next.usage = chunk.usage;
  return next;
}

// Returns the failure described in a chunk. Some services already name the model in the failure.
function failureOf({ message }) {
  const text = typeof message === "string" ? message : "it gave no reason";
  return /^the model\b/i.test(text) ? text : `The model failed: ${text}`;
}

function Conversation({ models }) {
  const [saved] = useState(stored);
  const [model, setModel] = useState(models.some((one) => one.id === saved.model) ? saved.model : models[0].id);
  const [system, setSystem] = useState(saved.system ?? "");
  // An answer interrupted by a reload keeps the part received so far.
  const [messages, setMessages] = useState(() =>
    (saved.messages ?? []).map(({ live, ...one }) => (live ? { ...one, stopped: true } : one)),
  );
  const [draft, setDraft] = useState(saved.draft ?? "");
  const [images, setImages] = useState([]);
  const [error, setError] = useState(null);
  const [abort, setAbort] = useState(null);
  // The messages deleted by "New conversation", kept for undo until the next message.
  const [cleared, setCleared] = useState(null);
  const end = useRef(null);
  const chooser = useRef(null);
  const list = useRef(messages);
  list.current = messages;
  useEffect(() => {
    try {
      sessionStorage.setItem(KEY, JSON.stringify({ model, system, messages, draft }));
    } catch {
      /* Kept only while the page is open. */
    }
  }, [model, system, messages, draft]);
  useEffect(() => {
    if (messages.length) end.current?.scrollIntoView({ block: "end" });
  }, [messages]);
  const send = async (history) => {
    const control = new AbortController();
    setAbort(control);
    setError(null);
    setCleared(null);
    let answer = { role: "assistant", content: "", model, live: true };
    setMessages([...history, answer]);
    const body = {
      model,
      stream: true,
      stream_options: { include_usage: true },
      messages: [...(system.trim() ? [{ role: "system", content: system }] : []), ...history.map(sent)],
    };
    try {
      const reply = await request("POST", "/api/base/v1/chat/completions", body, { signal: control.signal });
      for await (const { data } of eventsOf(reply)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Refusal(502, failureOf(chunk.error));
        answer = grown(answer, chunk);
        setMessages([...history, answer]);
      }
      answer = { ...answer, live: undefined };
      setMessages([...history, answer]);
    } catch (failure) {
      const isStopped = failure.name === "AbortError";
      answer = { ...answer, live: undefined, stopped: isStopped || undefined };
      if (!isStopped) setError(failure);
      setMessages(answer.content || answer.thought || answer.tools ? [...history, answer] : history);
    } finally {
      setAbort(null);
    }
  };
  const submit = (event) => {
    event?.preventDefault();
    if (!(draft.trim() || images.length) || abort) return;
    const history = [...list.current, { role: "user", content: draft, ...(images.length ? { images } : {}) }];
    setDraft("");
    setImages([]);
    send(history);
  };
  const add = async (files) => {
    setError(null);
    try {
      const made = await Promise.all([...files].slice(0, IMAGES_MAX).map(shrunk));
      setImages((all) => [...all, ...made].slice(0, IMAGES_MAX));
    } catch (failure) {
      setError(failure);
    }
  };
  const given = (transfer, event) => {
    if (transfer?.files.length) {
      event.preventDefault();
      add(transfer.files);
    }
  };
  const again = () => {
    const last = list.current.findLastIndex((one) => one.role === "user");
    if (last >= 0) send(list.current.slice(0, last + 1));
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return html`<div class="filters"><${Field} label="Model">${(
    field,
  ) => html`<select ...${field} value=${model} onChange=${(event) => setModel(event.currentTarget.value)}>
      ${models.map((one) => html`<option value=${one.id}>${one.id}${one.status === "failing" ? " (does not answer)" : ""}</option>`)}</select>`}</${Field}>
      ${
        messages.length
          ? html`<${Button} icon="plus" disabled=${Boolean(abort)} onClick=${() => {
              setCleared(messages);
              setMessages([]);
              setError(null);
            }}>New conversation</${Button}>`
          : null
      }</div>
    <details open=${Boolean(saved.system)}><summary>Instructions for the model</summary><textarea rows="3" aria-label="Instructions for the model" value=${system} onInput=${(event) => setSystem(event.currentTarget.value)}></textarea></details>
    <div class="talk" role="log" aria-label="Conversation" aria-busy=${Boolean(abort)}>${
      messages.length
        ? messages.map((one, at) => html`<${Message} key=${at} of=${one} isLive=${Boolean(abort) && at === messages.length - 1} />`)
        : html`<p class="quiet">Write something below. The conversation stays in this tab until you close it.</p>`
    }<div ref=${end}></div></div>
    <div class="composer">${error ? html`<${Notice} kind="error" action=${error.status === 415 ? null : html`<${Button} onClick=${again}>Try again</${Button}>`}>${sentence(error)}</${Notice}>` : null}
    ${images.length ? html`<div class="attached">${images.map((url, at) => html`<figure key=${at}><img src=${url} alt=${`Image ${at + 1}`} /><${IconButton} icon="x" label=${`Remove image ${at + 1}`} onClick=${() => setImages(images.filter((_, index) => index !== at))} /></figure>`)}</div>` : null}
    <form class="compose" onSubmit=${submit}><textarea rows="3" aria-label="Your message" placeholder="Your message" value=${draft} onInput=${(event) => setDraft(event.currentTarget.value)} onKeyDown=${onKey}
        onPaste=${(event) => given(event.clipboardData, event)} onDrop=${(event) => given(event.dataTransfer, event)}></textarea>
      <input type="file" class="hidden" tabindex="-1" accept="image/*" multiple aria-label="Images for the message" ref=${chooser} onChange=${(
        event,
      ) => {
        add(event.currentTarget.files);
        event.currentTarget.value = "";
      }} />
      <div class="stack"><${Button} icon="upload" disabled=${images.length >= IMAGES_MAX} title="For models that accept images. You can also paste or drop them." onClick=${() => chooser.current.click()}>Image</${Button}>
      ${abort ? html`<${Button} icon="square" onClick=${() => abort.abort()}>Stop</${Button}>` : html`<${Button} kind="primary" icon="send" type="submit" disabled=${!(draft.trim() || images.length)}>Send</${Button}>`}</div></form>
    <p class="hint">Enter sends, Shift+Enter starts a new line.${!abort && messages.at(-1)?.role === "assistant" ? html` <button type="button" class="as-link" onClick=${again}>Answer again</button>` : null}</p></div>
    <${Toast} text=${cleared && "The conversation is deleted."} onUndo=${() => {
      setMessages(cleared);
      setCleared(null);
    }} />`;
}

function Message({ of, isLive }) {
  const { usage } = of;
  return html`<article class=${`message ${of.role}`}><h2 class="hidden">${of.role === "user" ? "You" : (of.model ?? "The model")}</h2>
    ${of.thought ? html`<details><summary>Thoughts</summary><p class="said quiet"><${Text}>${of.thought}</${Text}></p></details>` : null}
    ${of.images ? html`<div class="attached">${of.images.map((url, at) => html`<figure key=${at}><img src=${url} alt=${`Image ${at + 1} of the message`} /></figure>`)}</div>` : null}
    ${of.content ? html`<p class="said"><${Text}>${of.content}</${Text}></p>` : isLive ? html`<p class="quiet" role="status">…</p>` : null}
    ${(of.tools ?? []).filter(Boolean).map((call, at) => html`<details key=${at}><summary>Calls the tool <${Text}>${call.name}</${Text}></summary><div class="json"><${ToolInput} text=${call.input} /></div></details>`)}
    ${of.role === "assistant" && !isLive ? html`<p class="quiet note"><${Text}>${of.model}</${Text}>${usage ? `, ${usage.total_tokens ?? (usage.prompt_tokens ?? 0) + (usage.completion_tokens ?? 0)} tokens${Number.isFinite(usage.cost) ? `, ${money(usage.cost)}` : ""}` : ""}${of.stopped ? ", stopped" : ""}</p>` : null}</article>`;
}

function ToolInput({ text }) {
  try {
    return html`<${Tree} value=${JSON.parse(text)} open=${true} />`;
  } catch {
    return html`<${Text}>${text}</${Text}>`;
  }
}
