//! The audit log: what the operator did and who was refused, in the store and in the file.

use std::fs;

use hyper::Method;
use orrery::api::Role;
use orrery::audit::{Actor, Filter};
use serde_json::Value;

use crate::support::{Service, until};

async fn acts(service: &Service) -> Vec<(String, String, String)> {
    let audit = &service.running.services.audit;
    audit.write_denied().await.unwrap();
    let entries = audit.list(&Filter::default(), 100).await.unwrap();
    let shown = |entry: orrery::audit::Entry| (entry.action, entry.actor, entry.result);
    entries.into_iter().rev().map(shown).collect()
}

#[tokio::test]
async fn acts_and_failed_authentications_are_recorded_and_shipped() {
    let service = Service::start().await;
    let (accounts, organization) = (&service.running.services.accounts, service.organization.id);
    let accounts = accounts.by(Actor::operator("test"));
    let (key, full) = accounts.create_key(organization, "audited", "test", None).await.unwrap();
    accounts.delete_key(organization, key.id).await.unwrap();
    assert!(accounts.delete_key(organization, key.id).await.is_err());
    for _ in 0..3 {
        let ask = service.ask(Role::Base, Method::GET, "/v1/executions").key(&full);
        assert_eq!(ask.send().await.status, 401);
    }
    let acts = acts(&service).await;
    let of = |action: &str, actor: &str| {
        acts.iter().filter(|(act, who, _)| act == action && who == actor).count()
    };
    assert_eq!((of("key.create", "operator"), of("key.delete", "operator")), (1, 1), "{acts:?}");
    assert_eq!((of("service.start", "service"), of("authentication", "unknown")), (1, 1));
    let denied = acts.iter().find(|(action, ..)| action == "authentication").unwrap();
    assert_eq!(denied.2, "denied");

    // The file says the same, and no line holds a key.
    let path = service.config.audit.folder.join("audit.jsonl");
    let text = until("audit file", async || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        (text.lines().count() >= acts.len()).then_some(text)
    })
    .await;
    assert!(!text.contains(&full));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, (action, ..)) in lines.iter().zip(&acts) {
        assert_eq!(line["action"], action.as_str());
    }
}
