//! The page about errors: HTTP statuses, and the error classes of failed executions.

use std::collections::{BTreeMap, BTreeSet};

use orrery_api::{Role, openapi_of};
use orrery_domain::classify::ErrorClass;
use serde_json::Value;

use super::page::{Page, escape, outside_code};

/// The hosts with APIs.
const HOSTS: [Role; 5] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard];

pub(super) fn page() -> String {
    let mut page = Page::new("Error reference", "the OpenAPI documents and the error classes");
    page.text(
        "A failed request has an HTTP status and a body with an error message: see [Every \
         response](../api.md#every-response). A failed execution has an error class, which determines \
         retries and fallbacks.",
    );
    page.heading(2, "HTTP statuses");
    page.text("What each status means, over all operations of all hosts:");
    let rows = statuses().into_iter().map(|(status, texts)| {
        let texts: Vec<String> = texts.iter().map(|text| outside_code(text, &escape)).collect();
        [format!("`{status}`"), texts.join(" · ")]
    });
    page.table(["status", "meanings"], &rows.collect::<Vec<_>>());
    page.text(
        "429 and 503 are temporary: repeat the request after the `Retry-After` of the response, \
         with the same `Idempotency-Key` if it creates something.",
    );
    page.heading(2, "Error classes");
    page.text(
        "The `error_classification` of a failed prediction, step or delivery. The last column \
         lists the statuses of an upstream's response that lead to the class.",
    );
    let rows = ErrorClass::ALL.map(|class| {
        let of_class =
            (300..600).filter(|status| ErrorClass::of_http_status(*status) == Some(class));
        // This class covers every status that has no class of its own.
        let from = if class == ErrorClass::ProviderError {
            "any other than 2xx".to_owned()
        } else {
            of_class.map(|status| status.to_string()).collect::<Vec<_>>().join(", ")
        };
        [format!("`{class}`"), meaning(class).to_owned(), from]
    });
    page.table(["class", "meaning", "HTTP statuses"], &rows);
    page.finish()
}

/// Returns the descriptions of each error status.
fn statuses() -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for document in HOSTS.map(|role| openapi_of(role, "")) {
        let operations = document["paths"].as_object().into_iter().flatten();
        let operations =
            operations.flat_map(|(_, methods)| methods.as_object().into_iter().flatten());
        let responses =
            operations.flat_map(|(_, one)| one["responses"].as_object().into_iter().flatten());
        for (status, response) in responses.filter(|(status, _)| status.starts_with(['4', '5'])) {
            let text = response["description"].as_str().unwrap_or_default().to_owned();
            all.entry(status.clone()).or_default().insert(text);
        }
    }
    all
}

const fn meaning(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::ContentModeration => {
            "The provider's content filter rejected the input or the output."
        }
        ErrorClass::ExecutionTimeout => "The attempt did not end within its time limit.",
        ErrorClass::InvalidUserInput => {
            "The model does not accept the input; retries would fail too."
        }
        ErrorClass::InvalidModelConfig => "The manifest or the setup of the model is invalid.",
        ErrorClass::ProviderAuth => "The provider rejected the credentials of the model.",
        ErrorClass::ProviderError => "The provider failed, or its response cannot be used.",
        ErrorClass::ProviderRateLimit => "The provider limits the rate of requests.",
        ErrorClass::ProviderUnavailable => "The provider cannot be reached or is overloaded.",
        ErrorClass::InternalError => "The service itself failed; its log has the cause.",
        ErrorClass::Unknown => "The cause is unknown.",
    }
}

#[test]
fn statuses_are_of_the_documents() {
    let all = statuses();
    assert!(all["401"].iter().any(|text| text.contains("API key")), "{all:?}");
    assert_eq!(openapi_of(Role::Base, "")["openapi"], Value::from("3.1.0"));
}
