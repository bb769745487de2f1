// The member's own account: password and keyboard shortcuts.

import { html, useState } from "../vendor/preact.js";
import { Button, Input, Notice, Page, ROLES, Text, Username, ask, sentence, session } from "../core.js";
import { BASE } from "../location.js";
import { Password } from "./enter.js";
import { SecondFactor, Sessions } from "./security.js";

export function List() {
  const { member, organization } = session.value;
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  const [state, setState] = useState({ busy: false, error: null, done: false });
  const [shortcuts, setShortcuts] = useState(() => {
    try {
      return localStorage.getItem("shortcuts") !== "off";
    } catch {
      return true;
    }
  });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, done: false });
    try {
      await ask("POST", "/session/password", { current, password });
      setCurrent("");
      setPassword("");
      setState({ busy: false, error: null, done: true });
    } catch (error) {
      setState({ busy: false, error, done: false });
    }
  };
  const fields = state.error?.fields ?? {};
  const switchShortcuts = (event) => {
    setShortcuts(event.currentTarget.checked);
    try {
      localStorage.setItem("shortcuts", event.currentTarget.checked ? "on" : "off");
    } catch {
      /* It stays on. */
    }
  };
  return html`<${Page} title="Your account">
    <dl class="facts"><div><dt>Name</dt><dd><${Text}>${member.name}</${Text}></dd></div><div><dt>Email</dt><dd><${Text}>${member.email}</${Text}></dd></div>
      <div><dt>Organization</dt><dd><${Text}>${organization.name}</${Text}></dd></div><div><dt>Role</dt><dd>${ROLES[member.role][0]}</dd></div>
      <div><dt>API key access</dt><dd>${member.api_key_access ? "Can manage API keys" : "No"}</dd></div></dl>
    ${member.external ? html`<p class="quiet">You log in through the identity provider of your organization, which decides your role.</p>` : null}
    ${
      member.external || session.value.needs_second_factor
        ? null
        : html`<section class="narrow"><h2>Change the password</h2><form class="stack" onSubmit=${submit}><${Username} email=${member.email} />
      ${state.done ? html`<${Notice} kind="good">The password is changed. You are logged out on every other device.</${Notice}>` : null}
      ${state.error && !fields.password ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
      <${Input} label="Present password" type="password" autocomplete="current-password" required value=${current} onValue=${setCurrent} />
      <${Password} label="New password" value=${password} onValue=${setPassword} error=${fields.password} />
      <div><${Button} kind="primary" type="submit" busy=${state.busy}>Change the password</${Button}></div></form></section>`
    }
    ${member.external ? null : html`<${SecondFactor} />`}
    ${session.value.needs_second_factor ? null : html`<${Sessions} />`}
    <section class="narrow"><h2>Keyboard</h2><label class="box"><input type="checkbox" checked=${shortcuts} onChange=${switchShortcuts} /><span>Single-key shortcuts</span></label>
      <p class="quiet"><kbd>g</kbd> then <kbd>h</kbd> Home, <kbd>m</kbd> Models, <kbd>f</kbd> Workflows, <kbd>c</kbd> Chat, <kbd>r</kbd> Runs, <kbd>w</kbd> Webhooks, <kbd>k</kbd> API keys; <kbd>/</kbd> the search field; <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs a model. In the editor of a workflow: <kbd>Ctrl</kbd> <kbd>S</kbd> saves, <kbd>Ctrl</kbd> <kbd>Z</kbd> undoes, <kbd>Ctrl</kbd> <kbd>Shift</kbd> <kbd>Z</kbd> redoes, and <kbd>Alt</kbd> with an arrow key moves the step that has the focus.</p></section>
    <section class="narrow"><h2>Help</h2><p><a href=${`${BASE}/docs/`}>Documentation</a> of this version</p></section></${Page}>`;
}

export const Detail = List;
