//! Webhooks, files, balance, health and the audit log in a browser.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Process, Receiver, Service, until};

/// Shifts the page's clock on demand.
const CLOCK: &str = "window.late = Number(sessionStorage.getItem('late') ?? 0); const now = Date.now; Date.now = () => now() + window.late; \
    window.becomesLate = (ms) => { window.late = ms; sessionStorage.setItem('late', ms); };";
/// The cooldown after a redelivery, in seconds.
const COOLDOWN: i64 = 3600;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn upkeep_screens_redeliver_in_every_state() {
    let lines = "webhooks.schedule = ['1ms']\nwebhooks.redelivery_cooldown = '1h'\nengine.payload_inline_bytes = 1024\n";
    let process = Process::start(lines, |_| {}).await;
    let mut receiver = Receiver::held([500, 500]).await;
    let link = process.command(&["owner", "link"]).await;
    let token = link.split_once('#').unwrap().1.split_whitespace().next().unwrap();
    let browser = Chromium::start().await;
    browser.before_pages(CLOCK).await;
    browser.goes_to(&process.page(&format!("/setup#{token}"))).await;
    browser.joins_as_owner().await;
    let body = json!({"model": "text-template", "version": "0.0.1", "input": {"template": "x".repeat(5000)}, "webhook_url": receiver.url()});
    let made = browser.asks("POST", "/api/base/v1/prediction", &body).await;
    let id = made["predictionID"].as_str().unwrap().to_owned();
    let has_no_button = async |state: &str| {
        let count = "return [...document.querySelectorAll('button')].filter((one) => one.innerText === 'Send again').length";
        assert_eq!(browser.run(count).await, 0, "{state}");
        let record =
            browser.asks("GET", &format!("/api/base/v1/webhooks/{id}"), &Value::Null).await;
        assert_eq!(record["redeliverable"], false, "{state}: {record}");
    };
    // The first attempt is in flight.
    receiver.next().await;
    browser.goes_to(&process.page(&format!("/app/webhooks/{id}"))).await;
    browser.see("Delivery in flight").await;
    has_no_button("in flight").await;
    receiver.let_go();
    receiver.next().await;
    receiver.let_go();
    // The delivery has failed after the second attempt: the page updates by itself and shows the
    // button.
    browser.see("Failed").await;
    browser.see("500").await;
    browser.press("Send again").await;
    receiver.next().await;
    browser.see("Delivery in flight").await;
    has_no_button("in flight again").await;
    receiver.let_go();
    // The webhook is sent; the page counts down the cooldown of an hour.
    browser.see("Again in ").await;
    has_no_button("pause").await;
    browser.picture("webhook").await;
    browser.is_accessible("webhook").await;
    // Both clocks advance by almost an hour. At the end of the countdown, the button appears
    // without any interaction.
    process.shift_clock(COOLDOWN - 30);
    browser.run(&format!("window.becomesLate({})", (COOLDOWN - 30) * 1000)).await;
    browser.see("Again in ").await;
    has_no_button("half a minute before its end").await;
    process.shift_clock(COOLDOWN + 5);
    browser.run(&format!("window.becomesLate({})", (COOLDOWN + 5) * 1000)).await;
    browser.press("Send again").await;
    receiver.next().await;
    browser.see("Delivery in flight").await;
    receiver.let_go();
    browser.see("Again in ").await;
    browser.see("Delivered").await;
    has_no_button("delivered, pause").await;
    // The newest attempt's response is one click away.
    browser.find("(//summary[.='Body'])[last()]").await.click().await;
    browser.see("thanks").await;
    browser.goes_to(&process.page("/app/webhooks")).await;
    browser.see("Receivers").await;
    browser.press(&receiver.url()).await;
    browser.see("Attempts").await;
    browser.goes_to(&process.page("/app/webhooks")).await;
    browser.see("127.0.0.1").await;
    browser.picture("webhooks").await;
    // A webhook with a deleted payload cannot be sent. Delete the files, not their folders.
    for shard in std::fs::read_dir(process.folder.path().join("data/payloads")).unwrap() {
        for file in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
    browser.goes_to(&process.page(&format!("/app/webhooks/{id}"))).await;
    browser.see("The payload is no longer stored.").await;
    browser.see("Payload no longer stored").await;
    has_no_button("no payload").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn upkeep_screens_show_a_receiver_whose_circuit_is_open() {
    let lines = "webhooks.schedule = ['1ms', '1h']\nwebhooks.circuit_failures = 2\n";
    let service = Service::configured(lines).await;
    let mut receiver = Receiver::answering([500; 20]).await;
    let owner = service.owner().await;
    for _ in 0..2 {
        let fields = json!({"input": {"template": "hello"}, "webhook_url": receiver.url()});
        service.create_with("text-template", fields).await;
        receiver.next().await;
    }
    until("open circuit", async || {
        let path = "/webhooks/receivers";
        let found = service.asks(&owner, Method::GET, path).send().await.expect(200);
        (found["receivers"][0]["circuit_open"] == true).then_some(())
    })
    .await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, "/app/webhooks").await;
    browser.see("Paused").await;
    browser.see("failures, next attempt").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn upkeep_screens_show_totals_of_files_costs_and_findings() {
    let service = Service::configured("billing.enabled = true\n").await;
    let owner = service.owner().await;
    let billing = &service.running.services.billing;
    let dollars = orrery_domain::money::Usd::from_micros(5_000_000);
    billing.top_up(service.organization.id, dollars).await.unwrap();
    let provider = crate::support::Provider::start().await;
    for (slug, price) in [("dear", 0.5), ("cheap", 0.25)] {
        let cost = format!("[cost]\ntype = 'fixed'\namount = {price}\n");
        service.manifest(&provider.manifest(slug, "/echo", &cost));
    }
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    // Upload a file: the totals match the service's counts.
    browser.open(&service, "/app/files").await;
    browser.see("No files yet").await;
    let path = service.folder.path().join("night.txt");
    std::fs::write(&path, "What a beautiful night!").unwrap();
    let input = browser.client.find(fantoccini::Locator::Css("input[type=file]")).await.unwrap();
    input.send_keys(path.to_str().unwrap()).await.unwrap();
    browser.see("night.txt").await;
    browser.see("23 bytes").await;
    browser.press("night.txt").await;
    browser.see("Download").await;
    browser.is_accessible("file").await;
    browser.press("Close").await;
    browser.press("Delete night.txt").await;
    browser.press("Delete the file").await;
    browser.see("No files yet").await;
    let usage = service.asks(&owner, Method::GET, "/api/base/v1/files/usage").send().await;
    assert_eq!(usage.expect(200)["count"], 0);
    for slug in ["dear", "cheap", "dear"] {
        let id = service.create(slug, json!({})).await;
        service.ended(&id).await;
    }
    let costs = service.asks(&owner, Method::GET, "/costs").send().await.expect(200);
    let spent: f64 = costs["costs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["cost_usd"].as_f64().unwrap())
        .sum();
    assert!((spent - 1.25).abs() < 1e-9, "{costs}");
    browser.open(&service, "/app/balance").await;
    browser.see("$3.75").await;
    browser.see("dear").await;
    browser.see("$1.00").await;
    let columns = "return document.querySelectorAll('.columns .column span').length";
    assert_eq!(browser.run(columns).await, 2);
    // The list shows days in the common date format.
    let days = "return [...document.querySelectorAll('.ends span, details tbody th')].map((one) => one.textContent).filter((text) => /\\d/.test(text) && !text.includes('$'))";
    let days = browser.run(days).await;
    assert_eq!(days.as_array().unwrap().len(), 4, "{days}");
    for day in days.as_array().unwrap() {
        let (month, rest) = day.as_str().unwrap().split_once(' ').unwrap();
        assert!(month.len() == 3 && rest.split_once(", 20").is_some(), "{day}");
    }
    browser.picture("balance").await;
    browser.open(&service, "/app/health").await;
    browser.see("not scheduled: set `backup.every`").await;
    browser.see("GB are free").await;
    browser.picture("health").await;
    browser.is_accessible("health").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn upkeep_screens_show_denied_actions_in_audit_log() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let grace = service.member(&owner, "grace@example.com").await;
    let refused = service.asks(&grace, Method::POST, "/keys").json(&json!({"name": "mine"}));
    let reason = "this needs the permission 'Can manage API keys', which the Owner grants";
    refused.send().await.expect_error(403, reason);
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, "/app/audit").await;
    browser.see(&format!("refused: {reason}")).await;
    let row = browser.find("//tr[contains(.,'refused')]").await.text().await;
    assert!(row.contains("grace@example.com") && row.contains("Create an API key"), "{row}");
    // Actors and objects appear by name, even if they have been deleted.
    let key = json!({"name": "web shop"});
    let made = service.asks(&owner, Method::POST, "/keys").json(&key).send().await.expect(201);
    let by_key = |method, path: &str| {
        service.ask(orrery_api::Role::Base, method, path).key(made["key"].as_str().unwrap())
    };
    let endpoint = json!({"url": "http://127.0.0.1:9/hook", "name": "orders"});
    let endpoint = by_key(Method::POST, "/v1/webhook-endpoints").json(&endpoint).send().await;
    let endpoint =
        format!("/v1/webhook-endpoints/{}", endpoint.expect(201)["id"].as_str().unwrap());
    let schedule = json!({"name": "every night", "cron": "0 3 * * *", "timezone": "UTC", "model": "text-template", "version": "0.0.1", "input": {"template": "x"}});
    by_key(Method::POST, "/v1/schedules").json(&schedule).send().await.expect(201);
    let nameless = json!({"cron": "0 4 * * *", "timezone": "UTC", "model": "text-template", "version": "0.0.1", "input": {"template": "x"}});
    by_key(Method::POST, "/v1/schedules").json(&nameless).send().await.expect(201);
    assert_eq!(by_key(Method::DELETE, &endpoint).send().await.status, 204);
    let path = format!("/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(service.asks(&owner, Method::DELETE, &path).send().await.status, 204);
    let dollars = orrery_domain::money::Usd::from_micros(20_000_000);
    service.running.services.billing.top_up(service.organization.id, dollars).await.unwrap();
    let bulk = json!({"action": "redrive", "filter": {"status": "failed"}});
    service.post("/v1/workflows/executions/bulk", &bulk).send().await.expect(202);
    browser.client.refresh().await.unwrap();
    browser.see("Deleted an API key").await;
    let rows = browser.run("return [...document.querySelectorAll('tbody tr')].map((one) => [...one.cells].slice(1, 4).map((cell) => cell.innerText).join(' | '))").await;
    let rows: Vec<&str> = rows.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for row in [
        "API key “web shop” | Created a webhook endpoint | orders",
        "owner@example.com | Deleted an API key | web shop",
        "API key “web shop” | Deleted a webhook endpoint | orders",
        "API key “web shop” | Created a schedule | every night",
        "API key “web shop” | Created a schedule | 0 4 * * *",
        "grace@example.com | Joined | grace@example.com",
        "The service | Made a link | Set-up",
    ] {
        assert!(rows.contains(&row), "{row}: {rows:#?}");
    }
    for row in
        ["The service | Topped up the balance | 20 USD, entry …", " | Continued many runs | …"]
    {
        assert!(rows.iter().any(|one| one.contains(row)), "{row}: {rows:#?}");
    }
    let text = browser.text().await;
    assert!(text.contains("web shop") && !text.contains(made["id"].as_str().unwrap()), "{text}");
    browser.leave().await;
}
