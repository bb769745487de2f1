// The editor of one workflow: its steps as a list with a map, as JSON, its versions, its runs.
// Nothing is saved automatically: Save creates the next version, unless somebody else has changed
// the workflow in the meantime. Unsaved changes stay in this tab until the tab is closed.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Button, Confirm, Dialog, Icon, Link, Loaded, Notice, Page, Refusal, Text, ask, count, may, sentence, useLoad } from "../core.js";
import { Tabs } from "../screens/models.js";
import { problemsByStep, walk } from "./flow.js";
import { RunTab } from "./run.js";
import { API, FLOWS, allModels, download, loadVersion, nextVersion, putVersion } from "./service.js";
import { StepsTab } from "./steps.js";
import { JsonEditor } from "../json.js";
import { go, place, setQuery } from "../location.js";
import { Compared, VersionsTab } from "./versions.js";
import { Toast, focusedText } from "../values.js";

// Milliseconds without a change after which the service validates the draft.
const PAUSE_MS = 500;
// Number of changes that can be undone.
const HISTORY_MAX = 100;

const stored = (key) => {
  try {
    return JSON.parse(sessionStorage.getItem(key));
  } catch {
    return null;
  }
};
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export function Editor({ id }) {
  const wanted = place.value.query.get("v");
  const all = useLoad(
    async (signal) => {
      const [workflow, models] = await Promise.all([
        ask("GET", `${API}/workflows/${encodeURIComponent(id)}`, undefined, { signal }),
        allModels(),
      ]);
      const named = workflow.versions.some((one) => one.version_id === wanted) ? wanted : workflow.latest_version_id;
      return { workflow, models, version: await loadVersion(id, named, signal) };
    },
    [id, wanted],
  );
  if (!all.data) return html`<${Page} title="Workflow"><${Loaded} of=${all}>${() => null}</${Loaded}></${Page}>`;
  const { workflow, models, version } = all.data;
  return html`<${Opened} key=${`${workflow.workflow_id} ${version.version_id} ${version.tag}`} workflow=${workflow} models=${models} version=${version} reload=${all.reload} isLoading=${all.loading} />`;
}

function Opened({ workflow, models, version, reload }) {
  const key = `workflow:${workflow.workflow_id}`;
  const [kept] = useState(() => {
    const found = stored(key);
    return found && found.version === version.version_id && !same(found.definition, version.definition) ? found : null;
  });
  // The revision that the draft is based on. For a restored draft, this is the revision from which it was started.
  const base = kept?.tag ?? version.tag;
  const [draft, setDraft] = useState(kept?.definition ?? version.definition);
  const [isRestored, setRestored] = useState(Boolean(kept));
  const [isJson, setJson] = useState(true);
  const [problems, setProblems] = useState([]);
  const [state, setState] = useState({ busy: null, error: null, done: null });
  const [conflict, setConflict] = useState(null);
  const [open, setOpen] = useState(null);
  const latest = useRef(draft);
  latest.current = draft;
  const isDirty = useMemo(() => !same(draft, version.definition), [draft, version]);
  const isLocked = workflow.locked || !may("editor");
  const isOldest = version.version_id !== workflow.latest_version_id;
  const tab = place.value.query.get("tab") ?? "steps";
  const steps = useMemo(() => walk(draft), [draft]);
  const byStep = useMemo(() => problemsByStep(problems, steps), [problems, steps]);
  useEffect(() => {
    try {
      if (isDirty) sessionStorage.setItem(key, JSON.stringify({ version: version.version_id, tag: base, definition: draft }));
      else sessionStorage.removeItem(key);
    } catch {
      /* Kept only while the page is open. */
    }
    if (!isDirty) {
      setProblems([]);
      return undefined;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => {
      ask("POST", "/workflows/check", { definition: draft, workflow: workflow.slug }, { signal: abort.signal }).then(
        (answer) => setProblems(answer.problems),
        (error) => {
          if (!abort.signal.aborted && error.status !== 0) setState((now) => ({ ...now, error }));
        },
      );
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [draft, isDirty]);
  const [past, setPast] = useState([]);
  const [future, setFuture] = useState([]);
  const [toast, setToast] = useState(null);
  // The text field in which the last change was made, if any, and the time of the change.
  const typed = useRef({ field: null, at: 0 });
  // Continuous typing in one field counts as one undo step.
  const edit = (next, said = null) => {
    const field = said ? null : focusedText();
    const continues = field && field === typed.current.field && Date.now() - typed.current.at < PAUSE_MS;
    typed.current = { field, at: Date.now() };
    if (!continues) setPast((all) => [...all, latest.current].slice(-HISTORY_MAX));
    setFuture([]);
    setToast(said);
    setDraft(next);
    setState((now) => (now.error || now.done ? { busy: null, error: null, done: null } : now));
  };
  const step = (from, setFrom, setTo) => {
    if (!from.length || isLocked) return;
    setFrom(from.slice(0, -1));
    setTo((all) => [...all, latest.current]);
    setToast(null);
    typed.current = { field: null, at: 0 };
    setDraft(from.at(-1));
  };
  const undo = () => step(past, setPast, setFuture);
  const redo = () => step(future, setFuture, setPast);
  useEffect(() => {
    const onUndo = (event) => {
      const key = event.key.toLowerCase();
      if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(key) || document.querySelector("dialog[open]")) return;
      // A text field has its own undo history for recently typed text, and so does the JSON editor.
      const field = focusedText();
      if (tab !== "steps" || (field && field === typed.current.field)) return;
      event.preventDefault();
      if (key === "y" || event.shiftKey) redo();
      else undo();
    };
    document.addEventListener("keydown", onUndo);
    return () => document.removeEventListener("keydown", onUndo);
  });
  const discard = () => {
    edit(version.definition, "The changes were discarded.");
    setRestored(false);
  };
  const opened = (next) => {
    try {
      sessionStorage.removeItem(key);
    } catch {
      /* There is nothing to remove. */
    }
    setQuery({ v: next });
    reload();
  };
  const act = async (busy, run) => {
    setState({ busy, error: null, done: null });
    try {
      const done = await run();
      setState({ busy: null, error: null, done: done ?? null });
    } catch (error) {
      setState({ busy: null, error, done: null });
      if (error instanceof Refusal && Array.isArray(error.details))
        setProblems(error.details.filter((one) => typeof one?.path === "string"));
    }
  };
  const save = (target, tag) =>
    act("save", async () => {
      const { locked, production, allowed_to_share } = target === version.version_id ? version : {};
      try {
        await putVersion(workflow.workflow_id, target, { definition: latest.current, locked, production, allowed_to_share }, tag);
      } catch (error) {
        if (!(error instanceof Refusal) || error.status !== 412) throw error;
        const now = await ask("GET", `${API}/workflows/${workflow.workflow_id}`);
        setConflict({ workflow: now, version: await loadVersion(workflow.workflow_id, now.latest_version_id) });
        return;
      }
      setConflict(null);
      opened(target);
    });
  const next = nextVersion(workflow.versions);
  const change = (what, fields) =>
    act(what, async () => {
      await ask("PUT", `${API}/workflows/${workflow.workflow_id}`, fields);
      reload();
    });
  const onKey = (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      if (isDirty && isJson && !isLocked) save(next, base);
    }
  };
  const tabs = [
    ["steps", "Steps"],
    ["json", "JSON"],
    ["run", "Run"],
    ["versions", `Versions (${workflow.versions.length})`],
  ];
  const canSave = isDirty && isJson && !isLocked;
  return html`<${Page} title=${workflow.name} wide=${true} intro=${html`<${Text}>${workflow.description}</${Text}>`} actions=${html`
      <${Button} icon="play" needs="operator" onClick=${() => setQuery({ tab: "run" }, {})}>Run</${Button}>
      <${Button} icon="ellipsis" onClick=${() => setOpen("more")}>More</${Button}>
      ${isLocked ? null : html`<${Button} kind="primary" icon="check" busy=${state.busy === "save"} disabled=${!canSave} title="Ctrl+S" onClick=${() => save(next, base)}>Save as ${next}</${Button}>`}`}>
    <div class="stack" onKeyDown=${onKey}>
    <p class="marks"><code>${workflow.slug}</code> <span class="tag">${version.version_id}${isOldest ? "" : ", the latest"}</span>
      ${workflow.locked ? html`<span class="tag"><${Icon} name="lock" /> locked</span>` : null}${version.locked ? html`<span class="tag"><${Icon} name="lock" /> this version never changes</span>` : null}
      ${version.allowed_to_share ? html`<span class="tag"><${Icon} name="share-2" /> shared</span>` : null}${workflow.status === "archived" ? html`<span class="tag"><${Icon} name="archive" /> archived</span>` : null}
      ${isDirty ? html`<span class="status waiting" role="status">Not saved</span>` : null}</p>
    ${workflow.locked ? html`<${Notice} kind="info" action=${html`<${Button} icon="lock-open" needs="editor" busy=${state.busy === "unlock"} onClick=${() => change("unlock", { locked: false })}>Unlock</${Button}>`}>This workflow is locked: it can be viewed and run, but not changed.</${Notice}>` : null}
    ${isRestored && isDirty ? html`<${Notice} kind="warning" action=${html`<${Button} onClick=${discard}>Discard them</${Button}>`}>Unsaved changes were restored.</${Notice}>` : null}
    ${isOldest && !isDirty ? html`<${Notice}>This is an earlier version. <${Link} to=${`/app/workflows/${workflow.slug}`}>Open the latest, ${workflow.latest_version_id}</${Link}>.</${Notice}>` : null}
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    ${problems.length ? html`<${Notice} kind="error"><strong>${problems.length === 1 ? "One problem" : `${problems.length} problems`} with the definition.</strong> ${byStep.get("") ? html`<${Text}>${byStep.get("")[0].message}</${Text}>` : "The marked steps show the details."}</${Notice}>` : null}
    <${Tabs} tabs=${tabs} chosen=${tab} label="Workflow" onChoose=${(one) => setQuery({ tab: one === "steps" ? "" : one })} />
    ${tab === "steps" ? html`<${StepsTab} definition=${draft} onDefinition=${edit} steps=${steps} byStep=${byStep} models=${models} own=${workflow.slug} isLocked=${isLocked} />` : null}
    ${
      tab === "json"
        ? html`<${JsonEditor} label="The definition as JSON" value=${draft} onValue=${edit} onValid=${setJson} readonly=${isLocked} />
      ${problems.map((one) => html`<p class="field-error" key=${one.path + one.message}><${Icon} name="circle-alert" /><span><code>${one.path || "/"}</code> <${Text}>${one.message}</${Text}></span></p>`)}`
        : null
    }
    ${tab === "run" ? html`<${RunTab} workflow=${workflow} version=${version} isDirty=${isDirty} />` : null}
    ${tab === "versions" ? html`<${VersionsTab} workflow=${workflow} version=${version} onChange=${reload} />` : null}
    ${
      isDirty && !isLocked && ["steps", "json"].includes(tab)
        ? html`<div class="actions">
      ${version.locked ? null : html`<${Button} busy=${state.busy === "save"} disabled=${!canSave} onClick=${() => save(version.version_id, base)}>Save into ${version.version_id}</${Button}>`}
      <${Button} icon="rotate-ccw" onClick=${discard}>Discard the changes</${Button}></div>`
        : null
    }
    <${Toast} text=${toast} title="Ctrl+Z" onUndo=${undo} /></div>
    ${
      open === "more"
        ? html`<${More} workflow=${workflow} version=${version} onClose=${() => setOpen(null)} onOpen=${setOpen} onChange=${(
            what,
            fields,
          ) => {
            setOpen(null);
            change(what, fields);
          }} />`
        : null
    }
    ${open === "delete" ? html`<${Delete} workflow=${workflow} onClose=${() => setOpen(null)} />` : null}
    ${
      conflict
        ? html`<${Conflict} theirs=${conflict} mine=${draft} busy=${state.busy === "save"} error=${state.error}
      onTheirs=${() => {
        setConflict(null);
        opened(conflict.version.version_id);
      }}
      onMine=${() => save(nextVersion(conflict.workflow.versions), conflict.version.tag)} onClose=${() => setConflict(null)} />`
        : null
    }</${Page}>`;
}

// The consequences of a deletion, with current figures if they can be loaded.
function Delete({ workflow, onClose }) {
  const id = workflow.workflow_id;
  const now = useLoad(
    (signal) =>
      Promise.all(
        [
          `/api/base/v1/executions?type=workflow&workflow_id=${id}&status=created,queued,starting,processing,running&limit=1`,
          `${API}/workflows/${id}/schedules?limit=1`,
        ].map((path) => ask("GET", path, undefined, { signal }).catch(() => null)),
      ),
    [id],
  );
  const [runs, schedules] = now.data ?? [];
  const number = (of, none, one, more) =>
    !of
      ? more
      : of.total_count === 0
        ? none
        : of.total_count === 1
          ? one
          : `${count(of.total_count)}${of.total_capped ? " or more" : ""} ${more}`;
  const versions = workflow.versions.length === 1 ? "its version" : `its ${workflow.versions.length} versions`;
  return html`<${Confirm} title="Delete this workflow?" action="Delete the workflow" onClose=${onClose} onDo=${async () => {
    await ask("DELETE", `${API}/workflows/${id}`);
    go("/app/workflows");
  }}>
    <p><strong><${Text}>${workflow.name}</${Text}></strong> and ${versions} are deleted. This cannot be undone.</p>
    <ul class="plain" aria-busy=${now.loading}>
      <li>Unfinished runs, including those that wait for a person or a time, are cancelled: <strong>${number(runs, "none", "1 run", "runs")}</strong>.</li>
      <li>Schedules that no longer start it: <strong>${number(schedules, "none", "1 schedule", "schedules")}</strong>.</li>
      <li>Finished runs stay in the history.</li></ul></${Confirm}>`;
}

// Shown if somebody else saved first: both versions, and the choice between them.
function Conflict({ theirs, mine, busy, error, onTheirs, onMine, onClose }) {
  const next = nextVersion(theirs.workflow.versions);
  return html`<${Dialog} title="Somebody else has saved in the meantime" wide=${true} onClose=${onClose}><div class="stack">
    <p>Their version is <strong>${theirs.version.version_id}</strong>. Nothing of yours is lost. What differs, theirs and then yours:</p>
    ${error ? html`<${Notice} kind="error">${sentence(error)}</${Notice}>` : null}
    <${Compared} before=${theirs.version.definition} after=${mine} beforeName=${`Theirs, ${theirs.version.version_id}`} afterName="Yours, not saved" />
    <div class="actions end"><${Button} onClick=${onClose}>Keep editing</${Button}><${Button} onClick=${onTheirs}>Take theirs</${Button}>
      <${Button} kind="primary" busy=${busy} onClick=${onMine}>Save yours as ${next}</${Button}></div></div></${Dialog}>`;
}

function More({ workflow, version, onClose, onOpen, onChange }) {
  const [fields, setFields] = useState({ name: workflow.name, description: workflow.description, tags: workflow.tags.join(", ") });
  const [error, setError] = useState(null);
  const set = (change) => setFields((now) => ({ ...now, ...change }));
  const submit = (event) => {
    event.preventDefault();
    onChange("describe", {
      name: fields.name,
      description: fields.description,
      tags: fields.tags
        .split(",")
        .map((tag) => tag.trim())
        .filter(Boolean),
    });
  };
  const legacy = async () => {
    setError(null);
    try {
      download(`${workflow.slug}-drawing`, await ask("GET", `${FLOWS}/${workflow.workflow_id}`));
      onClose();
    } catch (refused) {
      setError(refused);
    }
  };
  const whole = () => {
    const { name, description, categories, tags } = workflow;
    download(workflow.slug, { name, description, categories, tags, version_id: version.version_id, definition: version.definition });
    onClose();
  };
  const isLocked = workflow.locked || !may("editor");
  return html`<${Dialog} title=${workflow.name} onClose=${onClose}><div class="stack">
    ${error ? html`<${Notice} kind="error">${sentence(error)}</${Notice}>` : null}
    <form class="stack" onSubmit=${submit}><fieldset class="bare" disabled=${isLocked}><div class="stack">
      <label class="field"><span class="label">Name</span><input required maxlength="200" value=${fields.name} onInput=${(event) => set({ name: event.currentTarget.value })} /></label>
      <label class="field"><span class="label">Description</span><textarea required rows="2" maxlength="4000" value=${fields.description} onInput=${(event) => set({ description: event.currentTarget.value })}></textarea></label>
      <label class="field"><span class="label">Tags</span><input value=${fields.tags} placeholder="at most three, with commas" onInput=${(event) => set({ tags: event.currentTarget.value })} /></label>
      <div><${Button} type="submit" needs="editor">Save these</${Button}></div></div></fieldset></form>
    <hr />
    <div class="menu">
      <${Button} icon="download" onClick=${whole}>Export as JSON</${Button}>
      <${Button} icon="download" onClick=${legacy}>Export as a legacy drawing</${Button}>
      <${Button} icon=${workflow.locked ? "lock-open" : "lock"} needs="editor" onClick=${() => onChange("lock", { locked: !workflow.locked })}>${workflow.locked ? "Unlock" : "Lock against changes"}</${Button}>
      <${Button} icon="archive" needs="editor" disabled=${isLocked} onClick=${() => onChange("archive", { status: workflow.status === "archived" ? "active" : "archived" })}>${workflow.status === "archived" ? "Take out of the archive" : "Archive"}</${Button}>
      <${Link} to=${`/app/runs?type=workflow&workflow_id=${workflow.workflow_id}`} class="button plain"><${Icon} name="activity" /><span>Its runs</span></${Link}>
      <${Button} icon="trash-2" needs="editor" disabled=${isLocked} onClick=${() => onOpen("delete")}>Delete</${Button}></div></div></${Dialog}>`;
}
