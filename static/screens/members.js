// Members: who they are and what they may do. For the Owner, also invitations and password reset links.

import { html, useState } from "../vendor/preact.js";
import {
  Button,
  Confirm,
  Dialog,
  Field,
  IconButton,
  Input,
  Loaded,
  Notice,
  Once,
  Page,
  ROLES,
  Text,
  Time,
  ask,
  sentence,
  session,
  useChanges,
  useLoad,
} from "../core.js";
import { Rows } from "../rows.js";

// The roles that a member other than the Owner can have.
const GIVEN = Object.keys(ROLES).slice(1);

export function List() {
  const { member: me } = session.value;
  const isOwner = me.role === "owner";
  const members = useLoad((signal) => ask("GET", "/members", undefined, { signal }), []);
  const invitations = useLoad(
    async (signal) => (isOwner ? ask("GET", "/invitations", undefined, { signal }) : { invitations: [] }),
    [isOwner],
  );
  useChanges(["members"], members);
  useChanges(["members"], invitations);
  const [isInviting, setInviting] = useState(false);
  const [removing, setRemoving] = useState(null);
  const [resetting, setResetting] = useState(null);
  const [problem, setProblem] = useState(null);
  const change = async (member, fields) => {
    setProblem(null);
    try {
      const changed = await ask("PATCH", `/members/${member.id}`, fields);
      members.set({ members: members.data.members.map((one) => (one.id === changed.id ? changed : one)) });
    } catch (error) {
      setProblem(error);
      members.reload();
    }
  };
  return html`<${Page} title="Members" intro="The people who can log in to this dashboard."
    actions=${isOwner ? html`<${Button} kind="primary" icon="plus" onClick=${() => setInviting(true)}>Invite a person</${Button}>` : null}>
    ${problem ? html`<${Notice} kind="error">${sentence(problem)}</${Notice}>` : null}
    <${Loaded} of=${members}>${(data) => html`<div class="card scroll"><table>
      <thead><tr><th scope="col">Name</th><th scope="col">Email</th><th scope="col">Role</th><th scope="col">API key access</th><th scope="col">Last seen</th>${isOwner ? html`<th scope="col"><span class="hidden">Actions</span></th>` : null}</tr></thead>
      <${Rows} all=${data.members} columns="6">${(
        member,
      ) => html`<tr key=${member.id}><th scope="row"><${Text}>${member.name}</${Text}>${member.id === me.id ? html` <span class="quiet">(you)</span>` : null}</th>
        <td data-label="Email"><${Text}>${member.email}</${Text}></td><td data-label="Role">${
          isOwner && member.role !== "owner" && !member.external
            ? html`<select aria-label=${`Role of ${member.name}`} value=${member.role} onChange=${(event) => change(member, { role: event.currentTarget.value })}>${GIVEN.map((role) => html`<option value=${role}>${ROLES[role][0]}</option>`)}</select>`
            : ROLES[member.role][0]
        }</td>
        <td data-label="API key access">${
          isOwner && member.role !== "owner"
            ? html`<label class="box"><input type="checkbox" checked=${member.api_key_access} aria-label=${`API key access of ${member.name}`} onChange=${(event) => change(member, { api_key_access: event.currentTarget.checked })} /><span>${member.api_key_access ? "Can manage API keys" : "No"}</span></label>`
            : member.api_key_access
              ? "Can manage API keys"
              : "No"
        }</td>
        <td data-label="Last seen">${member.id === me.id ? "now" : html`<${Time} at=${member.last_seen_at} />`}</td>
        ${
          isOwner
            ? html`<td class="end">${
                member.role === "owner"
                  ? null
                  : html`
          ${member.external ? null : html`<${IconButton} icon="rotate-ccw" label=${`Create a password reset link for ${member.name}`} onClick=${() => setResetting(member)} />`}
          <${IconButton} icon="trash-2" label=${`Remove ${member.name}`} onClick=${() => setRemoving(member)} />`
              }</td>`
            : null
        }</tr>`}</${Rows}></table></div>
      <dl class="facts">${Object.entries(ROLES).map(([role, [name, what]]) => html`<div key=${role}><dt>${name}</dt><dd>${what}</dd></div>`)}</dl>
      <p class="quiet">“API key access” is the permission to create and delete API keys, and nothing else. The Owner always has it. It is independent of the role. Revoking it, or removing a person, does not disable any keys.</p>`}</${Loaded}>
    ${
      isOwner && invitations.data?.invitations.length
        ? html`<section><h2>Open invitations</h2><div class="card scroll"><table>
      <thead><tr><th scope="col">For</th><th scope="col">Role</th><th scope="col">Made</th><th scope="col">Works until</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${invitations.data.invitations.map(
        (one) => html`<tr key=${one.id}><th scope="row">${one.email ? html`<${Text}>${one.email}</${Text}>` : "Anyone with the link"}</th>
        <td data-label="Role">${ROLES[one.role][0]}</td><td data-label="Made"><${Time} at=${one.created_at} /></td><td data-label="Works until"><${Time} at=${one.expires_at} /></td>
        <td class="end"><${Button} onClick=${async () => {
          setProblem(null);
          try {
            await ask("DELETE", `/invitations/${one.id}`);
          } catch (error) {
            setProblem(error);
          }
          invitations.reload();
        }}>Withdraw</${Button}></td></tr>`,
      )}</tbody></table></div></section>`
        : null
    }
    ${
      isInviting
        ? html`<${Invite} onClose=${() => {
            setInviting(false);
            invitations.reload();
          }} />`
        : null
    }
    ${resetting ? html`<${ResetLink} member=${resetting} onClose=${() => setResetting(null)} />` : null}
    ${
      removing
        ? html`<${Confirm} title="Remove this person?" action="Remove" onClose=${() => setRemoving(null)} onDo=${async () => {
            await ask("DELETE", `/members/${removing.id}`);
            members.reload();
          }}>
      <p><strong><${Text}>${removing.name}</${Text}></strong> is logged out everywhere and can no longer log in. API keys that this person created keep working; delete them if they should not.</p></${Confirm}>`
        : null
    }
  </${Page}>`;
}

export const Detail = List;

function LinkShown({ title, url, children, onClose }) {
  return html`<${Dialog} title=${title} onClose=${onClose} modal=${false}><div class="stack">${children}
    <${Once} text=${url} label="The link" />
    <p class="quiet">It works once, for 24 hours, and is shown only once. Hand it over yourself: no mail is sent. Anyone who has the link can use it.</p>
    <div class="actions end"><${Button} kind="primary" onClick=${onClose}>Done</${Button}></div></div></${Dialog}>`;
}

function Invite({ onClose }) {
  const [email, setEmail] = useState("");
  const [role, setRole] = useState("editor");
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null, made: null });
    try {
      setState({ busy: false, error: null, made: await ask("POST", "/invitations", { role, ...(email ? { email } : {}) }) });
    } catch (error) {
      setState({ busy: false, error, made: null });
    }
  };
  if (state.made)
    return html`<${LinkShown} title="The invitation is ready" url=${state.made.url} onClose=${onClose}><p>Give this link to the person you invite.</p></${LinkShown}>`;
  const fields = state.error?.fields ?? {};
  return html`<${Dialog} title="Invite a person" onClose=${onClose}><form class="stack" onSubmit=${submit}>
    ${state.error && !fields.email ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <p>You get a link to hand over. The person opens it and chooses a name and a password.</p>
    <${Input} label="Email" name="email" type="email" optional value=${email} onValue=${setEmail} error=${fields.email} first=${true} hint="For your reference, and filled in for the invited person." />
    <${Field} label="Role" hint=${`${ROLES[role][1]}.`}>${(field) => html`<select ...${field} value=${role} onChange=${(event) => setRole(event.currentTarget.value)}>${GIVEN.map((one) => html`<option value=${one}>${ROLES[one][0]}</option>`)}</select>`}</${Field}>
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" type="submit" busy=${state.busy}>Create the link</${Button}></div></form></${Dialog}>`;
}

function ResetLink({ member, onClose }) {
  const [state, setState] = useState({ busy: false, error: null, made: null });
  const make = async () => {
    setState({ busy: true, error: null, made: null });
    try {
      setState({ busy: false, error: null, made: await ask("POST", `/members/${member.id}/reset`) });
    } catch (error) {
      setState({ busy: false, error, made: null });
    }
  };
  if (state.made)
    return html`<${LinkShown} title="The link is ready" url=${state.made.url} onClose=${onClose}><p>Give this link to <strong><${Text}>${member.name}</${Text}></strong>, who can choose a new password with it.</p></${LinkShown}>`;
  return html`<${Dialog} title="A new password" onClose=${onClose}><div class="stack">
    ${state.error ? html`<${Notice} kind="error">${sentence(state.error)}</${Notice}>` : null}
    <p>You get a link with which <strong><${Text}>${member.name}</${Text}></strong> chooses a new password. An earlier link stops working.</p>
    <div class="actions end"><${Button} onClick=${onClose}>Cancel</${Button}><${Button} kind="primary" busy=${state.busy} onClick=${make}>Create the link</${Button}></div></div></${Dialog}>`;
}
