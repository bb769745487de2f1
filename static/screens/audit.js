// The audit log of the organization.

import { html } from "../vendor/preact.js";
import { Empty, Field, Loaded, Page, Text, Time, ask, useLoad } from "../core.js";
import { place, setQuery } from "../location.js";
import { Rows } from "../rows.js";

const GROUPS = [
  ["", "Everything"],
  ["session", "Log-ins and log-outs"],
  ["key", "API keys"],
  ["member", "Members"],
  ["link", "Invitations and links"],
  ["workflow", "Workflows"],
  ["chain", "Fallback chains"],
  ["schedule", "Schedules"],
  ["webhook", "Webhooks and their endpoints"],
  ["secret", "Secrets"],
  ["balance", "Balance"],
  ["organization", "The organization"],
];
const WORDS = {
  "session.create": "Logged in",
  "session.delete": "Logged out",
  "key.create": "Created an API key",
  "key.delete": "Deleted an API key",
  "member.create": "Joined",
  "member.delete": "Removed a member",
  "member.password": "Set a new password",
  "member.role": "Changed the role of a member",
  "member.totp.begin": "Began to set up a second factor",
  "member.totp.enable": "Turned on the second factor",
  "member.totp.disable": "Turned off the second factor",
  "member.totp.recovery": "Logged in with a recovery code",
  "session.revoke": "Lost access: no group grants it any more",
  "session.delete_others": "Logged out everywhere else",
  "member.allow_keys": "Granted “API key access”",
  "member.deny_keys": "Revoked “API key access”",
  "chain.create": "Created a fallback chain",
  "chain.change": "Changed a fallback chain",
  "chain.delete": "Deleted a fallback chain",
  "workflow.version": "Saved a version of a workflow",
  "POST /keys": "Create an API key",
  "DELETE /keys/{id}": "Delete an API key",
  "POST /invitations": "Invite a member",
  "DELETE /invitations/{id}": "Withdraw an invitation",
  "PATCH /members/{id}": "Change the role or the permission of a member",
  "DELETE /members/{id}": "Remove a member",
  "POST /members/{id}/reset": "Create a password reset link",
  "link.create": "Made a link",
  "link.delete": "Withdrew an invitation",
  "balance.top-up": "Topped up the balance",
  "organization.create": "Created the organization",
  "organization.limit": "Changed the limits of the organization",
  "webhook.redeliver": "Sent a webhook again",
};
const LINKS = { invite: "Invitation", reset: "New password", setup: "Set-up" };
const WHO = { operator: "The operator", service: "The service" };

const SUBJECTS = {
  schedule: "a schedule",
  endpoint: "a webhook endpoint",
  webhook_endpoint: "a webhook endpoint",
  workflow: "a workflow",
  version: "a version of a workflow",
  secret: "a secret",
  file: "a file",
  webhook: "a webhook",
  trigger: "a trigger",
  execution: "a run",
  executions: "many runs",
  key: "an API key",
  organization: "the organization",
  model: "a model",
  chain: "a fallback chain",
  bulk: "a bulk job",
};
const VERBS = {
  create: "Created",
  change: "Changed",
  update: "Changed",
  delete: "Deleted",
  rename: "Renamed",
  archive: "Archived",
  activate: "Activated",
  pause: "Paused",
  disable: "Disabled",
  redrive: "Continued",
  resume: "Resumed",
  run: "Started",
  erase: "Erased the data of",
  cancel: "Stopped",
  rotate: "Rotated the signing secret of",
  set: "Set",
  share: "Shared",
  lock: "Locked",
  unlock: "Unlocked",
};

// Describes actions in words; unknown actions are shown by name. In an action's name, the first part is the object and
// the last part is the verb.
export function wordsOf(action) {
  const parts = action.split(".");
  const [subject, verb] = [parts[0], parts.at(-1)];
  return WORDS[action] ?? (SUBJECTS[subject] && VERBS[verb] ? `${VERBS[verb]} ${SUBJECTS[subject]}` : action);
}

const ID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;
const isNamed = (subject) => subject.search(ID) === 0 && subject[36] === " ";
// Returns the name after an id; for a key, without the beginning of the key's text.
const nameIn = (subject) => subject.slice(37).replace(/^\w{4,16}… /, "");

// Returns names for ids: of existing resources, and of resources that the log itself mentions.
function namesOf(known, events) {
  const names = new Map(events.filter((one) => isNamed(one.subject)).map((one) => [one.subject.slice(0, 36), nameIn(one.subject)]));
  for (const one of [...(known?.keys ?? []), ...(known?.members ?? [])]) names.set(one.id, one.name);
  return names;
}

const ended = (id) => `…${id.slice(-8)}`;

// Returns the actor; a key is shown by its name.
function whoOf(actor, names) {
  const [, admin, id] = /^(admin )?key (\S+)/.exec(actor) ?? [];
  if (!id) return WHO[actor] ?? actor;
  return `${admin ? "Admin key" : "API key"} ${names.has(id) ? `“${names.get(id)}”` : ended(id)}`;
}

// Returns the object, with ids replaced by names or, if there is no name, by the end of the id.
export function subjectOf(subject, names) {
  const [link, ...email] = subject.split(" ");
  if (LINKS[link]) return email.length ? `${LINKS[link]} for ${email.join(" ")}` : LINKS[link];
  if (isNamed(subject)) return nameIn(subject);
  return subject.replace(ID, (id) => names.get(id) ?? ended(id));
}

export function List() {
  // If a list cannot be loaded, the log is still shown, only without its names.
  const known = useLoad(async (signal) => {
    const [keys, members] = await Promise.all(
      ["/keys", "/members"].map((path) => ask("GET", path, undefined, { signal }).catch(() => null)),
    );
    return { ...keys, ...members };
  }, []);
  const action = place.value.query.get("action") ?? "";
  const limit = Number(place.value.query.get("limit")) || 50;
  const events = useLoad(
    (signal) => ask("GET", `/audit?limit=${limit}&action=${encodeURIComponent(action)}`, undefined, { signal }),
    [action, limit],
  );
  const names = namesOf(known.data, events.data?.events ?? []);
  return html`<${Page} title="Audit log" intro="Who did what in your organization, newest first. Nothing here can be changed or deleted.">
    <div class="filters"><${Field} label="Show">${(
      field,
    ) => html`<select ...${field} value=${action} onChange=${(event) => setQuery({ action: event.currentTarget.value })}>
      ${GROUPS.map(([value, word]) => html`<option value=${value}>${word}</option>`)}</select>`}</${Field}></div>
    <${Loaded} of=${events} empty=${(data) => (data.events.length ? null : html`<${Empty} icon="scroll-text" title="Nothing here"><p>There are no such actions yet.</p></${Empty}>`)}>${(
      data,
    ) => html`
      <div class="card scroll"><table><thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">On</th><th scope="col">From</th></tr></thead>
      <${Rows} all=${data.events} columns="5">${(
        event,
      ) => html`<tr key=${`${event.at} ${event.action} ${event.subject}`}><td><${Time} at=${event.at} /></td><td data-label="Who"><${Text}>${whoOf(event.actor, names)}</${Text}></td>
        <td data-label="What"><div>${wordsOf(event.action)}${event.result === "ok" ? null : html` <span class="status bad">refused: <${Text}>${event.result}</${Text}></span>`}</div></td>
        <td data-label="On"><span title=${event.subject}><${Text}>${subjectOf(event.subject, names)}</${Text}></span></td><td data-label="From"><span class="quiet"><${Text}>${event.from}</${Text}></span></td></tr>`}</${Rows}></table></div>
      ${data.events.length >= limit && limit < 1000 ? html`<p class="more"><button type="button" class="button plain" onClick=${() => setQuery({ limit: Math.min(1000, limit * 2) })}>Show more</button></p>` : null}`}</${Loaded}></${Page}>`;
}

export const Detail = List;
