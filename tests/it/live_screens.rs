//! Pages that follow live changes: across a kill of the service, and in more windows than the
//! browser has connections.

use std::collections::BTreeSet;
use std::path::Path;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::chromium::{CONNECTION_LOST, Chromium};
use crate::support::dashboard::Person;
use crate::support::{Process, Provider, Receiver, Service};
use orrery_api::Role;

const AWAY: &str = "The service does not answer.";
const BACKS: &str = "return performance.getEntriesByType('navigation')[0].type";

/// Starts a process with a held model and a streaming model, and a browser that is logged in.
async fn start(provider: &Provider) -> (Process, Chromium) {
    let url = provider.url("/stream");
    let chat = format!(
        "slug = 'chat'\noutput_type = 'string'\n[runner]\ntype = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{url}'\n"
    );
    let prepare = |models: &Path| {
        std::fs::write(models.join("held.toml"), provider.manifest("held", "/hold", "")).unwrap();
        std::fs::write(
            models.join("failing.toml"),
            provider.manifest("failing", "/status/500", ""),
        )
        .unwrap();
        std::fs::write(models.join("chat.toml"), chat).unwrap();
    };
    let process = Process::start("", prepare).await;
    let link = process.command(&["owner", "link"]).await;
    let token = link.split_once('#').unwrap().1.split_whitespace().next().unwrap().to_owned();
    let browser = Chromium::start().await;
    browser.goes_to(&process.page(&format!("/setup#{token}"))).await;
    browser.joins_as_owner().await;
    (process, browser)
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_timeline_resumes_after_kill_without_duplicates() {
    let provider = Provider::start().await;
    let (mut process, browser) = start(&provider).await;
    let definition = json!({"steps": [
        {"step_id": "greet", "type": "model", "model": "text-template", "params": {"template": "Hello"}},
        {"step_id": "slow", "type": "model", "model": "held", "params": {}},
        {"step_id": "broken", "type": "model", "model": "failing", "params": {}, "depends_on": ["slow"],
         "retry": {"max_attempts": 2, "initial_delay_seconds": 0.1},
         "fallback": {"model": "text-template", "params": {"template": "{% too"}}},
        {"step_id": "after", "type": "pass", "result": 1},
    ]});
    let body = json!({"name": "flow", "description": "d", "definition": definition});
    let made = browser.asks("POST", "/api/workflows/api/v1/workflows", &body).await;
    let path = format!("/api/workflows/api/v1/{}/trigger", made["workflow_id"].as_str().unwrap());
    let taken = browser.asks("POST", &path, &json!({})).await;
    let id = taken["execution_id"].as_str().unwrap().to_owned();
    provider.arrived(1).await;
    browser.goes_to(&process.page(&format!("/app/runs/{id}?type=workflow"))).await;
    browser.see("Running").await;
    browser.find("//tr[contains(.,'greet')]//span[contains(@class,'good')]").await;
    browser.run("window.wasHere = true").await;
    process.kill().await;
    browser.see(AWAY).await;
    browser.picture("run-away").await;
    process.start_again().await;
    provider.arrived(2).await;
    browser.see_no_more(AWAY).await;
    browser.see("Running").await;
    provider.release(1);
    // The page shows without a reload that the run has ended, with the failed step expanded.
    let open = browser.find("//tr[contains(@class,'open')]//button").await;
    assert_eq!(open.text().await, "broken");
    browser.see("Resume from the failed step").await;
    assert_eq!(browser.run("return window.wasHere").await, true, "{}", browser.run(BACKS).await);
    let record =
        browser.asks("GET", &format!("/api/base/v1/workflows/executions/{id}"), &Value::Null).await;
    assert_eq!(record["status"], "failed", "{record}");
    let names = browser.run("return [...document.querySelectorAll('.timeline tbody th button')].map((one) => one.innerText)").await;
    assert_eq!(names, json!(["greet", "slow", "broken"]));
    // The bars and the list of attempts match the record, with each attempt shown once.
    for (at, step) in ["greet", "slow", "broken"].iter().enumerate() {
        let attempts = record["step_outputs"][step]["attempts"].as_array().unwrap();
        let bars = format!(
            "return [...document.querySelectorAll('.timeline tbody th button')][{at}].closest('tr').querySelectorAll('.span:not(.queued)').length"
        );
        assert_eq!(browser.run(&bars).await, attempts.len(), "{step}: {record}");
    }
    assert_eq!(record["step_outputs"]["greet"]["attempts"].as_array().unwrap().len(), 1);
    let tries = browser.run("return document.querySelectorAll('ol.attempts li').length").await;
    assert_eq!(tries, record["step_outputs"]["broken"]["attempts"].as_array().unwrap().len());
    assert!(
        record["step_outputs"]["broken"]["attempts"].as_array().unwrap().len() >= 3,
        "{record}"
    );
    browser.see("and its fallback ran").await;
    let history = browser.asks("GET", "/api/base/v2/executions?type=workflow", &Value::Null).await;
    assert_eq!(history["executions"].as_array().unwrap().len(), 1, "{history}");
    browser.expect_quiet_console(&CONNECTION_LOST).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_output_restarts_after_kill_without_duplicates() {
    let provider = Provider::start().await;
    let (mut process, browser) = start(&provider).await;
    browser.run("sessionStorage.setItem('input:chat', JSON.stringify({ prompt: 'p' }))").await;
    browser.goes_to(&process.page("/app/models/chat")).await;
    browser.press("Run").await;
    provider.arrived(1).await;
    provider.say("before ");
    browser.see("before ").await;
    process.kill().await;
    provider.hung_up(1).await;
    browser.see(AWAY).await;
    process.start_again().await;
    provider.arrived(2).await;
    provider.say("after");
    browser.see("after").await;
    browser.see_no_more(AWAY).await;
    provider.finish();
    browser.see("Succeeded").await;
    let text = browser
        .run("return document.querySelector('[aria-label=Output] pre.code bdi').innerText")
        .await;
    assert_eq!(text, "after");
    browser.expect_quiet_console(&CONNECTION_LOST).await;
    browser.leave().await;
}

/// Number of concurrently open windows; a browser has six connections per address.
const WINDOWS: usize = 8;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_pages_load_and_update_in_eight_visible_windows() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let owner = service.owner().await;
    let prediction = service.create("held", json!({})).await;
    let flow = service
        .workflow(json!([{"step_id": "slow", "type": "model", "model": "held", "params": {}}]))
        .await;
    let execution = service.trigger(&flow, json!({})).await;
    provider.arrived(2).await;
    let browser = Chromium::start().await;
    browser.logs_in(&service, &owner.email).await;
    let mut windows = vec![browser.client.window().await.unwrap()];
    for _ in 1..WINDOWS {
        windows.push(browser.client.new_window(false).await.unwrap().handle);
    }
    for (at, window) in windows.iter().enumerate() {
        browser.client.switch_to_window(window.clone()).await.unwrap();
        browser.is_watched().await;
        let path = if at % 2 == 0 {
            format!("/app/runs/{prediction}")
        } else {
            format!("/app/runs/{execution}?type=workflow")
        };
        browser.open(&service, &path).await;
        browser.see("Running").await;
    }
    // All windows are visible, and each still gets immediate responses.
    for window in &windows {
        browser.client.switch_to_window(window.clone()).await.unwrap();
        assert_eq!(browser.run("return document.hidden").await, false);
        let answer = browser.asks("GET", "/session", &Value::Null).await;
        assert_eq!(answer["member"]["role"], "owner");
    }
    provider.release(2);
    for window in &windows {
        browser.client.switch_to_window(window.clone()).await.unwrap();
        crate::support::until("end in the window", async || {
            let text = browser.text().await;
            (text.contains("Succeeded") || text.contains("Completed")).then_some(())
        })
        .await;
    }
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_page_without_visibility_holds_no_connection() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let owner = service.owner().await;
    let id = service.create("held", json!({})).await;
    let browser = Chromium::start().await;
    // Counts the page's streams, and controls its visibility.
    browser
        .before_pages(
            "window.held = new Set(); window.isSeen = true; \
             Object.defineProperty(document, 'hidden', { get: () => !window.isSeen }); \
             window.see = (is) => { window.isSeen = is; document.dispatchEvent(new Event('visibilitychange')); }; \
             const Source = window.EventSource; \
             window.EventSource = class extends Source { constructor(url) { super(url); window.held.add(this); } close() { super.close(); window.held.delete(this); } };",
        )
        .await;
    browser.logs_in(&service, &owner.email).await;
    browser.open(&service, &format!("/app/runs/{id}")).await;
    let held = async |count: usize| {
        crate::support::until("connections of the page", async || {
            (browser.run("return window.held.size").await == count).then_some(())
        })
        .await;
    };
    held(1).await;
    browser.run("window.see(false)").await;
    held(0).await;
    browser.run("window.see(true)").await;
    held(1).await;
    provider.release(1);
    browser.see("Succeeded").await;
    held(0).await;
    browser.leave().await;
}

/// Counts the page's change streams, and controls its visibility.
const FOLLOWED: &str = "window.following = 0; window.isSeen = true; window.marked = []; \
     Object.defineProperty(document, 'hidden', { get: () => !window.isSeen }); \
     window.see = (is) => { window.isSeen = is; document.dispatchEvent(new Event('visibilitychange')); }; \
     const ask = window.fetch; \
     window.fetch = (path, more = {}) => { \
       window.marked.push([path, Boolean(more.headers?.['x-orrery-unattended'])]); \
       if (path === '/events') { window.following += 1; more.signal.addEventListener('abort', () => { window.following -= 1; }); } \
       return ask(path, more); };";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_lists_show_changes_made_elsewhere() {
    let service = Service::configured("billing.enabled = true\n").await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::held([]).await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let owner = service.owner().await;
    let browser = Chromium::start().await;
    browser.before_pages(FOLLOWED).await;
    browser.becomes(&service, &owner).await;
    let follows = async |count: usize| {
        crate::support::until("streams of the page", async || {
            (browser.run("return window.following").await == count).then_some(())
        })
        .await;
    };
    browser.open(&service, "/app/runs").await;
    browser.see("Nothing has run yet").await;
    follows(1).await;
    let fields = json!({"input": {}, "webhook_url": receiver.url()});
    let id = service.create_with("held", fields).await;
    browser.see("held").await;
    browser.see("Running").await;
    // The user did not trigger these requests, so they do not keep the session alive.
    let lists = "return window.marked.filter(([path]) => path.includes('/v2/executions')).map(([, is]) => is)";
    let marks = browser.run(lists).await;
    let marks = marks.as_array().unwrap();
    assert_eq!((&marks[0], marks.last().unwrap()), (&json!(false), &json!(true)), "{marks:?}");
    // Changes made while the page is invisible appear once it is visible.
    browser.run("window.see(false)").await;
    follows(0).await;
    provider.arrived(1).await;
    provider.release(1);
    service.ended(&id).await;
    assert!(browser.text().await.contains("Running"));
    browser.run("window.see(true)").await;
    browser.see("Succeeded").await;
    follows(1).await;
    // The same stream also serves the pages opened next.
    browser.run("document.querySelector('nav.rail a[href=\"/app/webhooks\"]').click()").await;
    browser.see("Delivering").await;
    receiver.next().await;
    receiver.let_go();
    browser.see("Delivered").await;
    browser.run("document.querySelector('nav.rail a[href=\"/app\"]').click()").await;
    shows_figure(&browser, "Running now", "0").await;
    service.create("held", json!({})).await;
    shows_figure(&browser, "Running now", "1").await;
    let steps = json!([{"step_id": "w", "type": "wait", "event": {"name": "e"}}]);
    let workflow = service.workflow(steps).await;
    service.trigger(&workflow, json!({})).await;
    shows_figure(&browser, "Waiting for approval", "1").await;
    browser.see("Waiting for approval").await;
    browser.run("document.querySelector('nav.rail a[href=\"/app/files\"]').click()").await;
    browser.see("No files yet").await;
    let text = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"offer.txt\"\r\n\r\nhello\r\n--b--\r\n";
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(text);
    upload.send().await.expect(201);
    browser.see("offer.txt").await;
    records_follow(&service, &browser, &owner).await;
    follows(1).await;
    browser.leave().await;
}

/// Checks the lists of workflows, their latest runs, keys, members, secrets and the balance.
async fn records_follow(service: &Service, browser: &Chromium, owner: &Person) {
    let visits = async |page: &str, shown: &str| {
        let link = format!("document.querySelector('nav.rail a[href=\"/app/{page}\"]').click()");
        browser.run(&link).await;
        browser.see(shown).await;
    };
    let steps = json!([{"step_id": "a", "type": "pass", "result": 1}]);
    let named =
        |name: &str| json!({"name": name, "description": "d", "definition": {"steps": steps}});
    visits("workflows", "flow").await;
    let made = service.flows(Method::POST, "/workflows").json(&named("Farewell")).send().await;
    browser.see("Farewell").await;
    let path = format!("/workflows/{}", made.expect(201)["workflow_id"].as_str().unwrap());
    service.flows(Method::DELETE, &path).send().await;
    browser.see_no_more("Farewell").await;
    let made = service.flows(Method::POST, "/workflows").json(&named("Greeting")).send().await;
    let greeting = made.expect(201)["workflow_id"].as_str().unwrap().to_owned();
    browser.press("Greeting").await;
    browser.press_tab("Run").await;
    browser.see("It has not run yet.").await;
    service.trigger(&greeting, json!({})).await;
    browser.find("//section[@aria-label='Runs']//tbody//a[contains(.,'Completed')]").await;
    visits("keys", "API keys").await;
    let key = json!({"name": "web shop"});
    service.asks(owner, Method::POST, "/keys").json(&key).send().await.expect(201);
    browser.see("web shop").await;
    visits("members", "The people who can log in").await;
    service.member(owner, "grace@example.com").await;
    browser.see("grace@example.com").await;
    visits("secrets", "No secrets yet").await;
    let secret = service.asks(owner, Method::PUT, "/api/base/v1/secrets/SHOP_TOKEN");
    secret.json(&json!({"value": "x"})).send().await;
    browser.see("SHOP_TOKEN").await;
    visits("balance", "Nothing was spent yet").await;
    let dollars = orrery_domain::money::Usd::from_micros(5_000_000);
    service.running.services.billing.top_up(service.organization.id, dollars).await.unwrap();
    browser.see("Topped up").await;
}

/// Waits until Home shows this figure.
async fn shows_figure(browser: &Chromium, name: &str, value: &str) {
    let path = format!("//dl/div[dt='{name}']/dd[normalize-space(.)='{value}']");
    browser.find(&path).await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_screens_count_own_work_while_another_organization_holds_model() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let owner = service.owner().await;
    let run = json!({"model": "held", "version": "0.0.1", "input": {}});
    for _ in 0..3 {
        let theirs =
            service.ask(Role::Base, Method::POST, "/v1/prediction").key(&service.other_key);
        theirs.json(&run).send().await.expect(200);
    }
    provider.arrived(1).await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app").await;
    for name in ["Running now", "In the queue"] {
        shows_figure(&browser, name, "0").await;
    }
    let prediction = service.create("held", json!({})).await;
    shows_figure(&browser, "In the queue", "1").await;
    shows_figure(&browser, "Running now", "0").await;
    // The workflow's run counts as running, and its step as waiting for the model.
    let steps = json!([{"step_id": "slow", "type": "model", "model": "held", "params": {}}]);
    let flow = service.workflow(steps).await;
    let execution = service.trigger(&flow, json!({})).await;
    shows_figure(&browser, "Running now", "1").await;
    shows_figure(&browser, "In the queue", "1").await;
    browser.open(&service, "/app/health").await;
    let row = ["0", "2", "1"].map(|figure| format!("[td[@class='number'][.='{figure}']]"));
    browser.find(&format!("//tr[th[.='held']]{}", row.concat())).await;
    let cells = "return [...[...document.querySelectorAll('tbody tr')].find((row) => row.querySelector('th')?.innerText === 'held').querySelectorAll('td.number')].map((cell) => cell.innerText)";
    assert_eq!(browser.run(cells).await, json!(["0", "2", "1"]));
    // The pages of the runs show what they wait for, without the number of other organizations'
    // work.
    browser.open(&service, &format!("/app/runs/{execution}?type=workflow")).await;
    browser.see("“slow” waits for a free slot of the model held.").await;
    browser.open(&service, &format!("/app/runs/{prediction}?tab=logs")).await;
    browser.see("queued: position ").await;
    let text = browser.text().await;
    assert!(text.contains(" in lane held") && !text.contains("running"), "{text}");
    provider.release(5);
    browser.see("Succeeded").await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn live_keys_page_follows_access_of_its_member() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let path = format!("/members/{}", service.id_of(&owner, "grace@example.com").await);
    let may_manage = async |may: bool| {
        let change = service.asks(&owner, Method::PATCH, &path);
        change.json(&json!({"api_key_access": may})).send().await.expect(200);
    };
    let browser = Chromium::start().await;
    browser.before_pages(FOLLOWED).await;
    browser.becomes(&service, &member).await;
    browser.open(&service, "/app/keys").await;
    browser.see("ask the Owner for the permission").await;
    crate::support::until("stream of the page", async || {
        (browser.run("return window.following").await == 1).then_some(())
    })
    .await;
    browser.run("window.wasHere = true").await;
    // Granted: the buttons appear. The Owner deletes the member's new key: it disappears.
    may_manage(true).await;
    browser.button("Delete the key test").await;
    browser.press("Create a key").await;
    browser.fill("What is the key for?", "web shop").await;
    browser.press("Create the key").await;
    browser.press("I have copied it").await;
    browser.button("Delete the key web shop").await;
    let keys = service.asks(&owner, Method::GET, "/keys").send().await.expect(200);
    let keys = keys["keys"].as_array().unwrap();
    let shop = keys.iter().find(|one| one["name"] == "web shop").unwrap()["id"].as_str().unwrap();
    service.asks(&owner, Method::DELETE, &format!("/keys/{shop}")).send().await;
    browser.see_no_more("web shop").await;
    // Revoked while a form is open: the buttons disappear, and the form is refused.
    browser.press("Create a key").await;
    browser.fill("What is the key for?", "too late").await;
    may_manage(false).await;
    browser.see("ask the Owner for the permission").await;
    let buttons = "return [...document.querySelectorAll('main button:not(dialog *)')].map((one) => one.ariaLabel ?? one.innerText).filter((name) => /key/i.test(name))";
    assert_eq!(browser.run(buttons).await, json!([]));
    browser.press("Create the key").await;
    browser.find("//dialog//*[@role='alert']").await;
    browser.press("Cancel").await;
    assert!(!browser.text().await.contains("too late"));
    assert_eq!(browser.run("return window.wasHere").await, true);
    // When the member is removed, the page shows the log-in at its next request.
    service.asks(&owner, Method::DELETE, &path).send().await;
    browser.run("document.querySelector('nav.rail a[href=\"/app/members\"]').click()").await;
    browser.see("Please log in again").await;
    browser.fill("Password", crate::support::dashboard::PASSWORD).await;
    browser.press("Log in").await;
    browser.find("//dialog//*[@role='alert']").await;
    browser.expect_quiet_console(&["403 (Forbidden)", "401 (Unauthorized)"]).await;
    browser.leave().await;
}

/// Records the text of change streams once they have ended.
const ENDED: &str = "window.ended = []; const follow = window.fetch; \
     window.fetch = async (path, more) => { const answer = await follow(path, more); \
       if (path === '/events') answer.clone().text().then((text) => window.ended.push(text), () => null); \
       return answer; };";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn page_whose_stream_was_replaced_waits_and_follows_again() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let browser = Chromium::start().await;
    browser.before_pages(FOLLOWED).await;
    browser.before_pages(ENDED).await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/runs").await;
    browser.see("Nothing has run yet").await;
    let becomes = async |script: &str, value: serde_json::Value| {
        crate::support::until(script, async || (browser.run(script).await == value).then_some(()))
            .await;
    };
    let asked = "return window.marked.filter(([path]) => path === '/events').length";
    becomes(asked, json!(1)).await;
    let mut newer = Vec::new();
    for _ in 0..8 {
        newer.push(service.asks(&owner, Method::GET, "/events").open().await);
    }
    becomes("return window.ended.some((text) => text.includes('event: replaced'))", json!(true))
        .await;
    // No other window of this browser takes over the lock, which would replace another browser's
    // stream.
    let held = "return navigator.locks.query().then(({ held }) => held.some((lock) => lock.name === 'changes'))";
    becomes(held, json!(true)).await;
    assert_eq!(browser.run(asked).await, 1);
    service.create("text-template", json!({"template": "hello"})).await;
    // A page that becomes visible again starts to follow changes again.
    browser.run("window.see(false)").await;
    browser.run("window.see(true)").await;
    becomes(asked, json!(2)).await;
    browser.see("text-template").await;
    drop(newer);
    browser.leave().await;
}

#[tokio::test]
async fn execution_request_with_current_tag_waits_for_change() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let model = |id: &str| json!({"step_id": id, "type": "model", "model": "held", "params": {}});
    let flow = service.workflow(json!([model("one"), model("two")])).await;
    let id = service.trigger(&flow, json!({})).await;
    provider.arrived(1).await;
    let path = |timeout: u32| format!("/executions/{id}?timeout={timeout}");
    let get = async |timeout: u32, tag: &str| {
        let ask = service.flows(Method::GET, &path(timeout));
        let ask = if tag.is_empty() { ask } else { ask.header("if-none-match", tag) };
        ask.send().await
    };
    let first = get(0, "").await;
    assert_eq!(first.status, 200, "{}", first.text);
    let tag = first.header("etag").to_owned();
    let same = get(0, &tag).await;
    assert_eq!((same.status, same.text.as_str(), same.header("etag")), (304, "", tag.as_str()));
    // With a different tag, the response is immediate, regardless of the timeout.
    let other = get(30, "\"0123\"").await.expect(200);
    assert_eq!(other["status"], "running");
    let (changed, ()) = tokio::join!(get(30, &tag), async { provider.release(1) });
    let changed_tag = changed.header("etag").to_owned();
    assert_ne!(changed_tag, tag);
    let seen = changed.expect(200);
    // Both steps call the model at the same time, so the release may have freed either.
    let of = |step: &str| seen["step_outputs"][step]["status"].as_str().unwrap_or_default();
    let mut states = [of("one"), of("two")];
    states.sort_unstable();
    assert_eq!(states, ["completed", "running"], "{seen}");
    provider.arrived(2).await;
    provider.release(1);
    let end = service.completed(&id).await;
    assert_eq!(end["status"], "completed");
    // A completed execution does not change, so its responses are immediate.
    let tags: BTreeSet<String> = [tag, changed_tag].into();
    let last = get(30, "").await;
    assert!(!tags.contains(last.header("etag")));
    assert_eq!(get(30, &format!("W/{}", last.header("etag"))).await.status, 304);
}
