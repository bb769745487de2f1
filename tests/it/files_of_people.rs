//! Workflows in a folder, and `orrery apply`: the command line with files written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Service, within};

/// Runs the binary against the service; returns whether it succeeded, its standard output, and its
/// standard error.
pub(crate) async fn run(service: &Service, arguments: &[&str]) -> (bool, String, String) {
    let command = tokio::process::Command::new(&service.config.program)
        .args(["--config", "config.toml"])
        .args(arguments)
        .current_dir(service.folder.path())
        .env("VAULT_TOKEN", SECRET)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let done = within("end of the command", command.wait_with_output()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.success(), text(done.stdout), text(done.stderr))
}

const SECRET: &str = "correct-horse-battery";

const GREETING: &str = "
name: Greeting
description: Says hello   # to anyone
tags: [demo]
definition:
  input_schema: {type: object, properties: {name: {type: string}}}
  steps:
    - step_id: say
      type: pass
      result: \"hello {{inputs.name}}\"
";

#[tokio::test(flavor = "multi_thread")]
async fn workflow_files_are_pushed_pulled_and_compared() {
    let service = Service::start().await;
    let folder = service.folder.path().join("flows");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("greeting.yaml");
    fs::write(&file, GREETING).unwrap();
    let (good, planned, said) = run(&service, &["workflow", "push", "flows", "--dry-run"]).await;
    assert!(good, "{said}");
    assert_eq!(planned, "create workflow greeting\n");
    let listed = async || service.flows(Method::GET, "/workflows").send().await.expect(200);
    assert_eq!(listed().await["total_count"], 0, "a dry run changed something");
    let (good, _, said) = run(&service, &["workflow", "push", "flows"]).await;
    assert!(good, "{said}");
    let made = listed().await;
    let made = &made["workflows"][0];
    assert_eq!((&made["slug"], &made["tags"]), (&json!("greeting"), &json!(["demo"])));
    let (_, planned, said) = run(&service, &["workflow", "push", "flows"]).await;
    assert_eq!((planned.as_str(), said.contains("Nothing to do")), ("", true), "{said}");
    assert_eq!(listed().await["workflows"][0]["updated_at"], made["updated_at"]);

    // A changed definition creates a new version, a changed name does not.
    fs::write(&file, GREETING.replace("hello {{", "good day {{")).unwrap();
    let (good, diff, said) = run(&service, &["workflow", "diff", "flows"]).await;
    assert!(good && diff.contains("good day"), "{diff}{said}");
    assert!(diff.starts_with("--- service/greeting\n+++ file/greeting\n@@ "), "{diff}");
    assert!(!diff.contains('\u{1b}'), "{diff}");
    let (_, planned, _) = run(&service, &["workflow", "push", "flows"]).await;
    assert_eq!(planned, "change workflow greeting: version v2\n");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("Says hello", "Greets")).unwrap();
    let (_, planned, _) = run(&service, &["workflow", "push", "flows"]).await;
    assert_eq!(planned, "change workflow greeting: description\n");
    let now = listed().await;
    assert_eq!(now["workflows"][0]["latest_version_id"], "v2");
    assert_eq!(now["workflows"][0]["description"], "Greets");

    // A pull writes equivalent files, and does not rewrite files with equivalent content.
    let (good, written, said) = run(&service, &["workflow", "pull", "flows"]).await;
    assert!(good && written.is_empty(), "{written}{said}");
    let (good, written, said) = run(&service, &["workflow", "pull", "copy"]).await;
    assert!(good, "{said}");
    assert_eq!(written, "copy/greeting.yaml\n");
    let (_, planned, said) = run(&service, &["workflow", "push", "copy"]).await;
    assert_eq!(planned, "", "{said}");
    // JSON files work too, and other organizations are not affected.
    let copy = service.folder.path().join("copy");
    let body = json!({"name": "Two", "description": "d", "definition": {"steps": [
        {"step_id": "end", "type": "pass", "result": 1}]}});
    fs::write(copy.join("two.json"), body.to_string()).unwrap();
    let (good, planned, said) =
        run(&service, &["workflow", "push", "copy", "--org", "other"]).await;
    assert!(good, "{said}");
    assert_eq!(planned, "create workflow greeting\ncreate workflow two\n");
    assert_eq!(listed().await["total_count"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_push_locks_last_and_unlocks_first() {
    let service = Service::start().await;
    let folder = service.folder.path().join("flows");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("greeting.yaml");
    let push = async |text: &str| {
        fs::write(&file, text).unwrap();
        let (good, _, said) = run(&service, &["workflow", "push", "flows"]).await;
        assert!(good, "{text}: {said}");
        let (_, planned, said) = run(&service, &["workflow", "push", "flows"]).await;
        assert_eq!((planned.as_str(), said.contains("Nothing to do")), ("", true), "{said}");
        let path = "/workflows/greeting";
        service.flows(Method::GET, path).send().await.expect(200)
    };
    let locked = format!("{GREETING}locked: true\nallowed_to_share: true\nproduction: true\n");
    let made = push(&locked).await;
    let version = &made["versions"][0];
    assert_eq!((&made["locked"], &made["production"]), (&json!(true), &json!(true)));
    assert_eq!(
        (&version["allowed_to_share"], &version["production"]),
        (&json!(true), &json!(true)),
        "{made}"
    );
    let changed = locked.replace("Says hello", "Greets").replace("locked: true", "locked: false");
    let changed = push(&changed).await;
    assert_eq!((&changed["locked"], &changed["description"]), (&json!(false), &json!("Greets")));
    let again = push(&locked.replace("hello {{", "good day {{")).await;
    assert_eq!((&again["locked"], &again["latest_version_id"]), (&json!(true), &json!("v2")));
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_file_that_is_invalid_is_named() {
    let service = Service::start().await;
    let folder = service.folder.path().join("flows");
    fs::create_dir(&folder).unwrap();
    let write = |text: &str| fs::write(folder.join("one.yaml"), text).unwrap();
    for (text, message) in [
        ("name: [", "it is not valid YAML"),
        ("name: a\nsteps: []\n", "unknown field 'steps'"),
        ("name: a\ndescription: d\n", "definition is required"),
        ("name: a\ndescription: d\ndefinition: {steps: [{type: x}]}\n", "create workflow one"),
    ] {
        write(text);
        let (good, _, said) = run(&service, &["workflow", "push", "flows"]).await;
        assert!(!good && said.contains(message), "{said}");
    }
}

fn document(folder: &Path) {
    let text = "
organizations:
  acme:
    keys:
      ci: {expires: 90d}
      cd: {}
    secrets:
      vault: {env: VAULT_TOKEN}
    workflows:
      greeting: {file: greeting.yaml}
    chains:
      cheap: {model: text-language, entries: [{model: text-sentiment}]}
    schedules:
      nightly: {workflow: greeting, cron: '@daily', timezone: Europe/Berlin, ends_at: '2099-01-01T00:00:00Z'}
      tick: {model: text-template, version: '1', input: {template: x}, cron: '@hourly', paused: true}
    webhook_endpoints:
      bills: {url: 'https://hooks.example.com/bills', events: [workflow.completed]}
      orders: {url: 'https://hooks.example.com/', events: [workflow.failed]}
  default: {}
";
    fs::write(folder.join("greeting.yaml"), GREETING).unwrap();
    fs::write(folder.join("orrery.yaml"), text).unwrap();
}

/// Returns the keys and webhook secrets that `orrery apply` has printed, each with its label.
fn printed_secrets(made: &str) -> BTreeMap<&str, &str> {
    let secrets = made.lines().filter_map(|line| line.split_once(": "));
    let secrets: BTreeMap<&str, &str> =
        secrets.filter(|(_, one)| one.starts_with("smk_") || one.starts_with("whsec_")).collect();
    let labels: Vec<&str> = secrets.keys().copied().collect();
    assert_eq!(
        labels,
        [
            "key cd of organization acme",
            "key ci of organization acme",
            "webhook endpoint bills",
            "webhook endpoint orders",
        ]
    );
    let distinct: BTreeSet<&&str> = secrets.values().collect();
    assert_eq!(distinct.len(), 4, "{made}");
    secrets
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_creates_everything_and_is_idempotent() {
    let service = Service::start().await;
    let folder = service.folder.path();
    document(folder);
    let (good, planned, said) = run(&service, &["apply", "-f", "orrery.yaml", "--dry-run"]).await;
    assert!(good, "{said}");
    for line in [
        "acme: create organization",
        "acme: create secret vault",
        "acme: create workflow greeting",
        "acme: create chain cheap of text-language",
        "acme: create webhook endpoint orders",
        "acme: create schedule nightly",
        "acme: create schedule tick",
        "acme: create key ci",
    ] {
        assert!(planned.contains(line), "{line}: {planned}");
    }
    assert!(!planned.contains(SECRET), "{planned}");
    let accounts = &service.running.services.accounts;
    assert!(accounts.organization("acme").await.is_err(), "a dry run made it");

    let (good, made, said) = run(&service, &["apply", "-f", "orrery.yaml"]).await;
    assert!(good, "{said}");
    assert!(made.contains("smk_") && made.contains("whsec_") && !made.contains(SECRET), "{made}");
    let secrets = printed_secrets(&made);
    let key = secrets["key ci of organization acme"];
    let ask = async |path: &str| -> Value {
        service.ask(Role::Base, Method::GET, path).key(key).send().await.expect(200)
    };
    assert_eq!(ask("/v1/workflows").await["workflows"][0]["slug"], "greeting");
    assert_eq!(ask("/v1/schedules").await["total_count"], 2);
    let endpoints = ask("/v1/webhook-endpoints").await;
    let endpoints = endpoints["webhook_endpoints"].as_array().unwrap();
    let names: BTreeSet<&str> = endpoints.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["bills", "orders"]));
    assert_eq!(ask("/v1/secrets").await["secrets"][0]["name"], "vault");
    let acts = async || {
        let acts = service
            .running
            .services
            .audit
            .list(&orrery_records::audit::Filter::default(), 1000)
            .await;
        acts.unwrap().len()
    };
    let before = acts().await;
    let (good, again, said) = run(&service, &["apply", "-f", "orrery.yaml"]).await;
    assert!(good && again.is_empty() && said.contains("Nothing to do"), "{again}{said}");
    assert_eq!(acts().await, before, "the second run acted");

    let text = fs::read_to_string(folder.join("orrery.yaml")).unwrap();
    let text = text.replace("workflow.failed", "workflow.completed").replace("@hourly", "@weekly");
    fs::write(folder.join("orrery.yaml"), text).unwrap();
    let (good, changed, said) = run(&service, &["apply", "-f", "orrery.yaml"]).await;
    assert!(good, "{said}");
    let lines: Vec<&str> = changed.lines().filter(|line| line.starts_with("acme: ")).collect();
    assert_eq!(lines, ["acme: change webhook endpoint orders", "acme: change schedule tick"]);
    assert!(changed.contains("workflow.failed"), "{changed}");
    let (_, again, _) = run(&service, &["apply", "-f", "orrery.yaml"]).await;
    assert_eq!(again, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_restricts_keys_and_changes_only_what_differs() {
    let service = Service::start().await;
    let path = service.folder.path().join("keys.yaml");
    let name = &service.organization.name;
    let file = |keys: &str| {
        let text = format!(
            "organizations:\n  {name}:\n    limits: {{monthly_budget_usd: 100}}\n    keys:\n{keys}"
        );
        fs::write(&path, text).unwrap();
    };
    let restricted = "      ci: {models: [llama, gpt-*], scopes: [read, chat], max_budget: 10,
        budget_duration: 24h, rpm_limit: 60, tpm_limit: 100000, max_parallel_requests: 4,
        tags: [team=a], metadata: {owner: ana}, blocked: false, expires: 90d}\n";
    file(restricted);
    let (good, made, said) = run(&service, &["apply", "-f", "keys.yaml"]).await;
    assert!(good && made.contains("create key ci"), "{made}{said}");
    assert!(made.contains("change limits"), "{made}");
    let accounts = &service.running.services.accounts;
    let keys = async || {
        let keys = accounts.keys(service.organization.id).await.unwrap();
        keys.into_iter().find(|key| key.name == "ci").unwrap()
    };
    let key = keys().await;
    let json = serde_json::to_value(&key.policy).unwrap();
    let expected = json!({
        "models": ["llama", "gpt-*"], "scopes": ["chat", "read"], "max_budget": 10_000_000,
        "budget_duration": "1d", "rpm_limit": 60, "tpm_limit": 100_000,
        "max_parallel_requests": 4, "tags": ["team=a"], "metadata": {"owner": "ana"},
    });
    assert_eq!(json, expected);
    let (good, again, said) = run(&service, &["apply", "-f", "keys.yaml"]).await;
    assert!(good && again.is_empty() && said.contains("Nothing to do"), "{again}{said}");

    // Omitted restrictions stay, and null removes one.
    file("      ci: {rpm_limit: 30, models: null, blocked: true}\n");
    let (good, changed, said) = run(&service, &["apply", "-f", "keys.yaml"]).await;
    assert!(good && changed.contains("change key ci") && changed.contains("rpm_limit"), "{said}");
    let changed = keys().await;
    assert_eq!((changed.id, changed.policy.rpm_limit), (key.id, Some(30)));
    assert!(changed.policy.models.is_none() && changed.policy.blocked);
    assert_eq!(changed.policy.tags, ["team=a"]);
    let (_, again, _) = run(&service, &["apply", "-f", "keys.yaml"]).await;
    assert_eq!(again, "");

    file("      ci: {rpm: 30}\n");
    let (good, _, said) = run(&service, &["apply", "-f", "keys.yaml"]).await;
    assert!(!good && said.contains("key ci") && said.contains("unknown field `rpm`"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_reads_toml_and_names_faults() {
    let service = Service::start().await;
    let text = "[organizations.acme.secrets.vault]\nenv = \"VAULT_TOKEN\"\n\
                [organizations.acme.keys.ci]\n";
    fs::write(service.folder.path().join("orrery.toml"), text).unwrap();
    let (good, made, said) = run(&service, &["apply", "-f", "orrery.toml"]).await;
    assert!(good && made.contains("smk_"), "{made}{said}");
    let (_, again, said) = run(&service, &["apply", "-f", "orrery.toml"]).await;
    assert_eq!(again, "", "{said}");
    fs::write(service.folder.path().join("bad.yaml"), "organizations: {acme: {keyz: {}}}").unwrap();
    let (good, _, said) = run(&service, &["apply", "-f", "bad.yaml"]).await;
    assert!(!good && said.contains("unknown field `keyz`"), "{said}");
    for (text, place) in [
        ("organizations: [a]", "organizations: invalid type: sequence"),
        ("organizations: {acme: {keys: [ci]}}", "organizations.acme.keys: invalid type: sequence"),
        ("organizations: [", "it is not valid YAML: unclosed bracket"),
    ] {
        fs::write(service.folder.path().join("bad.yaml"), text).unwrap();
        let (good, _, said) = run(&service, &["apply", "-f", "bad.yaml"]).await;
        assert!(!good && said.contains(place), "{said}");
        assert_eq!(said.matches("bad.yaml").count(), 1, "{said}");
        assert!(said.matches("cannot be used").count() < 2, "{said}");
    }
}
