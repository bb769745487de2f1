//! The dashboard in a browser: everything that a person can do without a terminal. Each visit must
//! end with an empty console and without requests to other origins.

use orrery_api::Role;
use orrery_domain::member::Origin;
use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::dashboard::{PASSWORD, Person, cookie_of};
use crate::support::{Receiver, Service};

const ENTER: &str = "\u{E007}";
const TAB: &str = "\u{E004}";
const CONTROL: &str = "\u{E009}";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_allow_setup_to_first_run_by_keyboard() {
    let service = Service::start().await;
    let browser = Chromium::start().await;
    browser.open(&service, "/").await;
    browser.see("orrery owner link").await;
    browser.picture("not-set-up").await;
    let token = service.owner_token().await;
    browser.open(&service, &format!("/setup#{token}")).await;
    browser.field("Name").await;
    // The address bar no longer contains the token, and the first field has the focus.
    assert_eq!(browser.run("return location.hash + document.activeElement.name").await, "name");
    browser.picture("set-up").await;
    browser.keys(&format!("Ada Lovelace{TAB}ada@example.com{TAB}short password{ENTER}")).await;
    browser.see("Hello, Ada Lovelace.").await;
    browser.picture("home-new").await;
    // `g`, then `m` opens Models; `/` moves to the search field, and Tab to the first result.
    browser.keys("gm").await;
    browser.see("Everything that this machine can run.").await;
    browser.keys("/sentiment").await;
    browser.see("text-sentiment").await;
    browser.keys(&format!("{TAB}{ENTER}")).await;
    browser.field("Text").await;
    browser.field("Text").await.send_keys("What a beautiful night!").await;
    browser.keys(&format!("{CONTROL}{ENTER}")).await;
    browser.see("Succeeded").await;
    browser.see("label").await;
    browser.picture("playground").await;
    browser.run("document.activeElement.blur()").await;
    browser.keys("gr").await;
    browser.see("Everything that ran in your organization").await;
    browser.see("text-sentiment").await;
    browser.see("Dashboard").await;
    // The link works once.
    browser.open(&service, &format!("/setup#{token}")).await;
    browser.see("This link was used already.").await;
    browser.see("orrery owner link").await;
    browser.expect_quiet_console(&["410 (Gone)"]).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_show_a_new_key_once_and_buttons_by_permission() {
    let service = Service::start().await;
    let owner = service.owner().await;
    service.member(&owner, "grace@example.com").await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, "/app/keys").await;
    browser.press("Create a key").await;
    browser.fill("What is the key for?", "nightly report").await;
    browser.press("Create the key").await;
    let shown = browser.find("//input[@aria-label='The new API key']").await;
    let key = shown.value().await;
    assert!(key.starts_with("smk_"), "{key}");
    browser.picture("key-new").await;
    browser.press("I have copied it").await;
    browser.see("nightly report").await;
    let everywhere = "return [document.documentElement.outerHTML, location.href, JSON.stringify(localStorage), \
                      JSON.stringify(sessionStorage), document.cookie].join(' ')";
    for round in 0..2 {
        let all = browser.run(everywhere).await;
        assert!(!all.as_str().unwrap().contains(&key), "the key is still there, round {round}");
        browser.client.refresh().await.unwrap();
        browser.see("nightly report").await;
    }
    // The Owner grants the permission, and revokes it.
    browser.open(&service, "/app/members").await;
    browser.find("//input[@aria-label='API key access of grace@example.com']").await.click().await;
    browser.see("Can manage API keys\n").await;
    // For a person who has just joined, the page shows a last visit just now.
    assert!(!browser.text().await.contains("never"), "{}", browser.text().await);
    browser.picture("members").await;
    let grace = Chromium::start().await;
    grace.logs_in(&service, "grace@example.com").await;
    grace.open(&service, "/app/keys").await;
    grace.button("Create a key").await;
    grace.press("Delete the key nightly report").await;
    grace.see("Delete this key?").await;
    grace.press("Cancel").await;
    let id = service.id_of(&owner, "grace@example.com").await;
    let path = format!("/members/{id}");
    let allows = async |is_allowed: bool| {
        let change = service.asks(&owner, hyper::Method::PATCH, &path);
        change.json(&json!({"api_key_access": is_allowed})).send().await.expect(200);
    };
    // The server rejects an action that was started without the permission, and the page reflects
    // the change without a reload.
    grace.press("Create a key").await;
    grace.fill("What is the key for?", "late").await;
    allows(false).await;
    grace.press("Create the key").await;
    grace.see("This needs the permission 'Can manage API keys', which the Owner grants.").await;
    grace.see("ask the Owner for the permission").await;
    grace.press("Cancel").await;
    grace.run("window.wasHere = true").await;
    allows(true).await;
    grace.button("Create a key").await;
    allows(false).await;
    grace.see("ask the Owner for the permission").await;
    assert_eq!(grace.run("return window.wasHere").await, true);
    grace.expect_quiet_console(&["403 (Forbidden)"]).await;
    let works = service.ask(Role::Base, hyper::Method::GET, "/v1/billing/balance").key(&key);
    works.send().await.expect(200);
    grace.leave().await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_show_login_on_top_and_lose_nothing() {
    let service = Service::start().await;
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/models/text-template").await;
    browser.fill("Template", "Hello again").await;
    // The session ends without the page being notified.
    let members = &service.running.services.members;
    let owner = members.owner(service.organization.id).await.unwrap().unwrap();
    let reset = members.reset_link(service.organization.id, owner.id).await.unwrap().url("");
    let token = reset.split_once('#').unwrap().1;
    members.reset(token, PASSWORD, None, Origin::default()).await.unwrap();
    browser.press("Run").await;
    browser.see("Your session has ended.").await;
    browser.picture("log-in-on-top").await;
    browser.find("//dialog//input[@type='password']").await.send_keys("wrong horse battery").await;
    browser.find("//dialog//button[@type='submit']").await.click().await;
    browser.see("The email address or the password is wrong.").await;
    let field = browser.find("//dialog//input[@type='password']").await;
    field.replace(PASSWORD).await;
    browser.find("//dialog//button[@type='submit']").await.click().await;
    browser.see("Succeeded").await;
    browser.see("Hello again").await;
    browser.expect_quiet_console(&["401 (Unauthorized)"]).await;
    browser.leave().await;
}

impl Service {
    /// Adds a model of which the test uses only the form.
    fn manifest_of_schema(&self, slug: &str, schema: &Value) {
        let file = format!("{slug}.json");
        std::fs::write(self.models().join(&file), schema.to_string()).unwrap();
        let runner = "[runner]\ntype = 'command'\ncommand = ['true']\n";
        self.manifest(&format!(
            "slug = '{slug}'\noutput_type = 'object'\nrequest_schema_file = '{file}'\n{runner}"
        ));
    }
}

/// Returns a schema with every kind of field, each with a default if possible.
fn every_field() -> Value {
    json!({
        "type": "object", "required": ["line"], "properties": {
            "line": {"type": "string", "maxLength": 20, "default": "a line"},
            "kind": {"enum": ["a", 2, null], "default": 2},
            "fixed": {"const": 7},
            "whole": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
            "real": {"type": "number", "default": 0.5},
            "yes": {"type": "boolean", "default": true},
            "maybe": {"type": ["string", "null"], "maxLength": 9, "default": "x"},
            "list": {"type": "array", "items": {"type": "string", "maxLength": 9}, "default": ["p", "q"]},
            "inner": {"type": "object", "properties": {"deep": {"$ref": "#/$defs/deep"}}, "default": {"deep": "d"}},
            "either": {"oneOf": [{"type": "string", "title": "A text"}, {"type": "integer", "title": "A number"}], "default": 5},
            "tree": {"$ref": "#/$defs/tree"},
            "anything": true,
        },
        "$defs": {"deep": {"type": "string", "maxLength": 9}, "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}},
    })
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_give_every_model_a_form_that_loses_nothing() {
    let service = Service::start().await;
    service.manifest_of_schema("all-fields", &every_field());
    let wide: serde_json::Map<String, Value> =
        (0..500).map(|at| (format!("field-{at:03}"), json!({"type": "string"}))).collect();
    service.manifest_of_schema("wide", &json!({"type": "object", "properties": wide}));
    let models = service.get("/v1/models?limit=500").await.expect(200);
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    for model in models.as_array().unwrap() {
        let slug = model["slug"].as_str().unwrap();
        browser.open(&service, &format!("/app/models/{slug}")).await;
        browser.button("Run").await;
        // Each property of the schema has a field in the form.
        let properties =
            model["request_schema"]["properties"].as_object().cloned().unwrap_or_default();
        for (name, part) in properties.iter().take(12) {
            browser.see(part["title"].as_str().unwrap_or(name)).await;
        }
        let before = browser.run(&format!("return sessionStorage.getItem('input:{slug}')")).await;
        assert_eq!(before, Value::Null, "{slug}: a form changes nothing by itself");
    }
    browser.open(&service, "/app/models/wide").await;
    browser.see("Show 480 more fields").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_convert_form_to_json_and_back() {
    let service = Service::start().await;
    service.manifest_of_schema("all-fields", &every_field());
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    // Switch from the form to JSON and back: the defaults, with one change in each tab.
    browser.open(&service, "/app/models/all-fields").await;
    browser.fill("line", "r").await;
    browser.press_tab("JSON").await;
    let input: Value = serde_json::from_str(&browser.json_text().await).unwrap();
    let expected = json!({"line": "a liner", "kind": 2, "fixed": 7, "whole": 3, "real": 0.5, "yes": true, "maybe": "x", "list": ["p", "q"], "inner": {"deep": "d"}, "either": 5});
    assert_eq!(input, expected);
    browser.writes_json(r#"{"line": "x", "anything": [1, {"a": null}], "unknown": 1, "tree": {"next": {"next": {}}}}"#).await;
    browser.press_tab("Form").await;
    browser.see("The JSON tab also has: unknown").await;
    browser.fill("line", "y").await;
    browser.press_tab("JSON").await;
    let input: Value = serde_json::from_str(&browser.json_text().await).unwrap();
    assert_eq!(
        input,
        json!({"line": "xy", "anything": [1, {"a": null}], "unknown": 1, "tree": {"next": {"next": {}}}})
    );
    // A rejected input marks its field, and the typed values remain.
    browser.open(&service, "/app/models/image-qr").await;
    browser.press_tab("JSON").await;
    browser.writes_json(r#"{"text": 7}"#).await;
    browser.press("Run").await;
    browser.see("Invalid input: ").await;
    assert!(browser.json_text().await.contains('7'));
    // Keys typed into the editor trigger no shortcuts.
    browser.writes_json("gm").await;
    browser.see("Line 1: this is not JSON yet.").await;
    browser.is_accessible("model-json").await;
    browser.expect_quiet_console(&["400 (Bad Request)"]).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_open_failed_run_at_failed_step() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let steps = json!([
        {"step_id": "greet", "type": "model", "model": "text-template", "params": {"template": "Hello"}},
        {"step_id": "broken", "type": "model", "model": "text-template", "params": {"template": "{% broken"},
         "retry": {"max_attempts": 2, "initial_delay_seconds": 0.1}},
        {"step_id": "after", "type": "model", "model": "text-template", "params": {"template": "Never"}},
    ]);
    let workflow = service.workflow(steps).await;
    let path = format!("/api/workflows/api/v1/{workflow}/trigger");
    let taken =
        service.asks(&owner, hyper::Method::POST, &path).json(&json!({})).send().await.expect(202);
    let id = taken["execution_id"].as_str().unwrap();
    let record = service.completed(id).await;
    assert_eq!(
        (&record["status"], &record["source"]),
        (&json!("failed"), &json!("dashboard")),
        "{record}"
    );
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, "/app/runs?type=workflow&status=error,failed").await;
    browser.press("flow").await;
    browser.see("Resume from the failed step").await;
    // The failed step is expanded, and its texts and bars match the record.
    let open = browser.find("//tr[contains(@class,'open')]//button").await;
    assert_eq!(open.text().await, "broken");
    let attempts = record["step_outputs"]["broken"]["attempts"].as_array().unwrap().len();
    let bars = browser.run("return document.querySelectorAll('tr.open .span.bad').length").await;
    assert_eq!(bars, attempts);
    browser.picture("run-failed").await;
    browser.press("Resume from the failed step").await;
    browser.see("This run continues").await;
    browser.see("Failed").await;
    browser.leave().await;
}

/// Creates a workflow with two versions and a chain, with hostile text wherever a person may enter
/// text.
async fn hostile_flow(service: &Service, owner: &Person, hostile: &str) -> String {
    let definition = |more: &str| {
        json!({
            "input_schema": {"type": "object", "title": hostile, "properties": {hostile: {"type": "string", "title": hostile, "description": hostile}}},
            "steps": [
                {"step_id": "say", "type": "model", "name": hostile, "model": "text-template", "params": {"template": hostile, "values": {hostile: more}}},
                {"step_id": "both", "type": "parallel", "branches": [
                    {"name": hostile, "steps": [{"step_id": "left", "type": "pass", "result": hostile}]},
                    {"steps": [{"step_id": "right", "type": "http", "url": "http://127.0.0.1:1/x", "headers": {"X-Note": "<b>"}}]},
                ]},
                {"step_id": "each", "type": "map", "items": ["a"], "item_name": "one", "steps": [{"step_id": "wait", "type": "wait", "seconds": 1}]},
                {"step_id": "end", "type": "choice", "condition": {"expression": "{{say.output}}", "operator": "exists"},
                 "condition_met_branch": {"steps": []}, "default_branch": {"steps": []}},
            ],
            "metadata": {"output_mapping": {hostile: hostile}},
        })
    };
    let body = json!({"name": hostile, "description": hostile, "tags": [&hostile[..40]], "definition": definition("one")});
    let path = "/api/workflows/api/v1/workflows";
    let made = service.asks(owner, hyper::Method::POST, path).json(&body).send().await.expect(201);
    let id = made["workflow_id"].as_str().unwrap().to_owned();
    let body = json!({"version_id": "v2", "definition": definition(hostile)});
    let path = format!("{path}/{id}/versions/v2");
    service.asks(owner, hyper::Method::PUT, &path).json(&body).send().await.expect(200);
    let chain = json!({"model": "text-language", "name": "safe", "entries": [{"model": "text-sentiment", "input_map": {"text": hostile}}]});
    service.asks(owner, hyper::Method::POST, "/chains").json(&chain).send().await.expect(201);
    id
}

/// Checks the open screen in both widths and themes: nothing is wider than the window, and axe
/// reports no violation.
pub(crate) async fn fits_every_width(browser: &Chromium, name: &str) {
    for (width, is_dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
        browser.looks(width, is_dark).await;
        let overflow = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
        assert!(overflow.as_i64().unwrap() <= 0, "{name} at {width}: {overflow} px too wide");
        let theme = if is_dark { "dark" } else { "light" };
        browser.is_accessible(&format!("{name}, {width}, {theme}")).await;
        browser.picture(&format!("{name}-{width}-{theme}")).await;
    }
}

const HOSTILE: &str =
    "<script>window.hit=1</script><img src=x onerror='window.hit=1'>\u{202e}javascript:alert(1)";

/// Creates hostile text in data from others: a person's name, a model's title and schema, its
/// error, a receiver's response, and a line of a megabyte. Returns the paths of the pages that show
/// it.
async fn hostile_others(service: &Service) -> Vec<(&'static str, String)> {
    let owner = service.owner_token().await;
    let body = json!({"token": owner, "name": &HOSTILE[..60], "email": "owner@example.com", "password": PASSWORD});
    let made = service.page_asks(hyper::Method::POST, "/setup").json(&body).send().await;
    assert_eq!(made.status, 204, "{}", made.text);
    let schema = json!({"type": "object", "title": HOSTILE, "properties": {
        HOSTILE: {"enum": [HOSTILE], "title": HOSTILE, "description": HOSTILE, "default": HOSTILE}}});
    std::fs::write(service.models().join("hostile.json"), schema.to_string()).unwrap();
    let title = serde_json::to_string(HOSTILE).unwrap();
    service.manifest(&format!(
        "slug = 'hostile'\ntitle = {title}\noutput_type = 'object'\nrequest_schema_file = 'hostile.json'\n\
         [runner]\ntype = 'command'\ncommand = ['true']\n"
    ));
    let mut receiver = Receiver::saying(HOSTILE).await;
    let fields =
        json!({"input": {"template": format!("{{% {HOSTILE} %}}")}, "webhook_url": receiver.url()});
    let failed = service.create_with("text-template", fields).await;
    service.ended(&failed).await;
    receiver.next().await;
    let long = json!([{"step_id": "say", "type": "pass", "result": "{{inputs.text}}"}]);
    let flow = service.workflow(long).await;
    let long = service.trigger(&flow, json!({"inputs": {"text": "y".repeat(1_000_000)}})).await;
    service.completed(&long).await;
    vec![
        ("model-hostile", "/app/models/hostile".to_owned()),
        ("model-hostile-schema", "/app/models/hostile?tab=schema".to_owned()),
        ("run-failed-hostile", format!("/app/runs/{failed}")),
        ("webhook-hostile", format!("/app/webhooks/{failed}")),
        ("run-megabyte", format!("/app/runs/{long}?type=workflow&tab=output")),
    ]
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn screens_show_hostile_text_as_text_and_fit_every_width() {
    let service = Service::start().await;
    let hostile = HOSTILE;
    let others = hostile_others(&service).await;
    let owner = service.logs_in("owner@example.com", PASSWORD).await;
    let cookie = cookie_of(owner.header("set-cookie"));
    let owner = Person { cookie, email: "owner@example.com".to_owned() };
    let key = json!({"name": &hostile[..60]});
    service.asks(&owner, hyper::Method::POST, "/keys").json(&key).send().await.expect(201);
    let output = json!({"template": hostile});
    let text = service.create("text-template", output).await;
    service.ended(&text).await;
    let link = service
        .create("text-template", json!({"template": "javascript:alert(document.domain)"}))
        .await;
    service.ended(&link).await;
    let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"<img src=x onerror=window.hit=1>.html\"\r\nContent-Type: text/html\r\n\r\n<script>window.hit=1</script>\r\n--x--\r\n";
    let upload = service
        .asks(&owner, hyper::Method::POST, "/api/base/v1/files")
        .header("content-type", "multipart/form-data; boundary=x");
    let file = upload.body(form).send().await.expect(201);
    let long = service.create("text-template", json!({"template": "x".repeat(90_000)})).await;
    service.ended(&long).await;
    let flow = hostile_flow(&service, &owner, hostile).await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    let screens = [
        ("home", "/app".to_owned()),
        ("models", "/app/models".to_owned()),
        ("model", "/app/models/image-resize".to_owned()),
        ("model-code", "/app/models/text-template?tab=code".to_owned()),
        ("chat", "/app/chat".to_owned()),
        ("runs", "/app/runs".to_owned()),
        ("run", format!("/app/runs/{text}?tab=output")),
        ("run-link", format!("/app/runs/{link}?tab=output")),
        ("run-long", format!("/app/runs/{long}?tab=output")),
        ("workflows", "/app/workflows".to_owned()),
        ("workflow", format!("/app/workflows/{flow}")),
        ("workflow-inputs", format!("/app/workflows/{flow}?step=inputs")),
        ("workflow-json", format!("/app/workflows/{flow}?tab=json")),
        ("workflow-run", format!("/app/workflows/{flow}?tab=run")),
        ("workflow-versions", format!("/app/workflows/{flow}?tab=versions")),
        ("chains", "/app/chains".to_owned()),
        ("agent", "/app/chat?with=agent".to_owned()),
        ("webhooks", "/app/webhooks".to_owned()),
        ("files", "/app/files".to_owned()),
        ("balance", "/app/balance".to_owned()),
        ("keys", "/app/keys".to_owned()),
        ("members", "/app/members".to_owned()),
        ("audit", "/app/audit".to_owned()),
        ("health", "/app/health".to_owned()),
        ("account", "/app/account".to_owned()),
        ("missing", "/app/nothing".to_owned()),
    ];
    for (name, path) in screens.iter().chain(&others) {
        browser.open(&service, path).await;
        browser.settled().await;
        fits_every_width(&browser, name).await;
        assert_eq!(browser.run("return window.hit ?? null").await, Value::Null, "{name}");
        let links = browser
            .run("return [...document.links].filter(one => !/^https?:$/.test(one.protocol)).length")
            .await;
        assert_eq!(links, 0, "{name}");
    }
    // Opening the file itself runs no script either, since the response is a download.
    let content = format!("/api/base/v1/files/{}/content", file["id"].as_str().unwrap());
    let answer = service.asks(&owner, hyper::Method::GET, &content).send().await;
    assert!(answer.header("content-disposition").starts_with("attachment"));
    assert!(answer.header("content-security-policy").contains("sandbox"));
    browser.leave().await;
}
