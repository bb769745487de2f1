// Shared by all screens: requests with readable errors, the session, formats, and the
// components of screens. Data from the service is always inserted as text, never as markup.

import { html, icons, signal, useEffect, useErrorBoundary, useId, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { BASE, go, place } from "./location.js";

// ---- Requests ----

export class Refusal extends Error {
  constructor(status, message, { details = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.details = details;
    this.retryAfter = retryAfter;
  }

  // Errors about fields, by the field's path without its first slash.
  get fields() {
    const list = Array.isArray(this.details) ? this.details : [];
    return Object.fromEntries(
      list
        .filter((one) => one && typeof one.path === "string")
        .map((one) => [one.path.replace(/^\//, ""), String(one.message ?? "is not valid")]),
    );
  }
}

// The session as returned by GET /session; null before the first response.
export const session = signal(null);
// Set while a log-in is shown on top of the page; called after the log-in.
export const interrupted = signal(null);

// Signals of requests that the user did not trigger. Such requests do not keep the session alive.
export const unattended = new WeakSet();
export const UNATTENDED = { "x-orrery-unattended": "true" };

async function send(method, path, body, options) {
  const headers = { ...(unattended.has(options.signal) ? UNATTENDED : null), ...options.headers };
  /** @type {RequestInit} */
  const request = { method, headers, signal: options.signal, cache: "no-store" };
  if (body instanceof FormData || body instanceof Blob) request.body = body;
  else if (body !== undefined) {
    headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  try {
    return await fetch(BASE + path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The service does not answer. Check that it is running and reachable from this computer, then try again.");
  }
}

// Sends a request to the service. If the session has ended, shows a log-in on top of the page and then repeats the
// request, so that nothing typed is lost.
export async function request(method, path, body, options = {}) {
  let answer = await send(method, path, body, options);
  while (answer.status === 401 && session.value?.member && !options.isLogIn) {
    /** @type {Promise<void>} */
    const logIn = new Promise((resolve) => {
      const earlier = interrupted.value;
      interrupted.value = () => {
        earlier?.();
        resolve();
      };
    });
    await logIn;
    answer = await send(method, path, body, options);
  }
  // 304: the previous response is still current.
  if (answer.ok || answer.status === 304) return answer;
  const text = await answer.text();
  let parsed = null;
  try {
    parsed = JSON.parse(text);
  } catch {
    /* The status is enough. */
  }
  const said = typeof parsed?.error === "object" ? parsed.error?.message : parsed?.error;
  const message = typeof said === "string" ? said : `The service answered ${answer.status}.`;
  if (answer.status === 403) refreshSession();
  throw new Refusal(answer.status, message, {
    details: parsed?.details ?? null,
    retryAfter: Number(answer.headers.get("retry-after")) || null,
  });
}

export async function ask(method, path, body, options) {
  const answer = await request(method, path, body, options);
  if (answer.status === 204) return null;
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

// `isOwn`: the page itself sends the request, so the request does not keep the session alive.
export async function refreshSession({ isOwn = false } = {}) {
  const before = session.value;
  const now = await ask("GET", "/session", undefined, { isLogIn: true, headers: isOwn ? UNATTENDED : undefined });
  if (JSON.stringify(before) !== JSON.stringify(now)) {
    // Without a session the page stays as it is: the next request shows a log-in on top of it.
    if (!(before?.member && !now.member)) session.value = now;
  }
  return now;
}

const WAYS_ON = {
  402: "The balance does not cover this. Ask the person who runs this machine to top it up: orrery balance top-up --amount USD",
  404: "Nothing was found here, or it belongs to another organization.",
  412: "Somebody else has changed this since you opened it.",
  413: "Make it smaller, or ask the person who runs this machine for a higher limit.",
  500: "Try again. If it fails again, ask the person who runs this machine to look at the log.",
};
// Matches advice about retries that is meant for programs; people get a separate sentence.
const AGAIN = /[\s:;,.]*\b(please |wait a moment and )?try again\b[^.]*[.!?\s]*$/i;

// Returns an error as sentences for people: what is wrong, and what to do.
export function sentence(error) {
  if (!(error instanceof Refusal)) return `Something went wrong in this page: ${error?.message ?? error}`;
  const { status, retryAfter } = error;
  if (WAYS_ON[status] && /^(payment required|not found|HTTP)/i.test(error.message)) return WAYS_ON[status];
  const isBusy = [429, 502, 503, 504].includes(status);
  const text = (isBusy && error.message.replace(AGAIN, "")) || error.message;
  const message = text.charAt(0).toUpperCase() + text.slice(1);
  const said = /[.!?]$/.test(message) ? message : `${message}.`;
  if (isBusy) return `${said} Try again in ${retryAfter ? duration(retryAfter) : "a moment"}.`;
  return status === 413 || status >= 500 ? `${said} ${WAYS_ON[status] ?? WAYS_ON[500]}` : said;
}

export const connectionLost = () => new Refusal(0, "The connection to the service was lost.");
export const AGAIN_MS = 3000; // Between two attempts to reach a service that does not answer.

// Calls `load` now, whenever `keys` change, and again if there is no answer; keeps the last result
// until the next result arrives.
export function useLoad(load, keys) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [round, setRound] = useState(0);
  // Whether the page itself triggers the next load, whether a load is in progress, and whether something has changed
  // since it started.
  const own = useRef({ isNext: false, isBusy: false, isStale: false }).current;
  const follow = () => {
    if (own.isBusy) {
      own.isStale = true;
      return;
    }
    own.isNext = true;
    setRound((n) => n + 1);
  };
  useEffect(() => {
    const abort = new AbortController();
    const isOwn = own.isNext;
    if (isOwn) unattended.add(abort.signal);
    else setState((old) => ({ ...old, loading: true }));
    Object.assign(own, { isNext: false, isBusy: true, isStale: false });
    const end = (next) => {
      if (abort.signal.aborted) return;
      own.isBusy = false;
      setState(next);
      if (own.isStale) follow();
    };
    load(abort.signal).then(
      (data) => end({ data, error: null, loading: false }),
      // If a request made by the page itself fails, the next change triggers another one.
      (error) => end((old) => (isOwn && !old.error ? old : { ...old, error, loading: false })),
    );
    return () => {
      abort.abort();
      own.isBusy = false;
    };
  }, [...keys, round]);
  useEffect(() => {
    if (state.error?.status !== 0) return undefined;
    const timer = setInterval(follow, AGAIN_MS);
    addEventListener("online", follow);
    return () => {
      clearInterval(timer);
      removeEventListener("online", follow);
    };
  }, [state.error]);
  return { ...state, follow, reload: () => setRound((n) => n + 1), set: (data) => setState({ data, error: null, loading: false }) };
}

// Lists that reload after changes in the organization, with the topics that they follow.
const lists = new Map();

// Calls `read` whenever one of these topics has changed. Returns a function that unsubscribes.
export function onChanges(topics, read) {
  lists.set(read, topics);
  return () => lists.delete(read);
}

// Makes a list of `useLoad` reload whenever one of these topics has changed.
export function useChanges(topics, list) {
  const latest = useRef(list);
  latest.current = list;
  useEffect(() => onChanges(topics, () => latest.current.follow()), []);
}

// Announces that these topics have changed or may have changed.
export function tellLists(topics = null) {
  for (const [list, followed] of lists) if (!topics || followed.some((topic) => topics.includes(topic))) list();
}

// ---- Formats ----

const numbers = new Intl.NumberFormat("en");
// The only date format: parts may be omitted, but their order and the 24-hour clock are fixed.
/** @type {Intl.DateTimeFormatOptions} */
const day = { day: "numeric", month: "short" };
/** @type {Intl.DateTimeFormatOptions} */
const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const moments = new Intl.DateTimeFormat("en", { ...day, year: "numeric", ...clock, second: "2-digit" });
const days = new Intl.DateTimeFormat("en", { ...day, ...clock });
const years = new Intl.DateTimeFormat("en", { ...day, year: "numeric" });
const utcDays = new Intl.DateTimeFormat("en", { ...day, year: "numeric", timeZone: "UTC" });

export const count = (value) => (Number.isFinite(value) ? numbers.format(value) : "–");

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0;
  let rest = value;
  while (rest >= 1000 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${unit === 0 || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 0.0995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

export function money(usd) {
  if (!Number.isFinite(usd)) return "–";
  if (usd === 0) return "$0";
  const text =
    Math.abs(usd) >= 1
      ? Math.abs(usd).toFixed(2)
      : Math.abs(usd)
          .toFixed(6)
          .replace(/(\.\d\d\d*?)0+$/, "$1");
  return `${usd < 0 ? "−" : ""}$${text}`;
}

// Date and time in the format used by all screens.
export const inFull = (at) => moments.format(new Date(at));

// A day of the service, such as 2026-11-20, in the same format.
export const onDay = (text) => utcDays.format(new Date(text));

// A countdown to a future time.
export function Due({ at, none = "–" }) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!at) return undefined;
    const clock = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(clock);
  }, [at]);
  if (!at) return html`<span class="quiet">${none}</span>`;
  const left = (new Date(at).getTime() - Date.now()) / 1000;
  return html`<time datetime=${at} title=${inFull(at)}>${left < 1 ? "now" : `in ${duration(Math.ceil(left))}`}</time>`;
}

export function Time({ at, none = "never" }) {
  if (!at) return html`<span class="quiet">${none}</span>`;
  const moment = new Date(at);
  if (Number.isNaN(moment.getTime())) return html`<span>${at}</span>`;
  const ago = (Date.now() - moment.getTime()) / 1000;
  const text =
    ago >= -5 && ago < 60
      ? "just now"
      : ago >= 60 && ago < 3600
        ? `${Math.floor(ago / 60)} min ago`
        : moment.getFullYear() === new Date().getFullYear()
          ? days.format(moment)
          : years.format(moment);
  return html`<time datetime=${at} title=${inFull(at)}>${text}</time>`;
}

// ---- Components ----

export function Icon({ name, label }) {
  const parts = icons[name] ?? [];
  return html`<svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2"
    stroke-linecap="round" stroke-linejoin="round" role=${label ? "img" : undefined} aria-label=${label}
    aria-hidden=${label ? undefined : "true"}>${parts.map(([Tag, attributes]) => html`<${Tag} ...${attributes} />`)}</svg>`;
}

// A link within the dashboard. The browser can still open it in a new tab.
export function Link({ to, children, ...rest }) {
  const follow = (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${BASE + to} onClick=${follow} ...${rest}>${children}</a>`;
}

// The roles, each with what it may do. A role may also do all that the roles after it may do.
export const ROLES = {
  owner: ["Owner", "Does everything and manages the members"],
  editor: ["Editor", "Changes workflows, chains, secrets and webhooks"],
  operator: ["Operator", "Runs, cancels and repeats"],
  viewer: ["Viewer", "Reads everything"],
};

// Whether the role of the member who is logged in allows what `needed` allows.
export function may(needed) {
  const names = Object.keys(ROLES);
  return names.indexOf(session.value?.member?.role) <= names.indexOf(needed);
}

// `needs`: the role without which the button is not shown.
export function Button({ kind = "plain", icon, busy = false, disabled = false, needs = "viewer", children, type = "button", ...rest }) {
  if (!may(needs)) return null;
  return html`<button type=${type} class=${`button ${kind}`} aria-busy=${busy ? "true" : undefined}
    disabled=${disabled || busy} ...${rest}>${icon ? html`<${Icon} name=${busy ? "loader" : icon} />` : null}<span>${children}</span></button>`;
}

export function IconButton({ icon, label, needs = "viewer", ...rest }) {
  if (!may(needs)) return null;
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label} ...${rest}><${Icon} name=${icon} /></button>`;
}

const KINDS = { error: "circle-alert", warning: "triangle-alert", good: "check", info: "info" };

export function Notice({ kind = "info", children, action }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "error" ? "alert" : "status"}>
    <${Icon} name=${KINDS[kind]} /><div>${children}</div>${action ?? null}</div>`;
}

// Shown while live updates are interrupted because the service does not answer.
export const Lost = () =>
  html`<${Notice} kind="warning">The service does not answer. This page may be out of date; it updates by itself when the service is back.</${Notice}>`;

const UNREACHABLE =
  "The service does not answer. Check that it is running and reachable from this computer. This page opens by itself when the service answers.";

// Shows exactly one of: the loading state, an error, the empty state, the content.
export function Loaded({ of, empty, children }) {
  const { data, error, loading, reload } = of;
  if (error && !data) {
    const [, , list, one] = place.value.path.split("/");
    const action =
      error.status === 404 && one
        ? html`<${Link} class="button plain" to=${`/app/${list}`}><span>Go to the list</span></${Link}>`
        : html`<${Button} icon="refresh-cw" onClick=${reload}>Try again</${Button}>`;
    return html`<${Notice} kind="error" action=${action}>${error.status === 0 ? UNREACHABLE : sentence(error)}</${Notice}>`;
  }
  if (!data) return html`<p class="loading" role="status">${loading ? "Loading…" : ""}</p>`;
  return html`${error?.status === 0 ? html`<${Lost} />` : error ? html`<${Notice} kind="error">${sentence(error)}</${Notice}>` : null}${empty?.(data) ?? children(data)}`;
}

export function Empty({ icon = "info", title, children }) {
  return html`<div class="empty"><${Icon} name=${icon} /><h2>${title}</h2><div>${children}</div></div>`;
}

// Keeps the window's title equal to the heading.
function useDocumentTitle(title) {
  useLayoutEffect(() => {
    document.title = `${title} · Orrery`;
  }, [title]);
}

// A screen. The screen's title becomes the window's title, and gets the focus when the screen
// opens.
export function Page({ title, intro, actions, children, wide = false }) {
  const heading = useRef(null);
  useDocumentTitle(title);
  useLayoutEffect(() => {
    heading.current?.focus({ preventScroll: true });
  }, []);
  return html`<main id="main" class=${wide ? "wide" : ""}>
    <header class="page-head"><div><h1 tabindex="-1" ref=${heading}>${title}</h1>${intro ? html`<p class="intro">${intro}</p>` : null}</div>
    ${actions ? html`<div class="actions">${actions}</div>` : null}</header>
    <${Guard} key=${title}>${children}</${Guard}></main>`;
}

// A page for people who are not logged in.
export function Door({ title, children }) {
  useDocumentTitle(title);
  return html`<main class="door" id="main"><img src=${`${BASE}/static/icon.svg`} alt="" width="56" height="56" />
    <h1>${title}</h1>${children}</main>`;
}

// Catches an error in one screen, so that the other screens keep working.
function Guard({ children }) {
  const [error, again] = useErrorBoundary();
  if (error) {
    return html`<${Notice} kind="error" action=${html`<${Button} onClick=${again}>Try again</${Button}>`}>${sentence(error)}</${Notice}>`;
  }
  return children;
}

export function Field({ label, hint, error, children, optional = false }) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  return html`<div class=${`field ${error ? "wrong" : ""}`}>
    <label for=${id}>${label}${optional ? html` <span class="quiet">(optional)</span>` : null}</label>
    ${children({ id, "aria-describedby": described, "aria-invalid": error ? "true" : undefined })}
    ${hint ? html`<p class="hint" id=${`${id}-hint`}>${hint}</p>` : null}
    ${error ? html`<p class="field-error" id=${`${id}-error`}><${Icon} name="circle-alert" />${error}</p>` : null}</div>`;
}

// `first`: gives the field the focus when it appears.
export function Input({ label, hint, error, optional, value, onValue, first = false, ...rest }) {
  const input = useRef(null);
  useEffect(() => {
    if (first) input.current?.focus();
  }, []);
  return html`<${Field} label=${label} hint=${hint} error=${error} optional=${optional}>${(field) => html`
    <input ...${field} ref=${input} data-first=${first ? "" : undefined} value=${value} onInput=${(event) => onValue(event.currentTarget.value)} ...${rest} />`}</${Field}>`;
}

// Tells a password manager which account a form's password belongs to.
export const Username = ({ email }) =>
  html`<input type="text" name="username" autocomplete="username" class="hidden" tabindex="-1" aria-hidden="true" readonly value=${email} />`;

// A native dialog, which keeps the focus inside and which Escape closes.
export function Dialog({ title, onClose, children, modal = true, wide = false }) {
  const dialog = useRef(null);
  const id = useId();
  useEffect(() => {
    const element = dialog.current;
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    if (!element.open) element.showModal();
    element.querySelector("[data-first]")?.focus();
    return () => {
      element.close();
      before?.focus?.();
    };
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    if (modal) onClose();
  };
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancel}>
    <div class="dialog-head"><h2 id=${id}>${title}</h2>
    ${onClose ? html`<${IconButton} icon="x" label="Close" onClick=${onClose} />` : null}</div>${children}</dialog>`;
}

// Asks for confirmation of an action that cannot be undone.
export function Confirm({ title, children, action, onDo, onClose }) {
  const [state, setState] = useState({ busy: false, error: null });
  const act = async () => {
    setState({ busy: true, error: null });
    try {
      await onDo();
      onClose();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><div class="stack">${children}
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <div class="actions end"><${Button} onClick=${onClose} data-first="">Cancel</${Button}>
    <${Button} kind="danger" busy=${state.busy} onClick=${act}>${action}</${Button}></div></div></${Dialog}>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return html`<${Button} icon=${done ? "check" : "copy"} onClick=${copy}><span aria-live="polite">${done ? "Copied" : label}</span></${Button}>`;
}

// A secret or a link that is shown only once.
export function Once({ text, label }) {
  const field = useRef(null);
  return html`<div class="once"><input class="mono" readonly value=${text} aria-label=${label} ref=${field} onFocus=${() => field.current.select()} /><${Copy} text=${text} /></div>`;
}

const STATUS = {
  created: ["clock", "waiting", "Queued"],
  starting: ["loader", "waiting", "Starting"],
  queued: ["clock", "waiting", "Queued"],
  processing: ["loader", "active", "Running"],
  running: ["loader", "active", "Running"],
  success: ["check", "good", "Succeeded"],
  completed: ["check", "good", "Completed"],
  error: ["circle-alert", "bad", "Failed"],
  failed: ["circle-alert", "bad", "Failed"],
  cancelled: ["ban", "off", "Cancelled"],
  paused: ["clock", "waiting", "Paused"],
  event: ["clock", "waiting", "Waiting for approval"],
  skipped: ["ban", "off", "Skipped"],
  pending: ["clock", "waiting", "Waiting"],
  delivering: ["loader", "active", "Delivering"],
  delivered: ["check", "good", "Delivered"],
};

/**
 * The status of a run, or what somebody must do before the run can continue. In lists, `waiting_for` is one word; in a
 * run's record, it is an array with everything that the run waits for.
 * @param {{ status: string, waiting_for?: string | { reason: string }[] | null }} run
 */
export function statusOf({ status, waiting_for: waiting }) {
  const reasons = typeof waiting === "string" ? [waiting] : (waiting ?? []).map((one) => one.reason);
  return ["paused", "event"].find((reason) => reasons.includes(reason)) ?? status;
}

// A status: the word and icon convey the meaning; the color only supports the word and icon.
export function Status({ of }) {
  const [icon, kind, word] = STATUS[of] ?? ["info", "off", String(of)];
  return html`<span class=${`status ${kind}`}><${Icon} name=${icon} />${word}</span>`;
}

// Longer words may be broken, so that they do not make a table wider than the window. Long addresses may be broken
// after / and @.
const WORD_MAX = 20;
const LONG = new RegExp(`[^\\s/@?&,-]{${WORD_MAX + 1}}`);
const SEGMENTS = /(?<=[^/][/@])(?=[^/])/;
const ADDRESS = /^\S{21,200}$/;

// Untrusted text, isolated so that its writing direction does not affect the text around it.
export function Text({ children, as: Tag = "bdi" }) {
  const text = [children].flat().join("");
  const parts = ADDRESS.test(text) ? text.split(SEGMENTS) : [text];
  const shown = parts.map((part) => (LONG.test(part) ? html`<span class="long">${part}</span>` : part));
  return html`<${Tag}>${shown.flatMap((part, at) => (at ? [html`<wbr />`, part] : part))}</${Tag}>`;
}
