// The agent in the chat: its answers and tool calls as they happen, the media it creates, and its stored session. An
// exchange continues even if this page is closed; after a reload, the page follows it again.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Empty,
  Field,
  Icon,
  Link,
  Loaded,
  Notice,
  Refusal,
  Text,
  ask,
  duration,
  may,
  money,
  request,
  sentence,
  session as who,
  useLoad,
} from "../core.js";
import { place, setQuery } from "../location.js";
import { Output, Tree } from "../output.js";
import { eventsOf } from "../stream.js";

const API = "/api/agent";
const BEHAVIORS = [
  ["agent", "Do it"],
  ["plan", "Only plan, with the cost"],
  ["ask", "Only read and answer"],
];

const keyOf = (session) => `agent:${session}`;
function stored(session) {
  try {
    return JSON.parse(sessionStorage.getItem(keyOf(session)));
  } catch {
    return null;
  }
}
function store(session, value) {
  try {
    if (value) sessionStorage.setItem(keyOf(session), JSON.stringify(value));
    else sessionStorage.removeItem(keyOf(session));
  } catch {
    /* Kept only while the page is open. */
  }
}

export function Agent() {
  const named = place.value.query.get("session");
  const [fresh] = useState(
    () => `chat-${new Date().toISOString().slice(0, 16).replace("T", "-").replace(":", "")}-${Math.random().toString(36).slice(2, 6)}`,
  );
  const sessions = useLoad((signal) => ask("GET", `${API}/sessions`, undefined, { signal }), []);
  const session = named ?? fresh;
  // The draft is kept when another session is chosen.
  const draft = useState("");
  const all = sessions.data?.sessions ?? [];
  const hasModel = who.value.agent !== false;
  const without = hasModel
    ? may("editor")
      ? null
      : html`<${Notice}>The agent can change workflows. To ask it, ask the Owner for the role Editor.</${Notice}>`
    : html`<${Empty} icon="info" title="The agent has no model yet"><p>The person who runs this machine chooses one: <code>agent.model</code> in the configuration. Then the agent can be asked here.</p></${Empty}>`;
  if (!hasModel && !named) return without;
  return html`<div class="filters"><${Field} label="Session">${(
    field,
  ) => html`<select ...${field} value=${named ?? ""} onChange=${(event) => setQuery({ session: event.currentTarget.value }, {})}>
      <option value="">A new one</option>${[...new Set([...(named ? [named] : []), ...all])].map((name) => html`<option value=${name}>${name}</option>`)}</select>`}</${Field}></div>
    <${Session} key=${session} session=${session} draft=${draft} without=${without} onBegin=${() => {
      if (!named) setQuery({ session });
    }} onClear=${() => {
      setQuery({ session: "" });
      sessions.reload();
    }} />`;
}

function Session({ session, ...rest }) {
  const memory = useLoad(
    (signal) => ask("GET", `${API}/memory?session_id=${encodeURIComponent(session)}`, undefined, { signal }),
    [session],
  );
  return html`<${Loaded} of=${memory}>${(data) => html`<${Talk} session=${session} memory=${data} ...${rest} />`}</${Loaded}>`;
}

// `without`: shown in place of the message field if the agent has no model.
function Talk({ session, memory, draft: [draft, setDraft], without, onBegin, onClear }) {
  const [turns, setTurns] = useState(() =>
    memory.conversation_history.map((one) => ({
      prompt: one.user_prompt,
      answer: one.chatbot_response,
      media: one.generated_media_urls,
      at: one.timestamp,
    })),
  );
  const [live, setLive] = useState(null);
  const [behavior, setBehavior] = useState("agent");
  const [isEco, setEco] = useState(false);
  const [error, setError] = useState(null);
  const [isClearing, setClearing] = useState(false);
  const end = useRef(null);
  const closing = useRef(new AbortController());
  useEffect(() => {
    if (turns.length || live) end.current?.scrollIntoView({ block: "end" });
  }, [turns, live]);
  // Reads the events of an exchange until it ends; the exchange itself continues even without a reader.
  const follow = async (task, prompt, reply) => {
    let turn = { prompt, events: [], task };
    setLive(turn);
    for await (const { data } of eventsOf(reply)) {
      if (data === "[DONE]") break;
      turn = { ...turn, events: [...turn.events, JSON.parse(data)] };
      setLive(turn);
    }
    store(session, null);
    setTurns((all) => [...all, turn]);
    setLive(null);
  };
  const guard =
    (run) =>
    async (...given) => {
      try {
        await run(...given);
      } catch (failure) {
        if (failure.name !== "AbortError") {
          setError(failure);
          setLive(null);
        }
      }
    };
  useEffect(() => {
    const running = stored(session);
    // Completed exchanges are already part of the memory.
    if (running && running.total === memory.total_exchanges) {
      guard(async () =>
        follow(
          running.task,
          running.prompt,
          await request("GET", `${API}/v1/tasks/${running.task}/events`, undefined, { signal: closing.current.signal }),
        ),
      )();
    } else store(session, null);
    return () => closing.current.abort();
  }, []);
  const send = guard(async (message) => {
    setError(null);
    setDraft("");
    setLive({ prompt: message, events: [] });
    const body = { message, session_id: session, behavior, ...(isEco ? { mode: "eco" } : {}) };
    let reply;
    try {
      reply = await request("POST", `${API}/chat`, body, { signal: closing.current.signal });
    } catch (failure) {
      setDraft(message);
      throw failure;
    }
    const task = reply.headers.get("x-task-id");
    store(session, { task, prompt: message, total: memory.total_exchanges + turns.length - memory.conversation_history.length });
    onBegin();
    await follow(task, message, reply);
  });
  const stop = guard(async () => {
    if (live?.task) await ask("POST", `${API}/v1/tasks/${live.task}/cancel`, {});
  });
  const submit = (event) => {
    event?.preventDefault();
    if (draft.trim() && !live) send(draft);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  const question = turns.at(-1)?.events?.findLast((one) => one.type === "clarification_needed");
  return html`<div class="talk" role="log" aria-label="Conversation" aria-busy=${Boolean(live)}>
      ${memory.summary && turns.length ? html`<details class="quiet"><summary>The model's summary of older messages</summary><p class="said"><${Text}>${memory.summary}</${Text}></p></details>` : null}
      ${turns.map((turn, at) => html`<${Turn} key=${at} of=${turn} />`)}${live ? html`<${Turn} of=${live} isLive=${true} />` : null}
      ${!turns.length && !live ? html`<p class="quiet">Ask for something, such as “Make a QR code of my address”. The agent finds the model, runs it and shows the result. The service remembers the session.</p>` : null}<div ref=${end}></div></div>
    ${error ? html`<${Notice} kind="error">${sentence(error)}</${Notice}>` : null}
    ${question && !live && Array.isArray(question.options) && question.options.length ? html`<div class="actions">${question.options.map((one) => html`<${Button} key=${String(one)} onClick=${() => send(String(one))}><${Text}>${String(one)}</${Text}></${Button}>`)}</div>` : null}
    ${
      without ??
      html`<form class="compose" onSubmit=${submit}><textarea rows="3" aria-label="Your message" placeholder="What should be done?" value=${draft} onInput=${(event) => setDraft(event.currentTarget.value)} onKeyDown=${onKey}></textarea>
      ${live ? html`<${Button} icon="square" needs="operator" disabled=${!live.task} onClick=${stop}>Stop</${Button}>` : html`<${Button} kind="primary" icon="send" type="submit" disabled=${!draft.trim()}>Send</${Button}>`}</form>`
    }
    <div class="filters">${
      without
        ? null
        : html`<${Field} label="What it may do">${(field) => html`<select ...${field} value=${behavior} onChange=${(event) => setBehavior(event.currentTarget.value)}>${BEHAVIORS.map(([value, word]) => html`<option value=${value}>${word}</option>`)}</select>`}</${Field}>
      <label class="box tall"><input type="checkbox" checked=${isEco} onChange=${(event) => setEco(event.currentTarget.checked)} /> The cheaper model</label>`
    }
      ${turns.length ? html`<${Button} icon="trash-2" needs="editor" disabled=${Boolean(live)} onClick=${() => setClearing(true)}>Forget the session</${Button}>` : null}</div>
    ${
      isClearing
        ? html`<${Confirm} title="Forget this session?" action="Forget it" onClose=${() => setClearing(false)} onDo=${async () => {
            await ask("DELETE", `${API}/memory?session_id=${encodeURIComponent(session)}`);
            store(session, null);
            onClear();
          }}>
      <p>The service deletes the conversation. Everything that the agent has created is kept.</p></${Confirm}>`
        : null
    }`;
}

function Turn({ of, isLive }) {
  const end = of.events?.findLast((one) => one.type === "complete");
  return html`<article class="message user"><h2 class="hidden">You</h2><p class="said"><${Text}>${of.prompt}</${Text}></p></article>
    <article class="turn"><h2 class="hidden">The agent</h2>
      ${of.events ? of.events.map((event, at) => html`<${Act} key=${at} of=${event} />`) : html`${of.answer ? html`<p class="said"><${Text}>${of.answer}</${Text}></p>` : html`<p class="quiet">It was stopped.</p>`}${(of.media ?? []).map((url) => html`<${Output} key=${url} value=${url} />`)}`}
      ${isLive ? html`<p class="act" role="status"><span class="status active"><${Icon} name="loader" /> working</span></p>` : null}
      ${end ? html`<p class="quiet note"><${Text}>${end.model ?? ""}</${Text}>, ${duration(end.total_time_ms / 1000)}, ${money(end.cost)} <${Link} to=${`/app/runs/${end.task_id}?type=agent`}>in Runs</${Link}></p>` : null}</article>`;
}

// Classes of errors after which another attempt may succeed.
const PASSING = ["provider_error", "provider_rate_limit", "provider_unavailable", "execution_timeout"];
const faultOf = ({ message, details }) =>
  sentence(new Refusal(PASSING.includes(details?.error_classification) ? 503 : 400, String(message)));

const act = (icon, children) => html`<div class="act"><${Icon} name=${icon} />${children}</div>`;

// One event of an exchange.
function Act({ of }) {
  const workflow = of.workflow_id
    ? html`<${Link} to=${`/app/workflows/${of.workflow_id}`}><${Text}>${of.workflow_name ?? "the workflow"}</${Text}></${Link}>`
    : "the workflow";
  switch (of.type) {
    case "text_response":
      return html`<p class="said quiet"><${Text}>${of.content}</${Text}></p>`;
    case "message":
      return html`<p class="said"><${Text}>${of.content}</${Text}></p>`;
    case "tool_call":
      return act(
        "wrench",
        html`<details><summary>Uses <code><${Text}>${of.name}</${Text}></code></summary><div class="json"><${Tree} value=${of.input} open=${true} /></div></details>`,
      );
    case "generation_response":
      return html`${(Array.isArray(of.generations) && of.generations.length ? of.generations.map((one) => one.url ?? one) : [of.url]).filter((url) => typeof url === "string").map((url) => html`<${Output} key=${url} value=${url} />`)}`;
    case "status":
      return act("info", html`<span class="quiet"><${Text}>${of.message}</${Text}></span>`);
    case "thinking_delta":
      return html`<details class="quiet"><summary>Thinks</summary><p class="said"><${Text}>${of.content}</${Text}></p></details>`;
    case "progress":
      return act(
        "loader",
        html`<span><${Text}>${of.message}</${Text}>${typeof of.percent === "number" ? html` <progress max="100" value=${of.percent} aria-label="Progress">${of.percent} %</progress>` : null}</span>`,
      );
    case "execution_progress":
      return of.step_id
        ? act(
            of.step_status === "completed" ? "check" : "x",
            html`<span>Step ${of.completed_steps} of ${of.total_steps}: <${Text}>${of.step_id}</${Text}> <${Text}>${of.step_status}</${Text}></span>`,
          )
        : null;
    case "workflow_fetched":
      return act("workflow", html`<span>Looks at ${workflow}</span>`);
    case "workflow_created":
      return act("workflow", html`<span>Created ${workflow}</span>`);
    case "workflow_updated":
      return act("workflow", html`<span>Changed ${workflow}</span>`);
    case "execution_started":
      return act(
        "play",
        html`<span>Runs ${workflow}: <${Link} to=${`/app/runs/${of.execution_id}?type=workflow`}>follow it</${Link}></span>`,
      );
    case "execution_completed":
      return act(
        "check",
        html`<span><${Link} to=${`/app/runs/${of.execution_id}?type=workflow`}>The run</${Link}> has ended: <${Text}>${String(of.status)}</${Text}></span>`,
      );
    case "clarification_needed":
      return html`<p class="said"><${Text}>${of.question}</${Text}></p>${of.context ? html`<p class="quiet"><${Text}>${String(of.context)}</${Text}></p>` : null}`;
    case "error":
      return html`<${Notice} kind=${of.error_code === "Cancelled" ? "info" : "error"}><${Text}>${of.error_code === "Cancelled" ? "It was stopped." : faultOf(of)}</${Text}></${Notice}>`;
    default:
      return null;
  }
}
