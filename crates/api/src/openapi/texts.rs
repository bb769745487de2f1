//! The texts of a document that belong to no operation: its introduction, and its tags.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::Role;

/// The folder of the pages that documents refer to.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs");

/// The conventions of all hosts with API keys.
const CONVENTIONS: &str = "\
Authenticate with an API key in `X-API-Key` or `Authorization: Bearer`. Anything of another \
organization is treated as nonexistent (404).

Bodies are JSON in both directions; `Content-Type` is optional. Times are RFC 3339 in UTC with \
milliseconds, amounts are US dollars, and IDs are UUIDs. Clients must accept fields that they do \
not know.

An error is `{\"error\", \"status\", \"details\"}`: `error` is a sentence for people, so programs \
rely on the HTTP status. A 429 or 503 is temporary and has `Retry-After`. Each response has an \
`X-Request-Id`, which is also in the service's log.

An unknown field of a request is ignored and reported in `warnings` of the response and in a \
`Warning` header; with `Prefer: handling=strict`, it returns 400. An unknown query parameter \
returns 400.

A create or trigger that accepts an `Idempotency-Key` can be repeated with the same key and body \
for 24 hours: it returns the first response and creates nothing again.";

/// Returns the introduction of a host's document.
pub(super) fn introduction(role: Role) -> String {
    let (about, conventions) = match role {
        Role::Base => (
            "The main API of Orrery: models and predictions, workflows and their executions, chat, \
             decisions, files, schedules and webhooks. A client needs no other document, except \
             for the agent.",
            CONVENTIONS,
        ),
        Role::Workflows => (
            "The workflow routes under their earlier paths. The host exists for compatibility; the \
             base host has the same routes under `/v1/workflows`.",
            CONVENTIONS,
        ),
        Role::Flows => (
            "Workflows in their legacy format. They are the same objects as those of the base \
             host, converted in both directions.",
            CONVENTIONS,
        ),
        Role::Agent => (
            "The agent, which answers prompts with the help of the organization's models and \
             workflows, and the Model Context Protocol, which offers them as tools to other agents.",
            CONVENTIONS,
        ),
        Role::Dashboard | Role::Metrics | Role::Control => (
            "The dashboard's own API, with a member's session, and the administration API under \
             `/admin/v1`, with an admin key. The routes of the other hosts are also available here, \
             under `/api/{host}`.",
            "The session cookie is set by `POST /session`. A request that changes something must \
             come from a page of the dashboard (`Sec-Fetch-Site` or `Origin`) and have the \
             `Content-Type` `application/json`. The administration API needs \
             `dashboard.admin_api` in the configuration and accepts only admin keys, in \
             `Authorization: Bearer`; a PUT by name can be repeated without effect.\n\n\
             An error is `{\"error\", \"status\", \"details\"}`: `error` is a sentence for people, \
             so programs rely on the HTTP status.",
        ),
    };
    format!("{about}\n\n{conventions}")
}

/// Returns a link to the documentation of a host.
pub(super) fn external_docs(role: Role) -> Value {
    let (page, description) = match role {
        Role::Base | Role::Metrics | Role::Control => ("api.md", "Every route, with examples"),
        Role::Workflows => ("workflows.md", "Workflows, with examples"),
        Role::Flows => ("spec/legacy.md", "The contract of the flows host"),
        Role::Agent => ("agent.md", "The agent, with examples"),
        Role::Dashboard => ("administration.md", "Administration, with examples"),
    };
    json!({"url": format!("{DOCS}/{page}"), "description": description})
}

/// Tags: the name, the page of the contract, and the description.
const TAGS: &[(&str, &str, &str)] = &[
    ("service", "spec/hosts.md", "The host itself: name, health, readiness and this document."),
    ("models", "spec/models.md", "The models that can run, with their input schemas and costs."),
    ("predictions", "spec/predictions.md", "Runs of a model: create, follow, read and cancel."),
    (
        "workflows",
        "spec/workflows.md",
        "Workflows, their versions and definitions. A definition is a set of steps; \
         `docs/spec/steps.md` describes their types.",
    ),
    (
        "executions",
        "spec/workflows.md",
        "Runs of a workflow: trigger, follow, read, pause, cancel and redrive.",
    ),
    ("schedules", "spec/schedules.md", "Runs of workflows and models by a cron pattern."),
    (
        "history",
        "spec/history.md",
        "Everything that the organization has run: predictions, workflow executions, chat calls, \
         decisions and exchanges of the agent in one list.",
    ),
    ("chat", "spec/chat.md", "Chat completions and embeddings in OpenAI's format."),
    (
        "decisions",
        "spec/decisions.md",
        "Typed questions about a text, answered with probabilities.",
    ),
    (
        "webhooks",
        "spec/webhooks.md",
        "Webhook deliveries and endpoints. The section `webhooks` describes what is sent.",
    ),
    ("files", "spec/files.md", "Uploads, and the files that models produce."),
    ("secrets", "spec/secrets.md", "Named values for the requests of workflows. Never returned."),
    ("limits", "spec/hosts.md", "What the operator permits the organization, and its usage."),
    ("billing", "spec/billing.md", "The balance, and what was spent."),
    ("ledger", "spec/billing.md", "Top-ups, charges and refunds, which add up to the balance."),
    ("agent", "spec/agent.md", "Prompts to the agent, and the tasks that answer them."),
    ("sessions", "spec/agent.md", "What the agent remembers of its conversations."),
    ("mcp", "spec/mcp.md", "Models and workflows as tools of the Model Context Protocol."),
    ("dashboard", "spec/dashboard.md", "The pages of the dashboard, and what they show."),
    (
        "links",
        "spec/dashboard.md",
        "Links that set up the Owner, invite people, or reset passwords.",
    ),
    ("members", "spec/dashboard.md", "The people who can log in."),
    ("keys", "spec/dashboard.md", "API keys. They belong to the organization."),
    (
        "chains",
        "spec/predictions.md",
        "Fallback chains: models that run if the primary model fails.",
    ),
    ("audit", "spec/dashboard.md", "Who changed what, and when."),
    ("admin", "administration.md", "The audit log of all organizations."),
    ("organizations", "administration.md", "Organizations and their limits."),
];

/// Returns the tags that a document uses.
pub(super) fn tags(role: Role, used: &BTreeSet<&str>) -> Value {
    let tag = |(name, page, description): &(&str, &str, &str)| {
        let (page, description) = match (role, *name) {
            (Role::Dashboard, "sessions") => ("spec/dashboard.md", "Logins, and passwords."),
            _ => (*page, *description),
        };
        json!({
            "name": name,
            "description": description,
            "externalDocs": {"url": format!("{DOCS}/{page}")},
        })
    };
    TAGS.iter().filter(|(name, ..)| used.contains(name)).map(tag).collect()
}
