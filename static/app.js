// The dashboard: the session, the frame with the navigation, and the screen for the URL. Home and the log-in are loaded
// together with this file; other screens are loaded when first opened.

import { html, render, signal, useEffect, useRef, useState } from "./vendor/preact.js";
import {
  AGAIN_MS,
  Button,
  Dialog,
  Door,
  Icon,
  IconButton,
  Input,
  Link,
  Loaded,
  Notice,
  Page,
  Status,
  Text,
  Time,
  ask,
  bytes,
  count,
  duration,
  interrupted,
  money,
  onChanges,
  refreshSession,
  sentence,
  session,
  statusOf,
  useChanges,
  useLoad,
} from "./core.js";
import { BASE, go, place } from "./location.js";

/**
 * Path, name, icon, the screen's file, and whether it is in the navigation bar of small screens.
 * @type {[string, string, string, string, boolean][]}
 */
const SCREENS = [
  ["/app", "Home", "house", "home", true],
  ["/app/models", "Models", "box", "models", true],
  ["/app/workflows", "Workflows", "workflow", "workflows", true],
  ["/app/chains", "Chains", "layers", "chains", false],
  ["/app/chat", "Chat", "message-square", "chat", true],
  ["/app/runs", "Runs", "activity", "runs", true],
  ["/app/webhooks", "Webhooks", "webhook", "webhooks", false],
  ["/app/files", "Files", "file", "files", false],
  ["/app/balance", "Balance", "wallet", "balance", false],
  ["/app/keys", "API keys", "key-round", "keys", false],
  ["/app/secrets", "Secrets", "lock", "secrets", false],
  ["/app/members", "Members", "users", "members", false],
  ["/app/audit", "Audit log", "scroll-text", "audit", false],
  ["/app/health", "Health", "heart-pulse", "health", false],
];
/** @type {typeof SCREENS} */
const HIDDEN = [["/app/account", "Your account", "circle-user", "account", false]];
// Pages opened by links, without a log-in.
const DOORS = { "/setup": "Setup", "/invite": "Invitation", "/reset": "Reset" };

const THEMES = { auto: ["sun-moon", "Colours as the system"], light: ["sun", "Light colours"], dark: ["moon", "Dark colours"] };
const theme = signal(stored("theme", "auto"));

function stored(name, otherwise) {
  try {
    return localStorage.getItem(name) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function showTheme() {
  document.documentElement.dataset.theme = theme.value;
}

function nextTheme() {
  const names = Object.keys(THEMES);
  theme.value = names[(names.indexOf(theme.value) + 1) % names.length];
  try {
    localStorage.setItem("theme", theme.value);
  } catch {
    /* Kept only while the page is open. */
  }
  showTheme();
}

const loaded = new Map();

// A component from a module that is loaded on demand.
function Lazy({ file, part, ...rest }) {
  const [state, setState] = useState(loaded.get(file) ?? null);
  const retry = useRef(() => null);
  useEffect(() => {
    let isThere = true;
    let timer = null;
    let round = 0;
    // Some browsers cache the failure to load a module, so each attempt uses a different address.
    const load = () => {
      clearTimeout(timer);
      import(`./screens/${file}.js${round ? `?again=${round}` : ""}`).then(
        (module) => {
          loaded.set(file, module);
          if (isThere) setState(module);
        },
        (error) => {
          if (!isThere) return;
          setState({ error });
          round += 1;
          timer = setTimeout(load, AGAIN_MS);
        },
      );
    };
    const online = () => {
      if (round) load();
    };
    retry.current = load;
    addEventListener("online", online);
    load();
    return () => {
      isThere = false;
      clearTimeout(timer);
      removeEventListener("online", online);
    };
  }, [file]);
  if (state?.error)
    return html`<main id="main"><${Notice} kind="warning" action=${html`<${Button} onClick=${() => retry.current()}>Try now</${Button}>`}>No connection. This page opens by itself when the service answers again.</${Notice}></main>`;
  const Part = state?.[part];
  return Part ? html`<${Part} ...${rest} />` : html`<main id="main"><p class="loading" role="status">Loading…</p></main>`;
}

function screenOf(path) {
  const known = [...SCREENS, ...HIDDEN].filter(([base]) => path === base || (base !== "/app" && path.startsWith(`${base}/`)));
  const [base, , , file] = known[0] ?? [];
  if (!base) return null;
  const rest = path.slice(base.length + 1);
  return { file, base, id: rest ? rest.split("/").map(decodeURIComponent).join("/") : null };
}

function NavLink({ to, name, icon, current }) {
  return html`<${Link} to=${to} class="nav-link" aria-current=${current ? "page" : undefined}><${Icon} name=${icon} /><span>${name}</span></${Link}>`;
}

async function logOut() {
  await ask("DELETE", "/session", undefined, { isLogIn: true }).catch(() => null);
  session.value = { set_up: true, member: null, organization: null };
  go("/");
}

function Frame({ screen }) {
  const [isOpen, setOpen] = useState(false);
  // The code that keeps lists up to date is loaded after the visible part.
  useEffect(() => {
    if (session.value.needs_second_factor) return undefined;
    const abort = new AbortController();
    import("./live.js").then(
      (live) => live.followChanges(abort.signal),
      () => null,
    );
    return () => abort.abort();
    // Following changes ends with the session, and restarts after a log-in.
  }, [Boolean(interrupted.value), session.value.needs_second_factor]);
  // The member's permissions can change while a page is open.
  useEffect(() => onChanges(["session"], () => refreshSession({ isOwn: true }).catch(() => null)), []);
  const { member, organization } = session.value;
  const [icon, word] = THEMES[theme.value] ?? THEMES.auto;
  const links = (which) =>
    which.map(
      ([path, name, sign, file]) => html`
    <${NavLink} key=${path} to=${path} name=${name} icon=${sign} current=${screen?.file === file} />`,
    );
  useEffect(() => setOpen(false), [place.value.path]);
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <div class="frame">
      <nav class="rail" aria-label="Dashboard">
        <${Link} to="/app" class="brand"><img src=${`${BASE}/static/icon.svg`} alt="" width="28" height="28" /><span>Orrery</span></${Link}>
        <div class="nav-links">${links(SCREENS)}</div>
        <div class="rail-foot">
          <${Link} to="/app/account" class="person" aria-current=${screen?.file === "account" ? "page" : undefined}>
            <strong><bdi>${member.name}</bdi></strong><span class="quiet"><bdi>${organization.name}</bdi></span></${Link}>
          <${IconButton} icon=${icon} label=${word} onClick=${nextTheme} />
          <${IconButton} icon="log-out" label="Log out" onClick=${logOut} />
        </div>
      </nav>
      <div class="content">${
        screen?.file === "home"
          ? html`<${Home} />`
          : screen
            ? html`<${Lazy} key=${`${screen.file}/${screen.id ?? ""}`} file=${screen.file} part=${screen.id === null ? "List" : "Detail"} id=${screen.id} />`
            : html`<${Page} title="Page not found"><p>The address may be mistyped. <${Link} to="/app">Go to Home</${Link}>.</p></${Page}>`
      }</div>
      <nav class="bar" aria-label="Dashboard, short">
        ${links(SCREENS.filter((one) => one[4]))}
        <button type="button" class="nav-link" aria-expanded=${isOpen} onClick=${() => setOpen(true)}><${Icon} name="menu" /><span>More</span></button>
      </nav>
      ${
        isOpen
          ? html`<${Dialog} title="More" onClose=${() => setOpen(false)}><div class="nav-links">
        ${links(SCREENS.filter((one) => !one[4]))}
        <${NavLink} to="/app/account" name="Your account" icon="circle-user" current=${screen?.file === "account"} />
        <button type="button" class="nav-link" onClick=${nextTheme}><${Icon} name=${icon} /><span>${word}</span></button>
        <button type="button" class="nav-link" onClick=${logOut}><${Icon} name="log-out" /><span>Log out</span></button></div></${Dialog}>`
          : null
      }
    </div>`;
}

// ---- The log-in ----

// Nobody can log in before there is an Owner, so this page explains what to do instead of asking for a password.
function NotSetUp() {
  return html`<${Door} title="Set up the dashboard">
    <p>Nobody can log in yet: this dashboard has no Owner.</p>
    <p>The person who runs this machine creates a link for the Owner. It was shown when the service started in a terminal; this command creates a new one at any time:</p>
    <pre class="code"><code>orrery owner link</code></pre>
    <p class="quiet">The link works once, for 24 hours. Open it in a browser and choose a name and a password.</p></${Door}>`;
}

function LogInForm({ email: known, onDone }) {
  const [email, setEmail] = useState(known ?? "");
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const [needsCode, setNeedsCode] = useState(false);
  const [state, setState] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await ask("POST", "/session", needsCode ? { email, password, code } : { email, password }, { isLogIn: true });
      await onDone();
    } catch (error) {
      const isAsked = error.details?.code === "required";
      if (isAsked) setNeedsCode(true);
      if (error.details?.code === "wrong") setCode("");
      setState({ busy: false, error: isAsked ? null : error });
    }
  };
  return html`<form class="stack" onSubmit=${submit}>
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Input} label="Email" type="email" autocomplete="username" required value=${email} onValue=${setEmail} first=${!known} />
    <${Input} label="Password" type="password" autocomplete="current-password" required value=${password} onValue=${setPassword} first=${Boolean(known)} />
    ${needsCode ? html`<${Input} label="Code" inputmode="numeric" autocomplete="one-time-code" required value=${code} onValue=${setCode} first=${true} hint="From your authenticator app, or one of your recovery codes." />` : null}
    <${Button} kind="primary" type="submit" busy=${state.busy}>Log in</${Button}></form>`;
}

// Why the identity provider's log-in did not succeed, by the word in the address.
const SSO = {
  denied: "Your identity provider refused the log-in.",
  expired: "The log-in took too long, or it was begun in another browser. Try again.",
  provider: "The identity provider cannot be reached, or it is not set up correctly. The log of the service says why.",
  token: "The answer of the identity provider was refused. The log of the service says why.",
  groups: "None of your groups gives you access. Ask the person who runs this service.",
  email: "Your identity provider sends no verified email address.",
  taken: "A member with your email address exists already and logs in with a password.",
  throttled: "Too many log-ins have failed. Wait a moment and try again.",
  failed: "The log-in failed. The log of the service says why.",
};

// `target`: where the identity provider opens; "_blank" keeps this page.
function SignOn({ target }) {
  const label = session.value?.sign_on;
  if (!label) return null;
  const why = SSO[place.value.query.get("sso")];
  return html`<div class="stack">${why ? html`<${Notice} kind="error">${why}</${Notice}>` : null}
    <a class="button plain wide" href=${`${BASE}/session/oidc`} target=${target} rel=${target ? "noopener" : undefined}><${Icon} name="circle-user" /><span>${label}</span></a></div>`;
}

function LogIn() {
  const done = async () => {
    session.value = await refreshSession();
  };
  return html`<${Door} title="Log in"><${SignOn} /><${LogInForm} onDone=${done} />
    <p class="quiet">Forgot your password? The Owner of your organization can create a link to reset it. The Owner's own link comes from the command <code>orrery owner link</code>.</p></${Door}>`;
}

// Shown if the session ends while a page is in use: the page stays open below the log-in.
function Interruption() {
  // The log-in may happen in another tab.
  useEffect(() => {
    const look = async () => {
      if (document.hidden || !interrupted.value) return;
      const now = await refreshSession({ isOwn: true }).catch(() => null);
      if (now?.member?.id === session.value?.member?.id) done();
    };
    document.addEventListener("visibilitychange", look);
    addEventListener("focus", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      removeEventListener("focus", look);
    };
  }, []);
  const done = async () => {
    const resume = interrupted.value;
    const now = await refreshSession();
    interrupted.value = null;
    if (now?.member) session.value = now;
    resume?.();
  };
  if (!interrupted.value) return null;
  return html`<${Dialog} title="Please log in again" modal=${false}>
    <p>Your session has ended. Nothing is lost: log in to continue.</p>
    <${SignOn} target="_blank" />
    ${session.value?.member?.external ? null : html`<${LogInForm} email=${session.value?.member?.email} onDone=${done} />`}</${Dialog}>`;
}

// ---- Home: what runs, what failed, what to do first ----

async function overview(signal) {
  const errors = [];
  // If a figure cannot be loaded, the other figures are still shown.
  const get = (path) =>
    ask("GET", path, undefined, { signal }).catch((error) => {
      if (error.name === "AbortError") throw error;
      errors.push(error);
      return null;
    });
  const since = new Date(Date.now() - 86400000).toISOString();
  const [status, failed, recent, balance, usage, keys] = await Promise.all([
    get("/status"),
    get(`/api/base/v1/executions?status=error,failed&from=${since}&limit=1`),
    get("/api/base/v2/executions?limit=6"),
    get("/api/base/v1/billing/balance"),
    get("/api/base/v1/files/usage"),
    get("/keys"),
  ]);
  if (!status && !recent) throw errors[0];
  return { status, failed, recent, balance, usage, keys };
}

function Home() {
  const home = useLoad(overview, []);
  useChanges(["status", "runs", "files"], home);
  const { status, failed, recent, balance, usage, keys } = home.data ?? {};
  const rows = recent?.executions ?? [];
  const isNew = home.data && rows.length === 0;
  if (home.error && !home.data) return html`<${Page} title="Home"><${Loaded} of=${home}>${() => null}</${Loaded}></${Page}>`;
  return html`<${Page} title="Home" intro=${`Hello, ${session.value.member.name}.`}>
    <dl class="facts large">
      <div><dt>Running now</dt><dd>${status ? count(status.running) : "–"}</dd></div>
      <div><dt>In the queue</dt><dd>${status ? `${status.waiting_is_capped ? "up to " : ""}${count(status.queued)}` : "–"}</dd></div>
      <div><dt>Waiting for approval</dt><dd>${status ? html`<${Link} to="/app/runs?waiting_for=event">${count(status.waiting_for_person)}${status.waiting_is_capped ? "+" : ""}</${Link}>` : "–"}</dd></div>
      <div><dt>Failed in 24 hours</dt><dd>${failed ? html`<${Link} to="/app/runs?status=error,failed&since=86400">${count(failed.total_count)}${failed.total_capped ? "+" : ""}</${Link}>` : "–"}</dd></div>
      <div><dt>Balance</dt><dd>${balance ? money(balance.balance_usd) : "–"}</dd></div>
      <div><dt>Files</dt><dd>${usage ? bytes(usage.bytes) : "–"}</dd></div>
    </dl>
    ${
      isNew
        ? html`<section><h2>First steps</h2><div class="cards">
      <${Link} to="/app/models/text-sentiment" class="tile"><h3><${Icon} name="play" />Run a first model</h3><p>“text-sentiment” rates the sentiment of a text. It is built in and needs nothing else.</p></${Link}>
      <${Link} to="/app/models" class="tile"><h3><${Icon} name="box" />Look at the models</h3><p>All models of this machine, each with a form to try it.</p></${Link}>
      <${Link} to="/app/workflows" class="tile"><h3><${Icon} name="workflow" />Make a workflow</h3><p>Combine models, starting from a template.</p></${Link}>
      ${session.value.member.api_key_access ? html`<${Link} to="/app/keys" class="tile"><h3><${Icon} name="key-round" />${keys?.keys?.length ? "Your API keys" : "Create an API key"}</h3><p>With a key, your programs use the same models.</p></${Link}>` : null}
      ${session.value.member.role === "owner" ? html`<${Link} to="/app/members" class="tile"><h3><${Icon} name="users" />Invite people</h3><p>Everybody in your organization sees the same models and runs.</p></${Link}>` : null}
    </div></section>`
        : null
    }
    ${
      rows.length
        ? html`<section><div class="page-head"><h2>Latest runs</h2><${Link} to="/app/runs">All runs</${Link}></div>
      <div class="card scroll"><table><thead><tr><th scope="col">What</th><th scope="col">Status</th><th scope="col">Started</th><th scope="col" class="number">Took</th></tr></thead>
      <tbody>${rows.map(
        (
          run,
        ) => html`<tr key=${run.id}><th scope="row"><${Link} to=${`/app/runs/${run.id}${run.type === "prediction" ? "" : `?type=${run.type}`}`}><${Text}>${run.workflow_name ?? run.model ?? run.type}</${Text}></${Link}></th>
        <td data-label="Status"><${Status} of=${statusOf(run)} /></td><td data-label="Started"><${Time} at=${run.created_at} /></td><td data-label="Took" class="number">${run.run_time === null ? "–" : duration(run.run_time)}</td></tr>`,
      )}</tbody></table></div></section>`
        : null
    }
  </${Page}>`;
}

// ----

function App() {
  const [error, setError] = useState(null);
  const start = () => {
    setError(null);
    refreshSession().catch(setError);
  };
  useEffect(start, []);
  const { path } = place.value;
  // Permissions may have changed since the last page was opened.
  useEffect(() => {
    if (session.value?.member && !interrupted.value) refreshSession().catch(() => null);
  }, [path]);
  if (DOORS[path]) return html`<${Lazy} file="enter" part=${DOORS[path]} />`;
  if (error)
    return html`<main class="door"><${Notice} kind="error" action=${html`<${Button} onClick=${start}>Try again</${Button}>`}>${sentence(error)}</${Notice}></main>`;
  if (!session.value) return html`<${Splash} />`;
  if (!session.value.set_up) return html`<${NotSetUp} />`;
  if (!session.value.member) return html`<${LogIn} />`;
  if (path === "/") {
    queueMicrotask(() => go("/app", { replace: true }));
    return null;
  }
  // Until there is the second factor that the service requires, nothing but the account works.
  const shown = session.value.needs_second_factor ? "/app/account" : path;
  return html`<${Frame} screen=${screenOf(shown)} /><${Interruption} />`;
}

// The same loading state that index.html already shows, so that something is painted before any script has run.
function Splash() {
  return html`<main class="door"><img src=${`${BASE}/static/icon.svg`} alt="" width="56" height="56" /><p class="brand">Orrery</p></main>`;
}

// The member's permissions may have changed while the page was hidden.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && session.value?.member && !interrupted.value) refreshSession().catch(() => null);
});

const PLACES = { h: "/app", m: "/app/models", f: "/app/workflows", c: "/app/chat", r: "/app/runs", w: "/app/webhooks", k: "/app/keys" };
let waitsForPlace = false;
document.addEventListener("keydown", (event) => {
  // The innermost element is needed, because an editor is inside a shadow tree.
  const isTyping = /** @type {Element} */ (event.composedPath()[0]).closest?.("input, textarea, select, [contenteditable]");
  if (isTyping || event.metaKey || event.ctrlKey || event.altKey || !session.value?.member || document.querySelector("dialog[open]"))
    return;
  if (stored("shortcuts", "on") === "off") return;
  if (waitsForPlace && PLACES[event.key]) {
    event.preventDefault();
    go(PLACES[event.key]);
  }
  waitsForPlace = event.key === "g";
  if (event.key === "/") {
    /** @type {HTMLElement | null} */
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

showTheme();
render(html`<${App} />`, document.getElementById("app"));
