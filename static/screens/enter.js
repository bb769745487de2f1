// The pages that links open: setup, invitation, password reset.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Button, Door, Input, Notice, ask, refreshSession, sentence, session, Text, Username } from "../core.js";
import { BASE, go } from "../location.js";

// The token is in the fragment of the link, which browsers never send. The token is removed from the address bar
// immediately.
let token = null;
function takeToken() {
  if (location.hash.length > 1) {
    token = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
  }
  return token;
}

function WithLink({ title, kind, command, children }) {
  const [state, setState] = useState({ link: null, error: null });
  useEffect(() => {
    const given = takeToken();
    if (!given) {
      setState({ link: null, error: { missing: true } });
      return;
    }
    ask("POST", "/links", { token: given }, { isLogIn: true }).then(
      (link) => setState(link.kind === kind ? { link, error: null } : { link: null, error: { missing: true } }),
      (error) => setState({ link: null, error }),
    );
  }, []);
  if (state.error) {
    return html`<${Door} title=${title}><${Notice} kind="error">${state.error.missing ? "This page needs the whole link, with everything after the # sign." : sentence(state.error)}</${Notice}>
      <p>${command}</p><p><a href=${`${BASE}/`}>Go to the log-in</a></p></${Door}>`;
  }
  if (!state.link) return html`<${Door} title=${title}><p class="loading" role="status">Checking the link…</p></${Door}>`;
  return children(state.link);
}

function JoinForm({ path, email: known, action }) {
  const [name, setName] = useState("");
  const [email, setEmail] = useState(known ?? "");
  const [password, setPassword] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const fields = state.error?.fields ?? {};
  const submit = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    setState({ busy: true, error: null });
    try {
      await ask("POST", path, { token, name, email, password }, { isLogIn: true });
      token = null;
      session.value = await refreshSession();
      go("/app", { replace: true });
    } catch (error) {
      setState({ busy: false, error });
      const wrong = Object.keys(error.fields ?? {})[0];
      if (wrong) form.elements[wrong]?.focus();
    }
  };
  return html`<form class="stack" onSubmit=${submit}>
    ${state.error && !Object.keys(fields).length ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <${Input} label="Name" name="name" autocomplete="name" required maxlength="64" value=${name} onValue=${setName} error=${fields.name} first=${true} />
    <${Input} label="Email" name="email" type="email" autocomplete="username" required value=${email} onValue=${setEmail} error=${fields.email} hint="You log in with it. No mail is ever sent to it." />
    <${Password} value=${password} onValue=${setPassword} error=${fields.password} />
    <${Button} kind="primary" type="submit" busy=${state.busy}>${action}</${Button}></form>`;
}

export function Password({ value, onValue, error, label = "Password" }) {
  return html`<${Input} label=${label} name="password" type="password" autocomplete="new-password" required minlength="12"
    value=${value} onValue=${onValue} error=${error} hint="At least 12 characters. A few words are easy to remember." />`;
}

export function Setup() {
  return html`<${WithLink} title="Set up the dashboard" kind="setup" command=${html`The person who runs this machine gets a new link with the command <code>orrery owner link</code>.`}>${(
    link,
  ) => html`
    <${Door} title="Set up the dashboard">
      <p>You will be the Owner of the organization <strong><${Text}>${link.organization}</${Text}></strong>: you run models, create API keys and invite other people.</p>
      <${JoinForm} path="/setup" email=${link.email} action="Set up" /></${Door}>`}</${WithLink}>`;
}

export function Invitation() {
  return html`<${WithLink} title="Join" kind="invitation" command="Ask the Owner of the organization for a new link.">${(link) => html`
    <${Door} title="Join"><p>You are invited to the organization <strong><${Text}>${link.organization}</${Text}></strong>.</p>
      <${JoinForm} path="/invitations/accept" email=${link.email} action="Join" /></${Door}>`}</${WithLink}>`;
}

export function Reset() {
  return html`<${WithLink} title="Choose a new password" kind="reset" command=${html`Ask the Owner of your organization for a new link. The Owner's own link comes from the command <code>orrery owner link</code>.`}>${(link) => html`<${ResetForm} link=${link} />`}</${WithLink}>`;
}

function ResetForm({ link }) {
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const [needsCode, setNeedsCode] = useState(false);
  const [state, setState] = useState({ busy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await ask("POST", "/session/reset", { token, password, ...(needsCode ? { code } : {}) }, { isLogIn: true });
      token = null;
      session.value = await refreshSession();
      go("/app", { replace: true });
    } catch (error) {
      const isAsked = error.details?.code === "required";
      if (isAsked) setNeedsCode(true);
      setState({ busy: false, error: isAsked ? null : error });
    }
  };
  const fields = state.error?.fields ?? {};
  return html`<${Door} title="Choose a new password"><p>For <strong><${Text}>${link.email}</${Text}></strong>. You will be logged out everywhere else.</p>
    <form class="stack" onSubmit=${submit}><${Username} email=${link.email} />
      ${state.error && !fields.password ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
      <${Password} label="New password" value=${password} onValue=${setPassword} error=${fields.password} />
      ${needsCode ? html`<${Input} label="Code" inputmode="numeric" autocomplete="one-time-code" required value=${code} onValue=${setCode} first=${true} hint="From your authenticator app, or one of your recovery codes." />` : null}
      <${Button} kind="primary" type="submit" busy=${state.busy}>Set the password</${Button}></form></${Door}>`;
}
