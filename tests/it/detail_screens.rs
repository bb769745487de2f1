//! Details of everyday use: the fields of a step far down the page, undoing a deletion, a list that
//! keeps its position, a lost connection.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::chromium::{CONNECTION_LOST, Chromium};
use crate::support::{Process, Provider, Receiver, Service, Upstream, until};

const ARROW_DOWN: &str = "\u{E015}";
const ENTER: &str = "\u{E007}";
const ESCAPE: &str = "\u{E00C}";
/// Presses Ctrl and a letter, then releases the keys.
const UNDO: &str = "\u{E009}z\u{E000}";
const ROWS: &str =
    "return document.querySelectorAll('.step-row:not(.end-row):not(.add-button)').length";

/// Waits until a script in the page returns true.
async fn holds(browser: &Chromium, what: &str, script: &str) {
    until(what, async || (browser.run(script).await == true).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_edit_steps_in_place_and_undo() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let mut steps: Vec<Value> = (0..38)
        .map(|at| json!({"step_id": format!("pass_{at}"), "type": "pass", "result": at}))
        .collect();
    steps.push(json!({"step_id": "read", "type": "pass", "result": "{{inputs.x}}"}));
    steps.push(
        json!({"step_id": "say", "type": "pass", "result": "{{read.output}} and {{read.output}}"}),
    );
    let flow = service.workflow(json!(steps)).await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    let row = |name: &str| format!("//button[contains(@class,'step-row')][.//strong[.='{name}']]");
    // In a wide window the fields are next to the step, however far down it is; in a narrower
    // window they are below the list and full width.
    let place = "const { top, width } = document.querySelector('.step-fields').getBoundingClientRect(); return top >= 0 && top < innerHeight / 2 && width > 400";
    for width in [1440, 1024] {
        browser.looks(width, false).await;
        browser.open(&service, &format!("/app/workflows/{flow}")).await;
        browser.find(&row("pass_35")).await.click().await;
        browser.find(&format!("{}[@aria-current='true']", row("pass_35"))).await;
        holds(&browser, "fields of the step", place).await;
        browser.picture(&format!("editor-far-down-{width}")).await;
    }
    browser.looks(1440, false).await;
    browser.open(&service, &format!("/app/workflows/{flow}")).await;
    browser.find(&row("say")).await;
    // Opening the menu adds nothing until an item is chosen.
    browser.run("document.querySelector('.add-button').focus()").await;
    browser.keys(ARROW_DOWN).await;
    browser.find("//div[@role='menu']").await;
    assert_eq!(browser.run(ROWS).await, 40);
    browser.picture("editor-menu").await;
    browser.keys(ESCAPE).await;
    // Wait for the focus before each key.
    let focus = |selector: &str| format!("return document.activeElement.matches('{selector}')");
    holds(&browser, "the focus on the button", &focus(".add-button")).await;
    assert_eq!(browser.run(ROWS).await, 40);
    browser.keys(ARROW_DOWN).await;
    holds(&browser, "the focus in the menu", &focus("[role=menu] *")).await;
    browser.keys(ARROW_DOWN).await;
    browser.keys(ENTER).await;
    holds(&browser, "a new step", &ROWS.replace("length", "length === 41")).await;
    // Two deletions are undone, one with the button and one with the keys.
    for by_keys in [false, true] {
        let before = browser.run(ROWS).await;
        browser.find(&row("pass_7")).await.click().await;
        browser.press("Delete the step").await;
        browser.see("The step is deleted.").await;
        assert_ne!(browser.run(ROWS).await, before);
        if by_keys {
            browser.run("document.querySelector('h1').focus()").await;
            browser.keys(UNDO).await;
        } else {
            browser.press("Undo").await;
        }
        holds(&browser, "the step", &ROWS.replace("length", &format!("length === {before}"))).await;
    }
    // References follow a renamed id.
    browser.find(&row("read")).await.click().await;
    browser.refill("Id", "scan").await;
    browser.find(&row("scan")).await;
    browser.find(&row("say")).await.click().await;
    assert_eq!(browser.value("Result").await, "{{scan.output}} and {{scan.output}}");
    // The error names the correct line.
    browser.press_tab("JSON").await;
    browser.writes_json("x{\n\"steps\": [\n]\n}").await;
    browser.see("Line 1: this is not JSON yet").await;
    browser.writes_json("{\n\"steps\": [\n1 2]\n}").await;
    browser.see("Line 3: this is not JSON yet").await;
    browser.leave().await;
}

/// Checks the tab of a run that lists the run's deliveries: to endpoints, and the one that the run
/// itself requested. The run `plain` has only deliveries to endpoints, `bare` has none.
async fn lists_deliveries(service: &Service, browser: &Chromium, plain: &str, bare: &str) {
    let own = Receiver::start().await;
    let fields = json!({"input": {"template": "Hello"}, "webhook_url": own.url()});
    let both = service.create_with("text-template", fields).await;
    for (run, of_endpoint, of_run) in [(plain, 2, 0), (both.as_str(), 2, 1), (bare, 0, 0)] {
        browser.open(service, &format!("/app/runs/{run}?tab=webhook")).await;
        let count = |text: &str| {
            format!(
                "return [...document.querySelectorAll('tbody th')].filter((one) => one.innerText.includes('{text}')).length"
            )
        };
        holds(
            browser,
            "endpoints",
            &format!("{} === {of_endpoint}", count("for an endpoint, when")),
        )
        .await;
        holds(browser, "own", &format!("{} === {of_run}", count("for the run itself"))).await;
        let none = "document.body.innerText.includes('No webhook was sent for this run')";
        holds(browser, "none", &format!("return {none} === {}", of_endpoint + of_run == 0)).await;
    }
    browser.open(service, &format!("/app/runs/{both}?tab=webhook")).await;
    browser.find("//tr[contains(.,'for the run itself')]//a").await.click().await;
    browser.see("What is sent").await;
    browser.open(service, &format!("/app/webhooks/{bare}")).await;
    browser.see("There is no webhook here").await;
    browser.press("the webhooks of the run").await;
    browser.see("No webhook was sent for this run").await;
}

/// Checks that the delivery requested by a workflow run links to the run's page as a workflow.
async fn links_to_workflow_run(service: &Service, browser: &Chromium) {
    let own = Receiver::start().await;
    let steps = json!([{"step_id": "say", "type": "pass", "result": 1}]);
    let flow = service.workflow_of(json!({"steps": steps})).await;
    let run = service.trigger(&flow, json!({"webhook_url": own.url()})).await;
    service.completed(&run).await;
    browser.open(service, "/app/webhooks").await;
    let link = format!("a[contains(@href,'/app/runs/{run}?type=workflow')]");
    browser.find(&format!("//tr[contains(.,'for the run itself')]//{link}")).await;
    browser.open(service, &format!("/app/webhooks/{run}")).await;
    browser.find(&format!("//dd//{link}")).await;
}

/// Adds a model whose form has fields without a value.
fn form_without_values(service: &Service, provider: &Provider) {
    let schema = "[request_schema.properties.size]\ntype = 'integer'\nminimum = 1\nmaximum = 9\n\
        [request_schema.properties.day]\ntype = 'string'\nformat = 'date-time'\n\
        [request_schema.properties.ink]\ntype = 'string'\nformat = 'color'\n\
        [request_schema.properties.at]\ntype = 'string'\nformat = 'time'\n\
        [request_schema.properties.loud]\ntype = 'boolean'\n\
        [request_schema.properties.sure]\ntype = 'boolean'\n";
    let schema = format!("request_schema.required = ['sure']\n{schema}");
    service.manifest(&provider.manifest("draw", "/echo", &schema));
}

/// Checks that each field of this form shows whether it has a value, and that the displayed values
/// are sent.
async fn fields_show_what_is_set(service: &Service, browser: &Chromium) {
    // A number without a value has no slider position; times and colors have input types of their
    // own.
    browser.open(service, "/app/models/draw").await;
    browser.find("//input[@type='range'][contains(@class,'unset')]").await;
    browser.find("//input[@type='datetime-local']").await;
    browser.find("//input[@type='color'][contains(@class,'unset')]").await;
    // A checkbox that was never touched is neither checked nor cleared, unless the model requires
    // it.
    let boxes =
        "return ['loud', 'sure'].map((name) => document.getElementsByName(name)[0].indeterminate)";
    assert_eq!(browser.run(boxes).await, json!([true, false]));
    // Every value that a field shows is sent.
    browser.run("const at = document.querySelector('[type=time]'); at.value = '12:30:05'; at.dispatchEvent(new Event('input', { bubbles: true }))").await;
    browser.find("//input[@name='day'][@max='9999-12-31T23:59:59']").await;
    browser.press_tab("JSON").await;
    let input: Value = serde_json::from_str(&browser.json_text().await).unwrap();
    assert!(input["at"].as_str().unwrap().starts_with("12:30:05"), "{input}");
    assert_eq!((&input["sure"], &input["loud"]), (&json!(false), &Value::Null), "{input}");
    browser.press("Run").await;
    browser.see("Succeeded").await;
    browser.picture("form-bounds").await;
}

/// Sums up the page's layout shifts.
const SHIFTS: &str = "window.shift = 0; new PerformanceObserver((list) => { for (const one of list.getEntries()) if (!one.hadRecentInput) window.shift += one.value; }).observe({ type: 'layout-shift', buffered: true });";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_name_runs_and_open_the_delivery_of_a_row() {
    let service =
        Service::configured("webhooks.schedule = ['1ms', '1h']\nwebhooks.circuit_failures = 100\nbilling.enabled = true\n").await;
    let mut receiver = Receiver::answering([500; 40]).await;
    let owner = service.owner().await;
    let provider = Provider::start().await;
    form_without_values(&service, &provider);
    let bare = service.create("text-template", json!({"template": "Hello"})).await;
    service.ended(&bare).await;
    let endpoint = json!({"url": receiver.url()});
    let endpoint = service
        .ask(orrery_api::Role::Base, Method::POST, "/v1/webhook-endpoints")
        .key(&service.key)
        .json(&endpoint);
    endpoint.send().await.expect(201);
    let plain = service.create("text-template", json!({"template": "Hello"})).await;
    receiver.next().await;
    let steps = json!([{"step_id": "say", "type": "pass", "result": 1}]);
    let made =
        json!({"name": "Read the invoices", "description": "d", "definition": {"steps": steps}});
    let flow = service.flows(Method::POST, "/workflows").json(&made).send().await.expect(201);
    let flow = flow["workflow_id"].as_str().unwrap().to_owned();
    let execution = service.trigger(&flow, json!({})).await;
    service.completed(&execution).await;
    receiver.next().await;
    let browser = Chromium::start().await;
    browser.before_pages(SHIFTS).await;
    browser.becomes(&service, &owner).await;
    // The page of a run shows the workflow's name.
    browser.open(&service, &format!("/app/runs/{execution}?type=workflow")).await;
    browser.find("//h1[starts-with(.,'Read the invoices, ')]").await;
    holds(&browser, "title", "return document.title.startsWith('Read the invoices, ')").await;
    lists_deliveries(&service, &browser, &plain, &bare).await;
    // The title of a run remains after its workflow is deleted.
    service.flows(Method::DELETE, &format!("/workflows/{flow}")).send().await;
    browser.open(&service, &format!("/app/runs/{execution}?type=workflow")).await;
    browser.find("//h1[starts-with(.,'Read the invoices, ')]").await;
    // The row of an endpoint's delivery links to the delivery, whose page shows the next attempt.
    let newest = until("a delivery that waits", async || {
        let found = browser.asks("GET", "/api/base/v1/webhooks?status=pending", &Value::Null).await;
        let newest = found["webhooks"][0].clone();
        let due = newest["next_attempt_at"].as_str()?;
        (due > newest["created_at"].as_str()? && newest["status"] == "pending").then_some(newest)
    })
    .await;
    let id = newest["delivery_id"].as_str().unwrap();
    browser.open(&service, "/app/webhooks").await;
    let row = format!("//tr[.//time[starts-with(.,'in ')]]//a[contains(@href,'{id}')]");
    browser.find(&row).await.click().await;
    browser.see("What is sent").await;
    browser.find("//div[dt='Next attempt']//time[starts-with(.,'in ')]").await;
    let shown = browser.run("return document.querySelector('main').innerText").await;
    assert!(shown.as_str().unwrap().contains(newest["request"].as_str().unwrap_or_default()));
    browser.picture("webhook-waiting").await;
    // The user can skip the schedule.
    browser.press("Send now").await;
    browser.find("//th[normalize-space(.)='3 again']").await;
    links_to_workflow_run(&service, &browser).await;
    fields_show_what_is_set(&service, &browser).await;
    // If the agent has no model, the page shows this before the user writes a message.
    browser.open(&service, "/app/chat?with=agent").await;
    browser.see("The agent has no model yet").await;
    // The same applies in an existing session, whose earlier messages are shown.
    browser.open(&service, "/app/chat?with=agent&session=abc").await;
    browser.see("The agent has no model yet").await;
    browser.see("Ask for something").await;
    assert_eq!(browser.run("return document.querySelectorAll('main textarea').length").await, 0);
    browser.open(&service, "/app/account").await;
    browser.see("f Workflows").await;
    // Content that loads later does not move the rest.
    browser.open(&service, "/app/balance").await;
    browser.settled().await;
    let shift = browser.run("return window.shift").await;
    assert!(shift.as_f64().unwrap() < 0.1, "{shift}");
    browser.expect_quiet_console(&["404 (Not Found)"]).await;
    browser.leave().await;
}

/// Checks that a page of a list starts at its top, and that Back and Forward restore positions.
async fn pages_keep_positions(browser: &Chromium) {
    browser.run("scrollTo(0, 9999)").await;
    browser.press("Older runs").await;
    browser.find("//button[normalize-space(.)='Newest']").await;
    holds(browser, "the top", "return scrollY === 0").await;
    browser.run("history.back()").await;
    holds(browser, "the end of the first page", "return scrollY > 900").await;
    let end = browser.run("return scrollY").await;
    // Simulates that the user scrolls, which ends the restoration of the position.
    browser.run("dispatchEvent(new Event('wheel')); scrollTo(0, 300)").await;
    holds(browser, "the position is kept", "return history.state?.scroll === 300").await;
    browser.run("document.querySelector('nav.rail a[href=\"/app/keys\"]').click()").await;
    browser.find("//h1[.='API keys']").await;
    browser.run("history.back()").await;
    holds(browser, "the place of Back", "return scrollY === 300").await;
    browser.run("history.back()").await;
    browser.find("//h1[.='Models']").await;
    browser.run("history.forward()").await;
    holds(browser, "the place of Forward", "return scrollY === 300").await;
    // The same applies if the document is loaded again.
    browser.run("window.isOld = true; location.reload()").await;
    holds(browser, "the place of a reload", "return !window.isOld && scrollY === 300").await;
    assert_ne!(end, 300);
}

/// Checks that screens wait for the connection and open once it is back: one screen whose code is
/// not loaded yet, and others that wait for their data.
async fn screens_wait_for_connection(service: &Service, browser: &Chromium) {
    browser.connected(false).await;
    browser.run("document.querySelector('nav.rail a[href=\"/app/audit\"]').click()").await;
    browser.see("No connection. This page opens by itself").await;
    browser.picture("no-connection").await;
    browser.connected(true).await;
    browser.find("//h1[.='Audit log']").await;
    // Screens whose code is already loaded wait for their data in the same way.
    for (path, shown) in [
        ("keys", "//td[@data-label='Expires']"),
        ("members", "//td[@data-label='Role']"),
        ("runs", "//tbody//th"),
    ] {
        browser.open(service, &format!("/app/{path}")).await;
        browser.find(shown).await;
        let visit =
            |to: &str| format!("document.querySelector('nav.rail a[href=\"/app/{to}\"]').click()");
        browser.run(&visit("audit")).await;
        browser.find("//h1[.='Audit log']").await;
        browser.settled().await;
        browser.connected(false).await;
        browser.run(&visit(path)).await;
        browser.see("This page opens by itself when the service answers").await;
        browser.connected(true).await;
        browser.find(shown).await;
    }
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_keep_position_and_survive_lost_connection() {
    let up = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&up.manifest("talk", "chat", ""));
    let owner = service.owner().await;
    for at in 0..60 {
        service.create("text-template", json!({"template": at.to_string()})).await;
    }
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/models").await;
    browser.find("//h1[.='Models']").await;
    browser.run("document.querySelector('nav.rail a[href=\"/app/runs\"]').click()").await;
    browser.find("(//tbody//th//a)[40]").await;
    browser.settled().await;
    browser.run("scrollTo(0, 900)").await;
    let at = browser.run("return scrollY").await;
    browser.run("document.querySelectorAll('tbody th a')[30].click()").await;
    browser.find("//h1[.='text-template']").await;
    browser.run("history.back()").await;
    browser.find("//h1[.='Runs']").await;
    holds(&browser, "the same place", &format!("return Math.abs(scrollY - {at}) < 2")).await;
    pages_keep_positions(&browser).await;
    // A printed page has no navigation; with forced colors, the bars remain.
    browser.media(&[("", "print")]).await;
    let shown = "return getComputedStyle(document.querySelector('.rail')).display";
    assert_eq!(browser.run(shown).await, "none");
    // A printed page has no buttons either, and is black on white in both themes.
    let pressed = "return [...document.querySelectorAll('.button, .icon-button, [role=tab], .filters')].filter((one) => one.offsetParent).length";
    assert_eq!(browser.run(pressed).await, 0);
    browser.media(&[("", "print"), ("prefers-color-scheme", "dark")]).await;
    let ground = "return getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.run(ground).await, "rgb(255, 255, 255)");
    browser.media(&[("forced-colors", "active")]).await;
    let marked =
        "return getComputedStyle(document.querySelector('.nav-link[aria-current]')).outlineStyle";
    assert_eq!(browser.run(marked).await, "solid");
    browser.run("document.querySelectorAll('tbody th a')[0].click()").await;
    browser.find("//*[contains(@class,'track')]").await;
    let tabs = "const [one, ...others] = [...document.querySelectorAll('[role=tab]')].map((tab) => getComputedStyle(tab).borderBottomColor); return others.length > 3 && !others.includes(one)";
    assert_eq!(browser.run(tabs).await, true, "the chosen tab is marked");
    let kept =
        "return getComputedStyle(document.querySelector('.track .span.good')).backgroundColor";
    assert_ne!(browser.run(kept).await, "rgba(0, 0, 0, 0)");
    browser.media(&[("forced-colors", "none")]).await;
    screens_wait_for_connection(&service, &browser).await;
    // A long answer keeps the message field in view, and the page shows a failure once, in one
    // sentence.
    let message = "//textarea[@aria-label='Your message']";
    browser.open(&service, "/app/chat").await;
    let stream = up.streams();
    browser.find(message).await.send_keys(&format!("Tell me{ENTER}")).await;
    up.arrived(1).await;
    stream.say(&"A long line of an answer.\n\n".repeat(80));
    stream.say("The end.");
    browser.see("The end.").await;
    let in_view = "const { top, bottom } = document.querySelector('.composer').getBoundingClientRect(); return top >= 0 && bottom <= innerHeight + 1";
    holds(&browser, "the field in view", in_view).await;
    stream.finish(7, 3);
    browser.see("10 tokens").await;
    up.answers(503, "{\"error\": {\"message\": \"the model is busy: try again later.\"}}");
    browser.find(message).await.send_keys(&format!("More{ENTER}")).await;
    browser.find("//*[@role='alert']").await;
    holds(&browser, "the error in view", &in_view.replace(".composer", ".composer [role=alert]"))
        .await;
    let said =
        browser.run("return document.querySelector('.composer [role=alert]').innerText").await;
    assert!(!said.as_str().unwrap().contains(".."), "{said}");
    browser.picture("chat-error").await;
    browser.expect_quiet_console(&["ERR_INTERNET_DISCONNECTED", "503 (", "502 ("]).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_print_long_lists_and_closed_steps() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let step = |at: usize| json!({"step_id": format!("pass_{at}"), "type": "pass", "result": at});
    let flow = service.workflow((0..90).map(step).collect()).await;
    let execution = service.trigger(&flow, json!({})).await;
    service.completed(&execution).await;
    for at in 0..80 {
        let key = json!({"name": format!("key {at}")});
        service.asks(&owner, Method::POST, "/keys").json(&key).send().await.expect(201);
    }
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    let counts = "return [document.querySelectorAll('tr.spacer').length > 0, document.querySelectorAll('tr.detail').length]";
    for (path, details) in
        [("/app/keys", 0), (format!("/app/runs/{execution}?type=workflow").as_str(), 90)]
    {
        browser.open(&service, path).await;
        browser.settled().await;
        let gives = async |what: &str, value: Value| {
            until(what, async || (browser.run(counts).await == value).then_some(())).await;
        };
        gives("only rows in view", json!([true, 0])).await;
        browser.run("dispatchEvent(new Event('beforeprint'))").await;
        gives("everything", json!([false, details])).await;
        browser.run("dispatchEvent(new Event('afterprint'))").await;
        gives("only rows in view again", json!([true, 0])).await;
    }
    browser.open(&service, "/app/chat").await;
    browser.settled().await;
    browser.media(&[("", "print")]).await;
    let fields = "return [...document.querySelectorAll('.composer, .compose')].filter((one) => one.checkVisibility()).length";
    assert_eq!(browser.run(fields).await, 0);
    browser.leave().await;
}

/// Creates a workflow with this name; returns its id.
async fn named(service: &Service, name: &str, steps: Value) -> String {
    let body = json!({"name": name, "description": "d", "definition": {"steps": steps}});
    let made = service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
    made["workflow_id"].as_str().unwrap().to_owned()
}

/// Waits for the page of a run of the workflow with this name.
async fn is_run_of(browser: &Chromium, name: &str) {
    browser.find(&format!("//h1[starts-with(.,'{name}, ')]")).await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_follow_renamed_and_deleted_workflows_and_child_runs() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let broken = json!([{"step_id": "broken", "type": "model", "model": "text-template",
        "params": {"template": "{% broken"}}]);
    let inner = named(&service, "Read the letters", broken).await;
    let starts = json!([{"step_id": "c", "type": "workflow", "workflow": inner, "inputs": {}}]);
    let outer = named(&service, "Sort the mail", starts).await;
    let parent = service.trigger(&outer, json!({})).await;
    let detail = service.completed(&parent).await;
    let child = detail["step_outputs"]["c"]["metadata"]["execution_id"].as_str().unwrap();
    let path = format!("/workflows/{inner}");
    let renaming = service.flows(Method::PUT, &path).json(&json!({"name": "Read the post"}));
    renaming.send().await.expect(200);
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    // The page of a child run shows the new name, and links to its workflow and its parent.
    let at = |run: &str, more: &str| format!("/app/runs/{run}?type=workflow{more}");
    browser.open(&service, &at(child, "")).await;
    is_run_of(&browser, "Read the post").await;
    browser.press("Open the workflow").await;
    browser.find("//h1[.='Read the post']").await;
    browser.run("history.back()").await;
    browser.press("another run").await;
    is_run_of(&browser, "Sort the mail").await;
    browser.press("The runs that its steps started").await;
    browser.find(&format!("//tbody//th/a[contains(@href,'{child}')][.='Read the post']")).await;
    // Without its workflow, a failed run keeps its name and its other links.
    service.flows(Method::DELETE, &path).send().await;
    browser.open(&service, &at(&parent, "&step=c")).await;
    browser.press("The run that it started").await;
    is_run_of(&browser, "Read the post").await;
    browser.see("The workflow is deleted.").await;
    let links = "return [...document.querySelectorAll('main a')].filter((one) => one.pathname.startsWith('/app/workflows')).length";
    assert_eq!(browser.run(links).await, 0);
    browser.see("Resume from the failed step").await;
    browser.press("another run").await;
    is_run_of(&browser, "Sort the mail").await;
    browser.find("//a[.='Open the workflow']").await;
    // A link to the workflow itself leads to the list.
    browser.open(&service, &format!("/app/workflows/{inner}")).await;
    browser.press("Go to the list").await;
    browser.find("//tbody//th/a[.='Sort the mail']").await;
    // A resumed run of a deleted workflow has the same name.
    browser.open(&service, &at(child, "")).await;
    browser.press("Resume from the failed step").await;
    browser.press("an earlier one").await;
    browser.find(&format!("//*[contains(@class,'intro')][contains(.,'{child}')]")).await;
    is_run_of(&browser, "Read the post").await;
    browser.expect_quiet_console(&["404 (Not Found)"]).await;
    browser.leave().await;
}

/// Checks that the next page of the list at `path` starts at its top and that Back and Forward
/// restore the positions on both pages. `next` and `previous` are the buttons between the pages.
async fn second_page_keeps_positions(
    service: &Service,
    browser: &Chromium,
    path: &str,
    [next, previous]: [&str; 2],
) {
    let rests = |top: &str| format!("return Math.abs(scrollY - {top}) < 2");
    let kept = |top: &str| format!("return Math.abs((history.state?.scroll ?? -9) - {top}) < 2");
    browser.open(service, "/app/models").await;
    browser.find("//h1[.='Models']").await;
    let visit = format!("document.querySelector('nav.rail a[href=\"{path}\"]').click()");
    browser.run(&visit).await;
    browser.button(next).await;
    browser.settled().await;
    browser.run("scrollTo(0, 9999)").await;
    let end = browser.run("return scrollY").await.to_string();
    assert!(end.parse::<f64>().unwrap() > 300.0, "{path}: {end}");
    holds(browser, "the position is kept", &kept(&end)).await;
    browser.press(next).await;
    browser.button(previous).await;
    browser.settled().await;
    holds(browser, "the top of the next page", "return scrollY === 0").await;
    let second = browser.run("return location.search").await;
    assert_ne!(second, "", "{path}");
    browser.run("dispatchEvent(new Event('wheel')); scrollTo(0, 40)").await;
    holds(browser, "the position is kept", &kept("40")).await;
    // Open a row and go back: the same page appears at the same position. Go back once more: the
    // first page.
    browser.run("document.querySelector('tbody th a').click()").await;
    holds(browser, "another screen", &format!("return location.pathname !== '{path}'")).await;
    browser.run("history.back()").await;
    browser.button(previous).await;
    holds(browser, "the second page's position", &rests("40")).await;
    assert_eq!(browser.run("return location.search").await, second, "{path}");
    browser.run("history.back()").await;
    browser.button(next).await;
    holds(browser, "the first page's position", &rests(&end)).await;
    assert_eq!(browser.run("return location.search").await, "", "{path}");
    browser.run("history.forward()").await;
    browser.button(previous).await;
    holds(browser, "the second page's position", &rests("40")).await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_keep_page_and_position_in_each_list() {
    let service = Service::configured("billing.enabled = true\n").await;
    let receiver = Receiver::start().await;
    let owner = service.owner().await;
    let (billing, own) = (&service.running.services.billing, service.organization.id);
    let steps = json!([{"step_id": "a", "type": "pass", "result": 1}]);
    for at in 0..70 {
        let fields = json!({"input": {"template": "Hello"}, "webhook_url": receiver.url()});
        service.create_with("text-template", fields).await;
        billing.top_up(own, orrery_domain::money::Usd::from_micros(1_000_000 + at)).await.unwrap();
    }
    for at in 0..45 {
        named(&service, &format!("flow {at}"), steps.clone()).await;
    }
    until("deliveries", async || {
        let path = "/api/base/v1/webhooks?status=delivered&limit=1";
        let found = service.asks(&owner, Method::GET, path).send().await.expect(200);
        (found["total_count"] == 70).then_some(())
    })
    .await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    second_page_keeps_positions(&service, &browser, "/app/webhooks", ["Older", "Newer"]).await;
    second_page_keeps_positions(&service, &browser, "/app/workflows", ["Next", "Previous"]).await;
    // The longer ledger keeps its position.
    browser.open(&service, "/app/balance").await;
    browser.button("Show more").await;
    browser.settled().await;
    browser.run("scrollTo(0, 9999)").await;
    let end = browser.run("return scrollY").await;
    assert!(end.as_f64().unwrap() > 300.0, "{end}");
    browser.press("Show more").await;
    holds(&browser, "the longer ledger", "return location.search === '?limit=1000' && document.documentElement.scrollHeight - innerHeight > scrollY + 100").await;
    holds(&browser, "the position in it", &format!("return Math.abs(scrollY - {end}) < 2")).await;
    // Scroll to the end, which is higher than estimated, because most rows were never rendered.
    browser.settled().await;
    browser.run("dispatchEvent(new Event('wheel')); scrollTo(0, 99999)").await;
    holds(&browser, "the end of it", "const reach = document.documentElement.scrollHeight - innerHeight; scrollTo(0, reach); return Math.abs((history.state?.scroll ?? -9) - reach) < 2").await;
    let end = browser.run("return scrollY").await;
    browser.run("document.querySelector('nav.rail a[href=\"/app/keys\"]').click()").await;
    browser.find("//h1[.='API keys']").await;
    browser.run("history.back()").await;
    browser.find("//h1[.='Balance']").await;
    // Fewer rows have been measured, so the page may be a little shorter.
    holds(&browser, "the end again", &format!("const reach = document.documentElement.scrollHeight - innerHeight; return scrollY > {end} * 0.9 && (Math.abs(scrollY - {end}) < 2 || Math.abs(scrollY - reach) < 2)")).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn detail_screens_show_sessions_of_agent_whose_model_was_removed() {
    const AGENT: &str = "[agent]\nmodel = 'far'\n";
    let up = Upstream::start().await;
    up.follows(|request| {
        // The screen also requests the list of models.
        if request["messages"].is_null() {
            return (200, json!({"data": []}));
        }
        let message = json!({"role": "assistant", "content": "Here is your list."});
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10});
        (200, json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}))
    });
    let mut process = Process::start(&(up.config("") + AGENT), |_| {}).await;
    let link = process.command(&["owner", "link"]).await;
    let token = link.split_once('#').unwrap().1.split_whitespace().next().unwrap();
    let browser = Chromium::start().await;
    browser.goes_to(&process.page(&format!("/setup#{token}"))).await;
    browser.joins_as_owner().await;
    let agent = process.page("/app/chat?with=agent");
    let message = "//textarea[@aria-label='Your message']";
    let fields = "return document.querySelectorAll('main textarea').length";
    let chosen = "return document.querySelector('main .filters select').value";
    browser.goes_to(&agent).await;
    browser.find(message).await.send_keys(&format!("Make a list{ENTER}")).await;
    browser.see("Here is your list.").await;
    browser.see("in Runs").await;
    let session = browser.run("return new URLSearchParams(location.search).get('session')").await;
    // The run of the exchange links to the session, which can be continued there.
    browser.press("in Runs").await;
    browser.press("Open the session in the chat").await;
    browser.see("Here is your list.").await;
    assert_eq!(browser.run(chosen).await, session);
    browser.find(message).await;
    // Without a restart, the agent keeps its model; the reload reports which changes need a
    // restart.
    let file = process.folder.path().join("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(AGENT));
    std::fs::write(&file, text.replace(AGENT, "")).unwrap();
    process.command(&["reload"]).await;
    assert!(process.log().contains("\"needs_restart\":\"agent\""), "{}", process.log());
    browser.client.refresh().await.unwrap();
    browser.see("Here is your list.").await;
    browser.find(message).await;
    // After a restart, the open page shows the conversation, and explains why there is no message
    // field.
    browser.run("window.wasHere = true").await;
    process.kill().await;
    process.start_again().await;
    browser.see("The agent has no model yet").await;
    browser.see("Here is your list.").await;
    assert_eq!(browser.run(fields).await, 0);
    assert_eq!(browser.run("return window.wasHere").await, true);
    // The same applies to a link to the session. Without a session, only the explanation is shown.
    let existing = format!("{agent}&session={}", session.as_str().unwrap());
    browser.goes_to(&existing).await;
    browser.see("The agent has no model yet").await;
    browser.see("Here is your list.").await;
    assert_eq!((browser.run(chosen).await, browser.run(fields).await), (session, json!(0)));
    browser.goes_to(&agent).await;
    browser.see("The agent has no model yet").await;
    assert!(!browser.text().await.contains("Here is your list."));
    browser.picture("agent-without-model").await;
    browser.expect_quiet_console(&CONNECTION_LOST).await;
    browser.leave().await;
}
