// The security of the member's own account: the second factor and the sessions.

import { html, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Copy,
  Input,
  Loaded,
  Notice,
  Once,
  Text,
  Time,
  Username,
  ask,
  refreshSession,
  sentence,
  session,
  useLoad,
} from "../core.js";

export function SecondFactor() {
  const { member, needs_second_factor: isNeeded } = session.value;
  const [begun, setBegun] = useState(null);
  const [code, setCode] = useState("");
  const [password, setPassword] = useState("");
  const [isRemoving, setRemoving] = useState(false);
  const [state, setState] = useState({ busy: false, error: null });
  const act = (work) => async (event) => {
    event?.preventDefault();
    setState({ busy: true, error: null });
    try {
      await work();
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const begin = act(async () => setBegun(await ask("POST", "/session/totp")));
  const confirm = act(async () => {
    await ask("POST", "/session/totp/confirm", { code });
    setBegun(null);
    setCode("");
    await refreshSession();
  });
  const remove = act(async () => {
    await ask("DELETE", "/session/totp", { password });
    setPassword("");
    setRemoving(false);
    await refreshSession();
  });
  const problem = state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null;
  if (member.second_factor) {
    return html`<section class="narrow"><h2>Second factor</h2><div class="stack">
      <p>On: when you log in, you enter your password and a code of your authenticator app.</p>
      ${
        isRemoving
          ? html`<form class="stack" onSubmit=${remove}><${Username} email=${member.email} />${problem}
        <${Input} label="Your password" type="password" autocomplete="current-password" required value=${password} onValue=${setPassword} first=${true} />
        <div class="actions"><${Button} onClick=${() => setRemoving(false)}>Cancel</${Button}><${Button} kind="danger" type="submit" busy=${state.busy}>Turn it off</${Button}></div></form>`
          : html`<div><${Button} onClick=${() => setRemoving(true)}>Turn off the second factor</${Button}></div>`
      }</div></section>`;
  }
  return html`<section class="narrow"><h2>Second factor</h2><div class="stack">
    ${isNeeded ? html`<${Notice} kind="warning">This service requires a second factor. Set it up to use the dashboard.</${Notice}>` : null}
    ${
      begun
        ? html`<form class="stack" onSubmit=${confirm}>
      <p>1. Scan this code with your authenticator app, or type the secret into it.</p>
      <img class="qr" src=${begun.qr_code} alt="QR code of the secret" width="220" height="220" />
      <${Once} text=${begun.secret} label="The secret" />
      <p>2. Keep these recovery codes in a safe place. If you lose your device, each works once in place of a code. They are shown only now.</p>
      <ul class="codes mono" aria-label="Recovery codes">${begun.recovery_codes.map((one) => html`<li key=${one}>${one}</li>`)}</ul>
      <div class="actions"><${Copy} text=${begun.recovery_codes.join("\n")} label="Copy the recovery codes" /></div>
      ${problem}
      <${Input} label="3. The code that the app shows" inputmode="numeric" autocomplete="one-time-code" required maxlength="9" value=${code} onValue=${setCode} />
      <div class="actions"><${Button} onClick=${() => setBegun(null)}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>Turn it on</${Button}></div></form>`
        : html`<p>Off. With an authenticator app, a stolen password alone opens nothing.</p>${problem}
      <div><${Button} kind="primary" busy=${state.busy} onClick=${begin}>Set up a second factor</${Button}></div>`
    }</div></section>`;
}

// Names browser and system of a `User-Agent` header, as far as they are known.
function named(agent) {
  if (!agent) return "Unknown device";
  const find = (names) => names.find(([sign]) => agent.includes(sign))?.[1];
  const browser = find([
    ["Edg/", "Edge"],
    ["OPR/", "Opera"],
    ["Firefox/", "Firefox"],
    ["Chrome/", "Chrome"],
    ["Safari/", "Safari"],
  ]);
  const system = find([
    ["Android", "Android"],
    ["iPhone", "iPhone"],
    ["iPad", "iPad"],
    ["Windows", "Windows"],
    ["Mac OS X", "macOS"],
    ["Linux", "Linux"],
  ]);
  return browser ? `${browser}${system ? ` on ${system}` : ""}` : agent.slice(0, 60);
}

export function Sessions() {
  const all = useLoad((signal) => ask("GET", "/sessions", undefined, { signal }), []);
  const [ending, setEnding] = useState(null);
  return html`<section><div class="page-head"><h2>Where you are logged in</h2>
      ${all.data?.sessions.length > 1 ? html`<${Button} icon="log-out" onClick=${() => setEnding({ id: null })}>Log out everywhere else</${Button}>` : null}</div>
    <${Loaded} of=${all}>${(data) => html`<div class="card scroll"><table>
      <thead><tr><th scope="col">Device</th><th scope="col">Address</th><th scope="col">Logged in</th><th scope="col">Last used</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${data.sessions.map(
        (
          one,
        ) => html`<tr key=${one.id}><th scope="row"><span title=${one.device}><${Text}>${named(one.device)}</${Text}></span>${one.current ? html` <span class="tag">this device</span>` : null}</th>
        <td data-label="Address">${one.address ?? "–"}</td><td data-label="Logged in"><${Time} at=${one.created_at} /></td>
        <td data-label="Last used">${one.current ? "now" : html`<${Time} at=${one.last_seen_at} />`}</td>
        <td class="end">${one.current ? null : html`<${Button} onClick=${() => setEnding(one)}>Log out</${Button}>`}</td></tr>`,
      )}</tbody></table></div>`}</${Loaded}>
    ${
      ending
        ? html`<${Confirm} title=${ending.id ? "Log out this device?" : "Log out everywhere else?"} action="Log out" onClose=${() => setEnding(null)} onDo=${async () => {
            await ask("DELETE", ending.id ? `/sessions/${ending.id}` : "/sessions");
            all.reload();
          }}><p>${ending.id ? html`<strong>${named(ending.device)}</strong> has to log in again.` : "Every other device has to log in again."}</p></${Confirm}>`
        : null
    }</section>`;
}
