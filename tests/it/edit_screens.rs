//! Editing loses nothing: values replaced with a select or a button can be restored, references
//! follow renamed steps, and a new step is scrolled into view.

use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Provider, Service, until};

const UP: &str = "\u{E013}";
const DOWN: &str = "\u{E015}";
/// Presses Ctrl and a letter, then releases the keys.
const UNDO: &str = "\u{E009}z\u{E000}";
/// The unsaved definition.
const DRAFT: &str = "const key = Object.keys(sessionStorage).find((one) => one.startsWith('workflow:')); return key ? JSON.parse(sessionStorage.getItem(key)).definition : null";

/// Waits until a script in the page returns this value.
async fn gives(browser: &Chromium, script: &str, value: Value) {
    let shown = async || (browser.run(script).await == value).then_some(());
    until(&format!("{script} == {value}"), shown).await;
}

/// Opens a step of the editor by its name.
async fn opens(browser: &Chromium, name: &str) {
    let row = format!("//button[contains(@class,'step-row')][.//strong[.='{name}']]");
    browser.find(&row).await.click().await;
    browser.find(&format!("{row}[@aria-current='true']")).await;
}

/// Returns a script's expression for the field with this label.
fn labelled(label: &str) -> String {
    format!(
        "document.getElementById([...document.querySelectorAll('.step-fields label, main label')].find((one) => one.innerText.trim().startsWith('{label}')).htmlFor)"
    )
}

/// Focuses a select, presses keys, and waits for its value after each.
async fn steps_through(browser: &Chromium, label: &str, keys: &[(&str, &str)]) {
    let field = labelled(label);
    browser.run(&format!("{field}.focus()")).await;
    for (key, value) in keys {
        browser.keys(key).await;
        gives(browser, &format!("return {field}.value"), json!(value)).await;
    }
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn edit_screens_restore_what_a_select_has_replaced() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let either = "[request_schema.properties.source]\noneOf = [{type = 'string', title = 'Text'}, {type = 'integer', title = 'Number'}]\n";
    service.manifest(&provider.manifest("alt", "/echo", either));
    let owner = service.owner().await;
    let event = json!({"name": "approval", "schema": {"type": "object", "properties": {"approved": {"type": "boolean"}}}, "default": {"approved": false}});
    let steps = json!([
        {"step_id": "ask", "type": "wait", "event": event},
        {"step_id": "call", "type": "http", "url": "http://127.0.0.1:1/x", "fail_when": [404, 500],
         "auth": {"type": "bearer", "token": "{{inputs.token}}"}, "retry": {"max_attempts": 7}},
    ]);
    let flow = service.workflow(steps).await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, &format!("/app/workflows/{flow}")).await;
    opens(&browser, "ask").await;
    steps_through(
        &browser,
        "Wait",
        &[(UP, "until"), (UP, "seconds"), (DOWN, "until"), (DOWN, "event")],
    )
    .await;
    gives(&browser, DRAFT, Value::Null).await;
    opens(&browser, "call").await;
    steps_through(&browser, "Kind", &[(DOWN, "basic"), (UP, "bearer")]).await;
    steps_through(&browser, "The step fails", &[(UP, "non_2xx"), (DOWN, "codes")]).await;
    gives(&browser, DRAFT, Value::Null).await;
    // A checkbox that is cleared and then checked again.
    let retry = "[...document.querySelectorAll('.step-fields label.box')].find((one) => one.innerText.includes('Try again')).querySelector('input')";
    browser.run(&format!("{retry}.click()")).await;
    gives(&browser, &DRAFT.replace(".definition :", ".definition.steps[1].retry ?? 0 :"), json!(0))
        .await;
    browser.run(&format!("{retry}.click()")).await;
    gives(&browser, DRAFT, Value::Null).await;
    // Ctrl+Z undoes the change to a select or a box that has the focus, but leaves typed text to
    // the text field.
    steps_through(&browser, "Kind", &[(DOWN, "basic"), (UNDO, "bearer")]).await;
    browser.run(&format!("{retry}.focus(); {retry}.click()")).await;
    gives(&browser, &format!("return {retry}.checked"), json!(false)).await;
    browser.keys(UNDO).await;
    gives(&browser, &format!("return {retry}.checked"), json!(true)).await;
    // A form with alternatives keeps the text of the alternative that was deselected.
    browser.open(&service, "/app/models/alt").await;
    browser.choose("Form", "Text").await;
    let text = "document.querySelector('fieldset textarea')";
    gives(&browser, &format!("return Boolean({text})"), json!(true)).await;
    browser.run(&format!("{text}.focus()")).await;
    browser.inserts("a long text").await;
    steps_through(&browser, "Form", &[(DOWN, "1"), (UP, "0")]).await;
    gives(&browser, &format!("return {text}.value"), json!("a long text")).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn edit_screens_references_follow_new_names_of_inputs_and_items() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let definition = json!({
        "input_schema": {"type": "object", "properties": {"list": {"type": "array"}, "x": {"type": "string"}}},
        "steps": [
            {"step_id": "read", "type": "pass", "result": "{{inputs.x}} and {{ inputs['x'] }}"},
            {"step_id": "each", "type": "map", "items": "{{inputs.list}}", "item_name": "picture",
             "output": "{{picture}}", "steps": [{"step_id": "in", "type": "pass", "result": "{{picture}}"}]},
        ],
    });
    let made = json!({"name": "flow", "description": "d", "definition": definition});
    service.flows(hyper::Method::POST, "/workflows").json(&made).send().await.expect(201);
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/workflows/flow").await;
    browser.find("//button[.//strong[.='Inputs']]").await.click().await;
    browser.find("(//fieldset[legend[.='x']]//input)[1]").await.replace("document").await;
    browser.run("document.activeElement.blur()").await;
    opens(&browser, "read").await;
    assert_eq!(browser.value("Result").await, "{{inputs.document}} and {{ inputs.document }}");
    // The name is typed letter by letter.
    opens(&browser, "each").await;
    browser.refill("Name of an item", "photo").await;
    gives(
        &browser,
        &format!("return {}.value", labelled("Output for each item")),
        json!("{{photo}}"),
    )
    .await;
    opens(&browser, "in").await;
    assert_eq!(browser.value("Result").await, "{{photo}}");
    browser.press("Save as v2").await;
    browser.see("v2, the latest").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn edit_screens_show_new_steps_and_offer_to_undo_deletions() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let pass = |at: usize| json!({"step_id": format!("pass_{at}"), "type": "pass", "result": at});
    let mut steps: Vec<Value> = (0..30).map(pass).collect();
    let branches = json!([{"steps": [pass(30)]}, {"steps": [pass(31)]}]);
    steps.insert(0, json!({"step_id": "both", "type": "parallel", "branches": branches}));
    let fallback = json!({"model": "text-template", "params": {"template": "x"}});
    steps.insert(1, json!({"step_id": "say", "type": "model", "model": "text-template", "params": {"template": "x"}, "fallback": fallback}));
    let definition = json!({"input_schema": {"type": "object", "properties": {"x": {"type": "string"}}},
        "metadata": {"output_mapping": {"all": "{{pass_1.output}}"}}, "steps": steps});
    let made = json!({"name": "flow", "description": "d", "definition": definition});
    service.flows(hyper::Method::POST, "/workflows").json(&made).send().await.expect(201);
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    let in_view = "const { top } = document.querySelector('.step-fields').getBoundingClientRect(); return top >= 0 && top < innerHeight / 2";
    for width in [1024, 390] {
        browser.looks(width, width == 390).await;
        browser.open(&service, "/app/workflows/flow").await;
        browser.find("//button[.//strong[.='pass_29']]").await;
        browser.run("const all = [...document.querySelectorAll('.add-button')]; all.at(-1).scrollIntoView({ block: 'center' }); all.at(-1).click()").await;
        browser.find("//button[@data-type='pass']").await.click().await;
        gives(&browser, in_view, json!(true)).await;
        browser.press("Duplicate").await;
        browser.find("//button[@aria-current='true']//strong[starts-with(.,'pass_')]").await;
        gives(&browser, in_view, json!(true)).await;
        browser.picture(&format!("editor-added-{width}")).await;
        browser.press("Discard the changes").await;
    }
    browser.looks(1440, false).await;
    browser.open(&service, "/app/workflows/flow").await;
    for (place, button, said) in [
        (
            "both",
            "(//button[starts-with(normalize-space(.),'Delete with its')])[1]",
            "The branch is deleted with its steps.",
        ),
        ("say", "//button[normalize-space(.)='Remove the fallback']", "The fallback is removed."),
        ("Inputs", "//button[normalize-space(.)='Delete']", "The input “x” is deleted."),
        ("Output", "//button[@aria-label='Remove all']", "“all” is removed."),
    ] {
        browser.find(&format!("//button[.//strong[.='{place}']]")).await.click().await;
        browser.find(button).await.click().await;
        browser.see(said).await;
        browser.press("Undo").await;
        gives(&browser, DRAFT, Value::Null).await;
    }
    // A deletion immediately after typing is undone separately.
    browser.find("//button[.//strong[.='both']]").await.click().await;
    browser.fill("Name of branch 1", "N").await;
    browser
        .find("(//button[starts-with(normalize-space(.),'Delete with its')])[1]")
        .await
        .click()
        .await;
    browser.press("Undo").await;
    gives(&browser, &format!("return {}.value", labelled("Name of branch 1")), json!("N")).await;
    browser.leave().await;
}
