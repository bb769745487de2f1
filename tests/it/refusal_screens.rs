//! The message that each screen shows while the service is unreachable, busy or failing, or rejects
//! a large upload.

use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Service, until};

/// While set, replaces the service's responses.
const ANSWERS: &str = "const ask = window.fetch; \
     window.fetch = (path, more = {}) => { \
       const set = JSON.parse(sessionStorage.getItem('answers') ?? 'null'); \
       if (!set || String(path).startsWith('/session') || path === '/events') return ask(path, more); \
       if (!set.status) return Promise.reject(new TypeError('Failed to fetch')); \
       return Promise.resolve(new Response(set.body, { status: set.status, headers: set.headers ?? {} })); };";

/// Every screen that loads data when it opens.
const SCREENS: [&str; 17] = [
    "/app",
    "/app/models",
    "/app/models/text-template",
    "/app/workflows",
    "/app/workflows/any",
    "/app/chains",
    "/app/chat",
    "/app/runs",
    "/app/runs/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
    "/app/webhooks",
    "/app/webhooks/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
    "/app/files",
    "/app/balance",
    "/app/keys",
    "/app/secrets",
    "/app/members",
    "/app/audit",
];

/// Returns pairs of the service's response and the message shown.
fn cases() -> [(Value, &'static str); 5] {
    let error = |text: &str| json!({"error": text}).to_string();
    [
        (json!({"status": 0}), "The service does not answer. Check that it is running"),
        (
            json!({"status": 429, "body": error("too many requests: try again after Retry-After seconds"), "headers": {"retry-after": "7"}}),
            "Too many requests. Try again in 7.0 s.",
        ),
        (
            json!({"status": 503, "body": error("the service is starting; try again later")}),
            "The service is starting. Try again in a moment.",
        ),
        (
            json!({"status": 502, "body": "<html><h1>Bad Gateway</h1></html>"}),
            "The service answered 502. Try again in a moment.",
        ),
        (
            json!({"status": 500, "body": error("internal error")}),
            "Internal error. Try again. If it fails again, ask the person who runs this machine",
        ),
    ]
}

async fn answers(browser: &Chromium, with: &Value) {
    let set = serde_json::to_string(&with.to_string()).unwrap();
    browser.run(&format!("sessionStorage.setItem('answers', {set})")).await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn refusal_screens_show_problem_and_advice() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let browser = Chromium::start().await;
    browser.before_pages(ANSWERS).await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/account").await;
    let mut wrong = Vec::new();
    for (at, (answer, said)) in cases().iter().enumerate() {
        answers(&browser, answer).await;
        // The first case opens all screens, each other case a subset.
        for (_, path) in SCREENS.iter().enumerate().filter(|(of, _)| at == 0 || of % 4 == at - 1) {
            browser.open(&service, path).await;
            browser.settled().await;
            let text = until("a sentence", async || {
                let text = browser
                    .run("return document.querySelector('main [role=alert]')?.innerText")
                    .await;
                text.as_str().map(str::to_owned)
            })
            .await;
            if !text.contains(said) || text.contains("Retry-After") || text.contains('<') {
                wrong.push(format!("{path}: {text}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    // Once the service responds again, pressing the button is enough.
    browser.open(&service, "/app/secrets").await;
    browser.button("Try again").await;
    browser.run("sessionStorage.removeItem('answers')").await;
    browser.press("Try again").await;
    browser.see("No secrets yet").await;
    // Content that is too large or does not exist.
    let body = json!({"error": "the body has more than 8388608 bytes"}).to_string();
    browser.open(&service, "/app/models/text-template").await;
    browser.fill("Template", "x").await;
    answers(&browser, &json!({"status": 413, "body": body})).await;
    browser.press("Run").await;
    browser.see("The body has more than 8388608 bytes. Make it smaller, or ask the person").await;
    browser.run("sessionStorage.removeItem('answers')").await;
    browser.open(&service, "/app/runs/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e").await;
    browser.press("Go to the list").await;
    browser.see("Nothing has run yet").await;
    browser.expect_quiet_console(&["404 (Not Found)"]).await;
    browser.leave().await;
}
