// Models: the catalog, and the playground for one model: the input as a form, as JSON and as code, the run with live
// events, and the output.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import {
  Button,
  Copy,
  Empty,
  Field,
  Link,
  Loaded,
  Lost,
  Notice,
  Page,
  Refusal,
  Status,
  Text,
  ask,
  count,
  duration,
  money,
  sentence,
  session,
  useLoad,
} from "../core.js";
import { SchemaForm } from "../form.js";
import { JsonEditor } from "../json.js";
import { eventsOf, follow } from "../live.js";
import { place, setQuery } from "../location.js";
import { LongText, Output, Tree } from "../output.js";
import { example, initial } from "../schema.js";
import { AddModel } from "./add_model.js";

const API = "/api/base/v1";
const FINAL = ["success", "error", "cancelled"];
// Number of models shown at once.
const TILES = 60;

export function List() {
  const name = place.value.query.get("q") ?? "";
  const models = useLoad(
    async (signal) => {
      const of = (group) => ask("GET", `${API}/models?limit=500&group=${group}&name=${encodeURIComponent(name)}`, undefined, { signal });
      const [own, utilities] = await Promise.all([of("models"), of("utilities")]);
      return { own, utilities };
    },
    [name],
  );
  const [isAdding, setAdding] = useState(false);
  const add = html`<${Button} icon="plus" needs="editor" onClick=${() => setAdding(true)}>Add a model</${Button}>`;
  return html`<${Page} title="Models" intro="Everything that this machine can run. Open a model to try it with a form." actions=${add}>
    <div class="filters"><${Field} label="Search">${(field) => html`<input ...${field} type="search" value=${name} onInput=${(event) => setQuery({ q: event.currentTarget.value })} />`}</${Field}></div>
    <${Loaded} of=${models}>${({ own, utilities }) => {
      if (name && !own.length && !utilities.length)
        return html`<${Empty} icon="box" title="No model has this name"><p>Try a part of the name.</p></${Empty}>`;
      return html`${
        own.length || name
          ? html`<${Tiles} key=${name} all=${own} heading="h2" />`
          : html`<${Empty} icon="box" title="No models of your own yet">
      <p>Models are files in the models folder of this machine. The person who runs it adds them with one command, which <em>Add a model</em> composes.</p></${Empty}>`
      }
      ${
        utilities.length
          ? html`<section><h2>Utilities</h2><p class="quiet">Small tools for texts, JSON and images that every installation has.</p>
      <${Tiles} key=${name} all=${utilities} heading="h3" /></section>`
          : null
      }`;
    }}</${Loaded}>
    ${isAdding ? html`<${AddModel} onClose=${() => setAdding(false)} />` : null}</${Page}>`;
}

function Tiles({ all, heading }) {
  const [most, setMost] = useState(TILES);
  return html`<div class="cards">${all.slice(0, most).map(
    (
      model,
    ) => html`<${Link} key=${model.slug} to=${`/app/models/${model.slug}`} class="tile"><${heading}><${Text}>${model.title}</${Text}></${heading}>
        <p class="mono">${model.slug}</p><p>${OUTPUTS[model.output_type] ?? model.output_type}${model.cost ? html` · ${model.cost.estimate}` : null}</p></${Link}>`,
  )}</div>
    ${all.length > most ? html`<div class="actions"><${Button} icon="chevron-down" onClick=${() => setMost(most + TILES)}>Show more of ${count(all.length)}</${Button}></div>` : null}`;
}

const OUTPUTS = {
  string: "Returns text",
  array: "Returns a list",
  object: "Returns an object",
  number: "Returns a number",
  boolean: "Returns true or false",
  image: "Returns an image",
  audio: "Returns audio",
  video: "Returns a video",
  file: "Returns a file",
};

export function Detail({ id }) {
  const model = useLoad(
    (signal) => ask("GET", `${API}/models/${id.split("/").map(encodeURIComponent).join("/")}`, undefined, { signal }),
    [id],
  );
  if (!model.data) return html`<${Page} title=${id}><${Loaded} of=${model}>${() => null}</${Loaded}></${Page}>`;
  return html`<${Playground} key=${id} model=${model.data} />`;
}

function stored(key, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function Playground({ model }) {
  const key = `input:${model.slug}`;
  const start = () => example(model.request_schema) ?? initial(model.request_schema, model.request_schema) ?? {};
  const [input, setInput] = useState(() => stored(key, null) ?? start());
  const [isValid, setValid] = useState(true);
  const [refusal, setRefusal] = useState(null);
  const [isSending, setSending] = useState(false);
  const [run, setRun] = useState(null);
  const [earlier, setEarlier] = useState(null);
  const form = useRef(null);
  const tab = place.value.query.get("tab") ?? "form";
  const keep = (value) => {
    setInput(value);
    try {
      sessionStorage.setItem(key, JSON.stringify(value));
    } catch {
      /* Kept only while the page is open. */
    }
  };
  const submit = async (event) => {
    event?.preventDefault();
    if (isSending || !isValid) return;
    setSending(true);
    setRefusal(null);
    try {
      const made = await ask("POST", `${API}/prediction`, { model: model.slug, version: model.version, input: input ?? {} });
      if (run?.record?.output !== undefined) setEarlier(run.record);
      setRun({ id: made.predictionID });
    } catch (error) {
      setRefusal(error);
      if (error instanceof Refusal) {
        const wrong = Object.keys(error.fields)[0]?.split("/").pop();
        setTimeout(() => form.current?.querySelector(`[name="${CSS.escape(wrong ?? "")}"]`)?.focus(), 0);
      }
    } finally {
      setSending(false);
    }
  };
  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const tabs = [
    ["form", "Form"],
    ["json", "JSON"],
    ["code", "API"],
    ["schema", "Schema"],
  ];
  return html`<${Page} title=${model.title} wide=${true} intro=${html`<span class="mono">${model.slug}</span>${model.cost ? html` · ${model.cost.estimate}` : null}`}
    actions=${html`<${Link} to="/app/models" class="button plain">All models</${Link}>`}>
    <div class="panels"><section aria-label="Input" onKeyDown=${onKey}>
      <${Tabs} tabs=${tabs} chosen=${tab} label="Input" onChoose=${(one) => setQuery({ tab: one === "form" ? "" : one })} />
      <form ref=${form} class="stack" onSubmit=${submit} novalidate=${tab !== "form"}>
        ${refusal ? html`<${Notice} kind="error">${sentence(refusal)}</${Notice}>` : null}
        ${tab === "form" ? html`<${SchemaForm} schema=${model.request_schema} value=${input} onValue=${keep} errors=${refusal?.fields ?? {}} />` : null}
        ${tab === "json" ? html`<${JsonEditor} label="The input as JSON" hint="What you change here changes the form too." mayBeEmpty=${true} value=${input} onValue=${(value) => keep(value ?? {})} onValid=${setValid} />` : null}
        ${tab === "code" ? html`<${Code} model=${model} input=${input} />` : null}
        ${tab === "schema" ? html`<div class="json card pad"><${Tree} value=${model.request_schema} open=${true} /></div>` : null}
        ${
          tab === "form" || tab === "json"
            ? html`<div class="actions"><${Button} kind="primary" type="submit" icon="play" needs="operator" busy=${isSending} disabled=${!isValid} title="Ctrl+Enter">Run</${Button}>
          <${Button} onClick=${() => {
            keep(start());
            setRefusal(null);
          }}>Start over</${Button}></div>`
            : null
        }</form></section>
      <section aria-label="Output"><h2>Output</h2>${
        run
          ? html`<${Run} key=${run.id} id=${run.id} type=${model.output_type} onEnd=${(record) => setRun({ id: run.id, record })} />`
          : html`<p class="quiet">The output appears here after a run.</p>`
      }
        ${
          earlier
            ? html`<details class="earlier"><summary>The previous run, for comparison</summary><p class="quiet"><${Status} of=${earlier.status} /> ${duration(earlier.metrics.predict_time ?? NaN)}, ${money(earlier.metrics.cost)}</p>
          <${Output} value=${earlier.output} /><h3>Its input</h3><div class="json card pad"><${Tree} value=${earlier.input} open=${true} /></div></details>`
            : null
        }</section></div></${Page}>`;
}

export function Tabs({ tabs, chosen, onChoose, label }) {
  const move = (event) => {
    const at = tabs.findIndex(([name]) => name === chosen);
    const next = event.key === "ArrowRight" ? at + 1 : event.key === "ArrowLeft" ? at - 1 : null;
    if (next === null) return;
    event.preventDefault();
    const [name] = tabs[(next + tabs.length) % tabs.length];
    onChoose(name);
    const { parentElement } = event.currentTarget;
    setTimeout(() => parentElement?.querySelector("[aria-selected=true]")?.focus(), 0);
  };
  return html`<div class="tabs" role="tablist" aria-label=${label}>${tabs.map(
    ([name, word]) => html`<button type="button" role="tab" key=${name}
    aria-selected=${name === chosen ? "true" : "false"} tabindex=${name === chosen ? 0 : -1} onClick=${() => onChoose(name)} onKeyDown=${move}>${word}</button>`,
  )}</div>`;
}

// A run in progress: status, log and partial output as they arrive, then the record.
export function Run({ id, type, onEnd }) {
  const [live, setLive] = useState({ status: "created", log: [], parts: [], record: null });
  const [error, setError] = useState(null);
  const [seconds, setSeconds] = useState(0);
  const [isCancelling, setCancelling] = useState(false);
  const [lost, setLost] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    const begun = Date.now();
    const clock = setInterval(() => setSeconds((Date.now() - begun) / 1000), 100);
    const state = (status) => (status === "created" ? "created" : "processing");
    const on = {
      begin: () => setLive((now) => ({ ...now, log: [], parts: [] })),
      status: ({ status }) => setLive((now) => ({ ...now, status: state(status) })),
      log: ({ text }) => setLive((now) => ({ ...now, log: [...now.log.slice(-999), text] })),
      output: ({ part }) => setLive((now) => ({ ...now, parts: [...now.parts, part] })),
      lost: setLost,
    };
    const look = async (mayHold, signal) => {
      const record = mayHold
        ? await eventsOf(`${API}/prediction/${id}`, on, signal)
        : await ask("GET", `${API}/prediction/${id}`, undefined, { signal });
      if (!FINAL.includes(record.status)) {
        setLive((now) => ({ ...now, status: state(record.status) }));
        return false;
      }
      setLive((now) => ({ ...now, status: record.status, record }));
      onEnd?.(record);
      return true;
    };
    follow(look, { signal: abort.signal, onLost: setLost })
      .then(() => setLost(null), setError)
      .finally(() => clearInterval(clock));
    return () => {
      abort.abort();
      clearInterval(clock);
    };
  }, [id]);
  const { record } = live;
  const text = live.parts.every((part) => typeof part === "string") ? live.parts.join("") : null;
  const cancel = async () => {
    setCancelling(true);
    try {
      await ask("POST", `${API}/prediction/${id}/cancel`, {});
    } catch (refused) {
      setError(refused);
    } finally {
      setCancelling(false);
    }
  };
  return html`<div class="stack"><div class="run-head" role="status"><${Status} of=${live.status} />
      <span class="quiet">${record ? html`${record.metrics.predict_time === null ? "" : `${duration(record.metrics.predict_time)}, `}${money(record.metrics.cost)}` : duration(seconds)}</span>
      ${record ? html`<${Link} to=${`/app/runs/${id}`}>Open the run</${Link}>` : html`<${Button} icon="square" needs="operator" busy=${isCancelling} onClick=${cancel}>Cancel</${Button}>`}</div>
    ${error ? html`<${Notice} kind="error">${sentence(error)}</${Notice}>` : null}
    ${lost ? html`<${Lost} />` : null}
    ${record?.error ? html`<${Notice} kind="error"><strong>${CLASSES[record.error_classification] ?? "It failed."}</strong> <${Text}>${record.error}</${Text}></${Notice}>` : null}
    ${
      record
        ? record.status === "success"
          ? html`<${Output} value=${record.output} type=${type} />`
          : null
        : text !== null && text !== ""
          ? html`<pre class="code wrap"><bdi>${text}</bdi></pre>`
          : live.parts.length
            ? html`<${Output} value=${live.parts} />`
            : null
    }
    ${live.log.length || record?.logs ? html`<details open=${!record}><summary>Log</summary><${LongText} text=${record?.logs ?? live.log.join("\n")} /></details>` : null}</div>`;
}

export const CLASSES = {
  content_moderation: "The model refused the content.",
  execution_timeout: "It took too long.",
  invalid_user_input: "The model refused the input.",
  invalid_model_config: "The model is misconfigured.",
  provider_auth: "The model's server refused the credentials.",
  provider_error: "The model's server failed.",
  provider_rate_limit: "The model's server is overloaded.",
  provider_unavailable: "The model's server does not answer.",
  internal_error: "The service failed.",
  unknown: "It failed.",
};

function Code({ model, input }) {
  const language = place.value.query.get("code") ?? "curl";
  const base = session.value.hosts?.find((host) => host.role === "base")?.url ?? "";
  const body = useMemo(() => JSON.stringify({ model: model.slug, version: model.version, input }, null, 2), [model, input]);
  const quoted = `'${body.replaceAll("'", "'\\''")}'`;
  const python = JSON.stringify(body);
  const texts = {
    curl: `curl -s ${base}/v1/prediction/run \\\n  -H "X-API-Key: $ORRERY_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d ${quoted}`,
    python: `import json\nimport os\nimport urllib.request\n\nrequest = urllib.request.Request(\n    "${base}/v1/prediction/run",\n    data=${python}.encode(),\n    headers={"X-API-Key": os.environ["ORRERY_KEY"], "Content-Type": "application/json"},\n)\nwith urllib.request.urlopen(request) as answer:\n    print(json.load(answer)["output"])`,
    js: `const answer = await fetch("${base}/v1/prediction/run", {\n  method: "POST",\n  headers: { "X-API-Key": process.env.ORRERY_KEY, "Content-Type": "application/json" },\n  body: JSON.stringify(${body.replaceAll("\n", "\n  ")}),\n});\nconsole.log((await answer.json()).output);`,
  };
  const names = [
    ["curl", "curl"],
    ["python", "Python"],
    ["js", "JavaScript"],
  ];
  return html`<${Tabs} tabs=${names} chosen=${texts[language] ? language : "curl"} label="Language" onChoose=${(one) => setQuery({ code: one === "curl" ? "" : one })} />
    <pre class="code" tabindex="0"><code>${texts[language] ?? texts.curl}</code></pre>
    <div class="actions"><${Copy} text=${texts[language] ?? texts.curl} /><${Link} to="/app/keys">API keys</${Link}></div>
    <p class="hint">The program reads its key from the environment variable ORRERY_KEY.</p>`;
}
