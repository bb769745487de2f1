//! The texts of a document outside of operations: its introduction, and its tags.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::Role;

/// The URL of the documentation folder to which documents link.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs");
/// The subfolder of the specification.
const CONTRACT: &str = "spec";

/// Returns the URL of a guide (`guide.md`) or of a page of the specification (without `.md`).
fn url_of(page: &str) -> String {
    if page.ends_with(".md") {
        format!("{DOCS}/{page}")
    } else {
        format!("{DOCS}/{CONTRACT}/{page}.md")
    }
}

/// The conventions of all hosts with API keys.
const CONVENTIONS: &str = "\
Authenticate with an API key in `X-API-Key` or `Authorization: Bearer`. Resources of other \
organizations are treated as nonexistent (404).

Bodies are JSON in both directions; `Content-Type` is optional. Times are RFC 3339 in UTC with \
milliseconds, amounts are US dollars, and IDs are UUIDs. Clients must accept unknown fields.

An error is `{\"error\", \"status\", \"details\"}`: `error` is a sentence for people, so programs \
rely on the HTTP status. A 429 or 503 is temporary and has `Retry-After`. Each response has an \
`X-Request-Id`, which is also in the service's log.

An unknown field of a request is ignored and reported in `warnings` of the response and in a \
`Warning` header; with `Prefer: handling=strict`, it returns 400. An unknown query parameter \
returns 400.

A create or trigger request that accepts an `Idempotency-Key` can be repeated with the same key \
and body for 24 hours: the repetition returns the first response and creates nothing.";

/// Returns the introduction of a host's document.
pub(super) fn introduction(role: Role) -> String {
    let (about, conventions) = match role {
        Role::Base => (
            "The main API of Orrery: models and predictions, workflows and their executions, chat, \
             decisions, files, schedules and webhooks. A client needs no other document, except \
             for the agent.\n\n\
             The routes of OpenAI's API, such as `/v1/chat/completions`, `/v1/models` and \
             `/v1/files`, are also below `/openai/v1`. There, every request needs a key, every \
             error has OpenAI's format, models are listed in that format, and unknown query \
             parameters are ignored.\n\n\
             Replicate's API is below `/replicate/v1`, with its own paths, statuses and errors.",
            CONVENTIONS,
        ),
        Role::Workflows => (
            "The workflow routes under their earlier paths. The host exists for compatibility; the \
             base host has the same routes under `/v1/workflows`.",
            CONVENTIONS,
        ),
        Role::Flows => (
            "Workflows in their legacy format. The workflows are the same objects as on the base \
             host, converted in both directions.",
            CONVENTIONS,
        ),
        Role::Agent => (
            "The agent, which answers prompts with the help of the organization's models and \
             workflows, and the Model Context Protocol, which offers them as tools to other agents.",
            CONVENTIONS,
        ),
        Role::Dashboard | Role::Ollama | Role::Metrics | Role::Control => (
            "The dashboard's own API, with a member's session, and the administration API under \
             `/admin/v1`, with an admin key. The routes of the other hosts are also available here, \
             under `/api/{host}`.",
            "The session cookie is set by `POST /session`. A request that changes something must \
             come from a page of the dashboard (`Sec-Fetch-Site` or `Origin`) and have the \
             `Content-Type` `application/json`. The administration API needs `dashboard.admin_api` \
             in the configuration and accepts only admin keys, in `Authorization: Bearer`; \
             repeating a PUT by name has no further effect.\n\nAn error is `{\"error\", \
             \"status\", \"details\"}`: `error` is a sentence for people, so programs rely on the \
             HTTP status.",
        ),
    };
    format!("{about}\n\n{conventions}")
}

/// Returns a link to the documentation of a host.
pub(super) fn external_docs(role: Role) -> Value {
    let (page, description) = match role {
        Role::Base | Role::Ollama | Role::Metrics | Role::Control => {
            ("api.md", "Every route, with examples")
        }
        Role::Workflows => ("workflows.md", "Workflows, with examples"),
        Role::Flows => ("legacy", "The contract of the flows host"),
        Role::Agent => ("agent.md", "The agent, with examples"),
        Role::Dashboard => ("administration.md", "Administration, with examples"),
    };
    json!({"url": url_of(page), "description": description})
}

/// The tags: name, page of the specification, and description.
const TAGS: &[(&str, &str, &str)] = &[
    ("service", "hosts", "The host itself: name, health, readiness and this document."),
    ("models", "models", "The models that can run, with their input schemas and costs."),
    (
        "workers",
        "workers",
        "Routes for workers on other machines, which claim and run a model's jobs. All routes \
         need a key with the scope `worker`.",
    ),
    ("predictions", "predictions", "Runs of a model: create, follow, read and cancel."),
    (
        "workflows",
        "workflows",
        "Workflows, their versions and definitions. A definition is a set of steps, whose \
         types the contract's page on steps describes.",
    ),
    (
        "executions",
        "workflows",
        "Runs of a workflow: trigger, follow, read, pause, cancel and redrive.",
    ),
    ("schedules", "schedules", "Cron schedules that run workflows and models."),
    (
        "history",
        "history",
        "Everything that the organization has run: predictions, workflow executions, chat calls, \
         decisions and exchanges of the agent in one list.",
    ),
    ("chat", "chat", "Chat completions and embeddings in OpenAI's format."),
    ("media", "chat", "Transcripts, speech and images in OpenAI's format."),
    ("responses", "responses", "Responses in OpenAI's format, answered by any chat model."),
    ("messages", "messages", "Messages in Anthropic's format, answered by any chat model."),
    (
        "replicate",
        "replicate",
        "Predictions, files and models in the format of Replicate's API, for Replicate's clients.",
    ),
    ("decisions", "decisions", "Typed questions about a text, answered with probabilities."),
    (
        "webhooks",
        "webhooks",
        "Webhook deliveries and endpoints. The section `webhooks` describes what is sent.",
    ),
    ("files", "files", "Uploads, and the files that models produce."),
    ("secrets", "secrets", "Named values for the requests of workflows. Never returned."),
    (
        "limits",
        "hosts",
        "The limits that the operator has set for the organization, and their usage.",
    ),
    ("billing", "billing", "The balance, and the usage and costs by key, model and time."),
    ("ledger", "billing", "Top-ups, charges and refunds, which add up to the balance."),
    ("agent", "agent", "Prompts to the agent, and the tasks that answer them."),
    ("sessions", "agent", "The agent's memory of conversations."),
    ("mcp", "mcp", "Models and workflows as tools of the Model Context Protocol."),
    ("dashboard", "dashboard", "The pages of the dashboard, and the data that they show."),
    ("links", "dashboard", "Links that set up the Owner, invite people, or reset passwords."),
    ("members", "dashboard", "The people who can log in."),
    ("keys", "dashboard", "The API keys of the organization."),
    ("chains", "predictions", "Fallback chains: models that run if the primary model fails."),
    ("audit", "dashboard", "Who changed what, and when."),
    ("admin", "administration.md", "The audit log of all organizations."),
    ("organizations", "administration.md", "Organizations and their limits."),
];

/// Returns the tags that a document uses.
pub(super) fn tags(role: Role, used: &BTreeSet<&str>) -> Value {
    let tag = |(name, page, description): &(&str, &str, &str)| {
        let (page, description) = match (role, *name) {
            (Role::Dashboard, "sessions") => ("dashboard", "Logins, and passwords."),
            _ => (*page, *description),
        };
        json!({
            "name": name,
            "description": description,
            "externalDocs": {"url": url_of(page)},
        })
    };
    TAGS.iter().filter(|(name, ..)| used.contains(name)).map(tag).collect()
}
