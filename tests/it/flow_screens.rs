//! Workflows and chains in a browser: built, validated, saved, compared and run; also two people
//! editing at the same time.

use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Service, until};

const DOWN: &str = "\u{E015}";
const ENTER: &str = "\u{E007}";
const ALT: &str = "\u{E00A}";
const RELEASE: &str = "\u{E000}";

fn steps(template: &str) -> Value {
    json!([
        {"step_id": "say", "type": "model", "model": "text-template", "params": {"template": template}},
        {"step_id": "mood", "type": "model", "model": "text-sentiment", "params": {"text": "{{say.output}}"}},
    ])
}

/// Returns a definition with a part that no form of the editor shows.
fn definition(template: &str) -> Value {
    json!({"steps": steps(template), "metadata": {"drawn": {"say": [1, 2]}}})
}

impl Chromium {
    /// Selects a step in the editor's list.
    pub(crate) async fn step(&self, name: &str) {
        let row = format!("//button[contains(@class,'step-row')][.//strong[.='{name}']]");
        self.find(&row).await.click().await;
        self.find(&format!("{row}[@aria-current='true']")).await;
    }
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn flow_screens_build_a_workflow_from_a_template_and_run_it() {
    let service = Service::start().await;
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/workflows").await;
    browser.see("No workflows yet").await;
    browser.press("New workflow").await;
    browser.fill("Name", "Read the room").await;
    browser.find("//label[contains(.,'Several at once')]//input").await.click().await;
    browser.press("Create the workflow").await;
    browser.see("read-the-room").await;
    // The keyboard alone completes a reference.
    browser.step("say").await;
    let template = browser.field("Template").await;
    template.send_keys(" for {{te").await;
    browser.picture("workflow-completion").await;
    browser.see("inputs.text").await;
    template.send_keys(ENTER).await;
    assert!(browser.value("Template").await.ends_with(" for {{inputs.text}}"));
    // The editor shows errors at their step.
    browser.step("tongue").await;
    browser.refill("Text", "{{nothing.output}}").await;
    browser.see("One problem").await;
    let marked = "//button[contains(@class,'step-row')][.//strong[.='tongue']]//*[@role='img']";
    browser.find(marked).await;
    browser.find("//p[contains(@class,'field-error')][contains(.,'nothing')]").await;
    browser.picture("workflow-problem").await;
    browser.refill("Text", "{{inputs.text}}").await;
    until("end of the problem", async || {
        (!browser.text().await.contains("One problem")).then_some(())
    })
    .await;
    // The workflow is not saved yet, and a reload loses no changes.
    browser.client.refresh().await.unwrap();
    browser.see("Unsaved changes were restored.").await;
    let path = "/v1/workflows/read-the-room/versions/v1";
    let ask = |path: &str| {
        service.ask(orrery_api::Role::Base, hyper::Method::GET, path).key(&service.key)
    };
    let stored = ask(path).send().await.expect(200);
    assert!(!stored["definition"].to_string().contains(" for "));
    browser.press("Save as v2").await;
    browser.see("v2, the latest").await;
    let stored = ask("/v1/workflows/read-the-room/versions/v2").send().await.expect(200);
    assert!(
        stored["definition"]["steps"][2]["params"]["template"]
            .as_str()
            .unwrap()
            .ends_with(" for {{inputs.text}}")
    );
    browser.picture("workflow-editor").await;
    browser.press_tab("Run").await;
    browser.field("Text").await.send_keys("What a beautiful night!").await;
    browser.press("Run v2").await;
    browser.see("Completed").await;
    browser.see("tongue").await;
    browser.press("Open the workflow").await;
    // Start several concurrent runs.
    browser.press_tab("Run").await;
    browser.press("Another input").await;
    browser.press("Run 2 times").await;
    browser.see("Started").await;
    browser.see("Run 2: open it").await;
    browser.press_tab("Versions").await;
    browser
        .find("//p[contains(@class,'legend-row')]/span[contains(@class,'out')][contains(.,'v1')]")
        .await;
    browser
        .find("//div[contains(@class,'line')][contains(@class,'in')][contains(.,'inputs.text')]")
        .await;
    browser.picture("workflow-versions").await;
    browser.open(&service, "/app/workflows").await;
    browser.see("Completed").await;
    browser.picture("workflows").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn flow_screens_show_both_versions_to_the_second_of_two_editors() {
    let service = Service::start().await;
    let owner = service.owner().await;
    service.member(&owner, "grace@example.com").await;
    let id = service.workflow_of(definition("Hello")).await;
    let path = format!("/app/workflows/{id}");
    let ada = Chromium::start().await;
    let grace = Chromium::start().await;
    ada.logs_in(&service, &owner.email).await;
    grace.logs_in(&service, "grace@example.com").await;
    for (browser, text) in [(&ada, "Hello from Ada"), (&grace, "Hello from Grace")] {
        browser.open(&service, &path).await;
        browser.refill("Template", text).await;
        browser.see("Not saved").await;
    }
    ada.press("Save as v2").await;
    ada.see("v2, the latest").await;
    grace.press("Save as v2").await;
    grace.see("Somebody else has saved in the meantime").await;
    grace.find("//div[contains(@class,'out')][contains(.,'Hello from Ada')]").await;
    grace.find("//div[contains(@class,'in')][contains(.,'Hello from Grace')]").await;
    grace.picture("workflow-conflict").await;
    // The author's changes remain. If the author confirms, they are saved on top of the other
    // version.
    grace.press("Keep editing").await;
    assert_eq!(grace.value("Template").await, "Hello from Grace");
    grace.press("Save as v2").await;
    grace.press("Save yours as v3").await;
    grace.see("v3, the latest").await;
    let read = async |version: &str| {
        let path = format!("/v1/workflows/{id}/versions/{version}");
        let ask = service.ask(orrery_api::Role::Base, hyper::Method::GET, &path).key(&service.key);
        ask.send().await.expect(200)["definition"].clone()
    };
    // Parts that no form shows have survived both edits.
    assert_eq!(read("v2").await, definition("Hello from Ada"));
    assert_eq!(read("v3").await, definition("Hello from Grace"));
    grace.expect_quiet_console(&["412 (Precondition Failed)"]).await;
    // A locked workflow is read-only for both people.
    grace.press("More").await;
    grace.press("Lock against changes").await;
    grace.see("This workflow is locked").await;
    ada.open(&service, &path).await;
    ada.see("This workflow is locked").await;
    let disabled = "return document.querySelector('.step-fields input, .step-fields textarea').matches(':disabled')";
    assert_eq!(ada.run(disabled).await, true);
    let text = ada.text().await;
    assert!(!text.contains("Save as") && !text.contains("Add a step"), "{text}");
    ada.press_tab("JSON").await;
    let before = ada.json_text().await;
    ada.writes_json("lost").await;
    assert_eq!(ada.json_text().await, before);
    ada.picture("workflow-locked").await;
    ada.press("Unlock").await;
    ada.see("Save as v4").await;
    ada.leave().await;
    grace.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn flow_screens_mark_line_of_invalid_json_and_keep_text() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let id = service.workflow(steps("Hello")).await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, &format!("/app/workflows/{id}?tab=json")).await;
    browser.writes_json("{\n\"steps\": [\n").await;
    browser.see("Line 3: this is not JSON yet.").await;
    assert!(!browser.button("Save as v2").await.is_enabled().await);
    browser.picture("workflow-json").await;
    browser.inserts("]}").await;
    browser.see("definition must include at least one step").await;
    browser.press("Discard the changes").await;
    browser.press_tab("Steps").await;
    browser.step("mood").await;
    // Alt and an arrow key move a step.
    let row = browser.find("//button[contains(@class,'step-row')][.//strong[.='say']]").await;
    row.send_keys(&format!("{ALT}{DOWN}{RELEASE}")).await;
    browser.see("One problem").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn flow_screens_import_a_legacy_drawing() {
    let service = Service::start().await;
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/workflows").await;
    browser.press("Import").await;
    let drawing = json!({
        "name": "Greeting", "description": "", "inputs": [], "outputs": [], "nodes_json": "[]", "edges_json": "[]",
        "steps": [{"id": "greet", "name": "Greet", "type": "1019Model", "model_slug": "text-template", "model_version": "0.0.1",
                   "params": {"template": "Hello", "values": {}}}],
    });
    browser.fill("JSON", &drawing.to_string()).await;
    browser.see("A drawing of the older editor with 1 step.").await;
    browser.find("//dialog//button[@type='submit']").await.click().await;
    browser.see("v1, the latest").await;
    browser.see("Greet").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn flow_screens_warn_what_deletion_of_workflow_stops() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let steps = json!([{"step_id": "w", "type": "wait", "event": {"name": "e"}}]);
    let flow = service.workflow(steps).await;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(service.trigger(&flow, json!({})).await);
    }
    let schedule = json!({"cron": "0 3 * * *", "timezone": "UTC"});
    let path = format!("/api/workflows/api/v1/workflows/{flow}/schedules");
    let made = service.asks(&owner, hyper::Method::POST, &path).json(&schedule).send().await;
    let schedule = made.expect(201)["schedule_id"].as_str().unwrap().to_owned();
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, &format!("/app/workflows/{flow}")).await;
    browser.press("More").await;
    browser.press("Delete").await;
    browser.see("cancelled: 2 runs.").await;
    browser.see("no longer start it: 1 schedule.").await;
    browser.see("This cannot be undone.").await;
    browser.picture("workflow-delete").await;
    browser.press("Delete the workflow").await;
    browser.see("No workflows yet").await;
    // The outcome is what the dialog announced.
    for id in waiting {
        assert_eq!(service.completed(&id).await["status"], "cancelled");
    }
    let path = format!("/api/base/v1/schedules/{schedule}");
    let kept = service.asks(&owner, hyper::Method::GET, &path).send().await.expect(200);
    assert_eq!(kept["schedule_id"], schedule.as_str());
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn flow_screens_reorder_chain_by_keyboard() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, "/app/chains").await;
    browser.see("No chains yet").await;
    browser.press("New chain").await;
    browser.choose("When this model fails", "text-language").await;
    browser.find("//select[@aria-label='Model 1']").await.select_by_label("text-sentiment").await;
    browser.press("Add a model").await;
    browser.find("//select[@aria-label='Model 2']").await.select_by_label("text-keywords").await;
    browser.press("Create the chain").await;
    // The dialog has its own drag handles, and stays open until the chain is created.
    browser.see_no_more("Try these instead, in this order").await;
    let grip = "//button[@aria-label='Move text-sentiment, number 1']";
    browser.find(grip).await.send_keys(DOWN).await;
    browser.find("//button[@aria-label='Move text-sentiment, number 2']").await;
    until("the order at the service", async || {
        let all = service.asks(&owner, hyper::Method::GET, "/chains").send().await.expect(200);
        (all["chains"][0]["entries"]
            == json!([{"model": "text-keywords"}, {"model": "text-sentiment"}]))
        .then_some(())
    })
    .await;
    browser.picture("chains").await;
    browser.press("Switch off").await;
    browser.see("switched off").await;
    browser.leave().await;
}
