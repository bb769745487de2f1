//! Runs that wait for people or for other runs, in a browser: followed through their events, paused
//! and resumed. Also workflows that run other workflows, built in the editor.

use hyper::Method;
use serde_json::{Value, json};

use crate::screens::fits_every_width;
use crate::support::chromium::Chromium;
use crate::support::{Provider, Service, until};

const ENTER: &str = "\u{E007}";
/// Counts a page's requests, and records the streams it follows.
const COUNTS: &str = "window.asked = []; window.followed = []; \
    const send = window.fetch; window.fetch = (...all) => { window.asked.push(String(all[0]?.url ?? all[0])); return send(...all); }; \
    const Source = window.EventSource; \
    window.EventSource = class extends Source { constructor(url) { super(url); window.followed.push(url); } };";

/// Returns three steps: a held model, an event that a person sends, and that event's output.
fn steps() -> Value {
    json!([
        {"step_id": "slow", "type": "model", "model": "held", "params": {}},
        {"step_id": "approve", "type": "wait", "event": {"name": "approval"}},
        {"step_id": "said", "type": "pass", "result": "{{approve.output}}"},
    ])
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn orchestration_screens_follow_pause_and_resume_a_run() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let owner = service.owner().await;
    let flow = service.workflow(steps()).await;
    let id = service.trigger(&flow, json!({})).await;
    provider.arrived(1).await;
    let browser = Chromium::start().await;
    browser.before_pages(COUNTS).await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, &format!("/app/runs/{id}?type=workflow")).await;
    browser.see("Running").await;
    let events = format!("/api/base/v1/workflows/executions/{id}/events");
    until("a stream of events", async || {
        (browser.run("return window.followed").await == json!([&events])).then_some(())
    })
    .await;
    // While nothing happens, the page sends no requests, although its own clock keeps running.
    let ran = "return document.querySelector('dl.facts').innerText";
    let asked = "return window.asked.length";
    let quiet = async || {
        let before = browser.run(asked).await;
        let mut shown = std::collections::BTreeSet::new();
        until("four more looks at the clock", async || {
            shown.insert(browser.run(ran).await.to_string());
            (shown.len() > 4).then_some(())
        })
        .await;
        browser.run(asked).await == before
    };
    until("a quiet page", async || quiet().await.then_some(())).await;

    browser.press("Pause").await;
    browser.see("Paused by").await;
    browser.button("Resume").await;
    let detail = service.execution(&id).await;
    let by = detail["waiting_for"][0]["by"].as_str().unwrap().to_owned();
    browser.see(&format!("Paused by {by} since")).await;
    fits_every_width(&browser, "run-paused").await;
    browser.looks(1280, false).await;
    // Running steps finish; no further steps start.
    provider.release(1);
    browser.find("//tr[contains(.,'slow')]//span[contains(@class,'good')]").await;
    let detail = service.execution(&id).await;
    assert_eq!(detail["step_outputs"]["approve"]["status"], "queued", "{detail}");
    browser.press("Resume").await;
    browser.see("waits for the event “approval”").await;
    browser.see_no_more("Paused by").await;
    // The link is issued to the person who views the page.
    let link = browser.button("Answer it").await.attribute("href").await.unwrap();
    let detail = service.execution(&id).await;
    let own = detail["waiting_for"][0]["resume_url"].as_str().unwrap();
    let (link, own) = (link.split_once('?').unwrap(), own.split_once('?').unwrap());
    assert!(link.0 == own.0 && link.1.starts_with("token="), "{link:?} {own:?}");
    fits_every_width(&browser, "run-waits").await;
    browser.looks(1280, false).await;
    let send = format!("/executions/{id}/events/approval");
    service.flows(Method::POST, &send).json(&json!({"payload": "yes"})).send().await.expect(202);
    browser.see("Completed").await;
    // All updates arrived through one stream and the requests that it triggered.
    assert_eq!(browser.run("return window.followed.length").await, 1);
    let polled = "return window.asked.filter((one) => /timeout=[1-9]/.test(one))";
    assert_eq!(browser.run(polled).await, json!([]));
    browser.leave().await;
}

/// Creates two workflows: one that greets a customer, returned by its slug, and one that will run
/// it, returned by its id.
async fn two_workflows(service: &Service) -> (String, String) {
    let schema = json!({"type": "object", "required": ["customer"],
        "properties": {"customer": {"type": "string", "title": "Customer"}}});
    let inner = json!({"input_schema": schema, "steps": [
        {"step_id": "p", "type": "pass", "result": "report of {{inputs.customer}}"}]});
    let inner = service.workflow_of(inner).await;
    let path = format!("/workflows/{inner}");
    let inner = service.flows(Method::GET, &path).send().await.expect(200);
    let outer = json!({"input_schema": schema, "steps": [
        {"step_id": "first", "type": "pass", "result": "{{inputs.customer}}"}]});
    let outer = service.workflow_of(outer).await;
    (inner["slug"].as_str().unwrap().to_owned(), outer)
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn orchestration_screens_build_a_workflow_that_runs_another_and_asks() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let (slug, outer) = two_workflows(&service).await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, &format!("/app/workflows/{outer}")).await;
    let add = async |words: &str| {
        browser.press("Add a step").await;
        let item = format!("//button[@role='menuitem'][contains(.,'{words}')]");
        browser.find(&item).await.click().await;
    };
    add("Waits for a time, a moment or an event").await;
    browser.choose("Wait", "for an event").await;
    browser.refill("Name of the event", "approval").await;
    browser.see("{{wait_1.resume_url}}").await;
    add("Runs another workflow").await;
    let offered = format!(
        "return [...document.querySelectorAll('option')].find((one) => one.value === '{slug}')?.text"
    );
    let words = until("the other workflow", async || {
        Some(browser.run(&offered).await.as_str()?.to_owned())
    })
    .await;
    browser.choose("Workflow", &words).await;
    let customer = browser.field("Customer").await;
    customer.send_keys("{{wait_1.out").await;
    browser.see("wait_1.output").await;
    customer.send_keys(ENTER).await;
    assert_eq!(browser.value("Customer").await, "{{wait_1.output}}");
    // The diagram names the child workflow and the event.
    let map =
        "return [...document.querySelectorAll('.map text.type')].map((one) => one.textContent)";
    let drawn = browser.run(map).await;
    let drawn: Vec<&str> = drawn.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(drawn[..2], ["Value", "approval"], "{drawn:?}");
    let begin = drawn[2].trim_end_matches('…');
    assert!(slug.starts_with(begin), "{drawn:?}");
    fits_every_width(&browser, "workflow-of-workflows").await;
    browser.looks(1280, false).await;
    // The link is available before its step, and the editor suggests it there.
    browser.step("first").await;
    browser.refill("Result", "{{wait_1.res").await;
    browser.see("wait_1.resume_url").await;
    browser.field("Result").await.send_keys(ENTER).await;
    browser.step("wait_1").await;
    fits_every_width(&browser, "workflow-event").await;
    browser.looks(1280, false).await;
    browser.press("Save as v2").await;
    browser.see("v2, the latest").await;
    let path = format!("/workflows/{outer}/versions/v2");
    let stored = service.flows(Method::GET, &path).send().await.expect(200);
    let steps = &stored["definition"]["steps"];
    assert_eq!(steps[0]["result"], "{{wait_1.resume_url}}", "{stored}");
    assert_eq!(
        (&steps[1]["event"], &steps[1]["seconds"]),
        (&json!({"name": "approval"}), &Value::Null)
    );
    assert_eq!(
        (&steps[2]["workflow"], &steps[2]["inputs"]),
        (&json!(slug), &json!({"customer": "{{wait_1.output}}"}))
    );
    links_lead_to_child_and_back(&service, &browser, &outer).await;
    browser.leave().await;
}

/// A run of the workflow links to the run that it started, and the started run links back.
async fn links_lead_to_child_and_back(service: &Service, browser: &Chromium, outer: &str) {
    let id = service.trigger(outer, json!({"inputs": {"customer": "Ada"}})).await;
    let send = format!("/executions/{id}/events/approval");
    service.flows(Method::POST, &send).json(&json!({"payload": "Grace"})).send().await.expect(202);
    let detail = service.completed(&id).await;
    assert_eq!(detail["output"], "report of Grace", "{detail}");
    let child = detail["step_outputs"]["workflow_1"]["metadata"]["execution_id"].as_str().unwrap();
    browser.open(service, &format!("/app/runs/{id}?type=workflow&step=workflow_1")).await;
    fits_every_width(browser, "run-parent").await;
    browser.looks(1280, false).await;
    browser.press("The run that it started").await;
    browser.see(child).await;
    browser.see("started this one").await;
    browser.picture("run-child").await;
    browser.press("another run").await;
    browser.see(&id).await;
    browser.press("The runs that its steps started").await;
    browser.see("Everything that ran").await;
    let rows = "return document.querySelectorAll('main tbody tr').length";
    until("one child in the list", async || (browser.run(rows).await == 1).then_some(())).await;
}
