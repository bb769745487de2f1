//! The cost of a page: its requests and bytes until first content, its rows in the document, and
//! its activity while idle. `benches/dashboard` measures times; these tests never assert times.

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Service, until};

/// Records the requests up to the first heading, except the one for the tab's icon.
const FIRST: &str = "new MutationObserver((_, watch) => { \
      if (!document.querySelector('h1')?.innerText) return; \
      watch.disconnect(); \
      const at = performance.now(); \
      window.before = ['document', ...performance.getEntriesByType('resource').filter((one) => one.startTime <= at && !one.name.endsWith('/icon.svg')).map((one) => one.name)]; \
    }).observe(document, { childList: true, subtree: true });";

/// Sums up the transfer sizes of all requests.
const BYTES: &str = "return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]\
    .reduce((sum, one) => sum + one.encodedBodySize, 0)";

const REQUESTS_MAX: usize = 7;
const FIRST_BYTES_MAX: u64 = 60_000;
const ROWS_MAX: u64 = 60;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn first_screens_stay_within_budget() {
    let service = Service::start().await;
    let owner = service.owner().await;
    for (path, is_known) in [("/", false), ("/", true), ("/app", true)] {
        let browser = Chromium::start().await;
        if is_known {
            browser.becomes(&service, &owner).await;
        }
        browser.before_pages(FIRST).await;
        browser.open(&service, path).await;
        browser.settled().await;
        let before = browser.run("return window.before").await;
        let count = before.as_array().unwrap().len();
        assert!((2..=REQUESTS_MAX).contains(&count), "{path}: {before}");
        browser.see(if is_known { "Hello, " } else { "Log in" }).await;
        let bytes = browser.run(BYTES).await.as_u64().unwrap();
        assert!((10_000..=FIRST_BYTES_MAX).contains(&bytes), "{path}: {bytes} bytes");
        browser.leave().await;
    }
}

/// Tracks the page's activity: timers, requests, streams.
const WATCHED: &str = "window.underway = new Map(); let next = 0; \
    const begin = (what) => { const id = next += 1; underway.set(id, what); return () => underway.delete(id); }; \
    const timeout = window.setTimeout, stop = window.clearTimeout, every = window.setInterval, halt = window.clearInterval; \
    const ends = new Map(); \
    const over = (id) => { ends.get(id)?.(); ends.delete(id); }; \
    window.setTimeout = (act, ms, ...rest) => { const end = begin(`timeout ${ms}`); const id = timeout(() => { end(); act(...rest); }, ms); ends.set(id, end); return id; }; \
    window.clearTimeout = (id) => { over(id); stop(id); }; \
    window.setInterval = (...given) => { const id = every(...given); ends.set(id, begin(`interval ${given[1]}`)); return id; }; \
    window.clearInterval = (id) => { over(id); halt(id); }; \
    const ask = window.fetch; \
    window.fetch = async (...given) => { const end = begin(`fetch ${given[0]}`); try { return await ask(...given); } finally { end(); } }; \
    for (const name of ['EventSource', 'WebSocket', 'XMLHttpRequest', 'SharedWorker', 'Worker']) window[name] = class { constructor() { begin(name); } };";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn idle_page_is_inactive() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let id = service.create("text-template", json!({"template": "Hello"})).await;
    service.ended(&id).await;
    let steps = json!([{"step_id": "say", "type": "pass", "result": 1}]);
    let flow = service.workflow(steps).await;
    let execution = service.trigger(&flow, json!({})).await;
    service.completed(&execution).await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.before_pages(WATCHED).await;
    let screens = [
        "/app",
        "/app/models",
        "/app/models/text-template",
        "/app/models/text-template?tab=json",
        "/app/workflows",
        "/app/chains",
        "/app/chat",
        "/app/chat?with=agent",
        "/app/runs",
        "/app/webhooks",
        "/app/files",
        "/app/balance",
        "/app/keys",
        "/app/members",
        "/app/audit",
        "/app/health",
        "/app/account",
    ];
    let mut screens: Vec<String> = screens.map(str::to_owned).to_vec();
    screens.extend([
        format!("/app/runs/{id}"),
        format!("/app/runs/{execution}?type=workflow"),
        format!("/app/workflows/{flow}"),
        format!("/app/workflows/{flow}?tab=run"),
        format!("/app/workflows/{flow}?tab=versions"),
    ]);
    for path in &screens {
        browser.open(&service, path).await;
        browser.settled().await;
        // Wait until nothing is active: from then on, the page sends no requests unless an external
        // event occurs.
        until(path, async || {
            let left = browser.run("return [...window.underway.values()]").await;
            (left == json!([])).then_some(())
        })
        .await;
    }
    browser.leave().await;
}

/// Returns the number of rows in all tables.
const ROWS: &str = "return document.querySelectorAll('main tbody tr').length";
/// Returns the number of different history pages requested. A page may be read twice when the
/// dashboard begins to follow changes.
const PAGES: &str = "return new Set(performance.getEntriesByType('resource').map((one) => one.name).filter((name) => name.includes('/v2/executions'))).size";

const RUNS: usize = 10_000;
/// The number of concurrent creates.
const IN_FLIGHT: usize = 16;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn ten_thousand_runs_load_one_page_at_a_time() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let runs = futures_util::stream::iter(0..RUNS)
        .map(|at| service.create("text-template", json!({"template": at.to_string()})))
        .buffer_unordered(IN_FLIGHT);
    assert_eq!(runs.count().await, RUNS);
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/runs").await;
    browser.settled().await;
    browser.see("Older runs").await;
    for pages in 1..4 {
        let rows = browser.run(ROWS).await.as_u64().unwrap();
        assert!((20..=ROWS_MAX).contains(&rows), "{rows} rows");
        browser.run("scrollTo(0, document.documentElement.scrollHeight)").await;
        assert_eq!(browser.run(PAGES).await, pages, "a page is asked for when it is shown");
        let first = browser.run("return document.querySelector('tbody a').href").await;
        browser.press("Older runs").await;
        until("the next page", async || {
            let now = browser.run("return document.querySelector('tbody a')?.href ?? null").await;
            (now != first && now != Value::Null).then_some(())
        })
        .await;
    }
    browser.leave().await;
}

/// The maximum number of steps of a workflow.
const STEPS: usize = 500;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn long_timeline_draws_only_visible_rows() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let steps: Vec<Value> = (0..STEPS)
        .map(|at| match at {
            420 => json!({"step_id": format!("step-{at}"), "type": "model", "model": "text-template", "params": {"template": "{% broken"}, "continue_on_error": true}),
            _ => json!({"step_id": format!("step-{at}"), "type": "pass", "result": at}),
        })
        .collect();
    let flow = service.workflow(json!(steps)).await;
    let id = service.trigger(&flow, json!({})).await;
    service.completed(&id).await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, &format!("/app/runs/{id}?type=workflow")).await;
    // The failed step is expanded and immediately visible, although it is far down.
    let open = browser.find("//tr[contains(@class,'open')]//button").await;
    assert_eq!(open.text().await, "step-420");
    let place = "const { top, bottom } = document.querySelector('tr.open').getBoundingClientRect(); return top >= 0 && bottom <= innerHeight";
    until("the failed step in the window", async || {
        (browser.run(place).await == true).then_some(())
    })
    .await;
    let mut seen = std::collections::BTreeSet::new();
    browser.run("scrollTo(0, 0)").await;
    let names =
        "return [...document.querySelectorAll('tbody th button')].map((one) => one.innerText)";
    for _ in 0..200 {
        browser
            .client
            .execute_async(
                "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))",
                Vec::new(),
            )
            .await
            .unwrap();
        let rows = browser.run(ROWS).await.as_u64().unwrap();
        // Each group of rows outside the viewport is replaced by one empty row.
        assert!(rows <= ROWS_MAX + STEPS as u64 / 10, "{rows} rows");
        let drawn = browser
            .run("return document.querySelectorAll('main tbody tr:not(.spacer)').length")
            .await;
        assert!(drawn.as_u64().unwrap() <= ROWS_MAX, "{drawn} rows");
        for name in browser.run(names).await.as_array().unwrap() {
            seen.insert(name.as_str().unwrap().to_owned());
        }
        let at_end =
            "const before = scrollY; scrollBy(0, innerHeight * 0.8); return scrollY === before";
        if browser.run(at_end).await == true {
            break;
        }
    }
    assert_eq!(seen.len(), STEPS, "each step was in the window once");
    browser.leave().await;
}
