//! Table cells at every width: no word is broken, and nothing scrolls horizontally.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Receiver, Service, until};

/// Lists words broken over several lines, and elements wider than the window.
const BROKEN: &str = r"
    const found = [];
    for (const cell of document.querySelectorAll('main td, main dd, main dt, main th')) {
      const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      for (let node; (node = walker.nextNode());) {
        for (const { 0: word, index } of node.data.matchAll(/[^\s\/@?&,-]+/g)) {
          const range = document.createRange();
          range.setStart(node, index);
          range.setEnd(node, index + word.length);
          const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
          // Very long single words may be broken.
          if (lines.size > 1 && word.length <= 20) found.push(word);
        }
      }
    }
    // Dates have one format, and no time is shown in machine format.
    const copy = document.querySelector('main').cloneNode(true);
    for (const one of copy.querySelectorAll('pre, td, dd, p')) if (one.matches('pre')) one.remove(); else one.append(' ');
    const text = copy.textContent;
    found.push(...(text.match(/\b\d{1,2}\/\d{1,2}\/\d{4}\b|\b[AP]M\b|\d{4}-\d\d-\d\dT\S*|(?<![\d:])24:\d\d/g) ?? []));
    const whole = /^[A-Z][a-z]{2} \d{1,2}, \d{4}, [012]\d:\d\d:\d\d$/;
    for (const one of document.querySelectorAll('main time[title]')) if (!whole.test(one.title)) found.push(one.title);
    // Nothing overflows a card.
    for (const card of document.querySelectorAll('.card.scroll')) if (card.scrollWidth > card.clientWidth) found.push(`card: ${card.scrollWidth} px in ${card.clientWidth} px`);
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth > clientWidth) found.push(`${scrollWidth} px in ${clientWidth} px`);
    return found;";

/// Lists elements that can be reached with the keyboard but have no name or no focus indicator, or
/// are out of order.
const FOCUSED: &str = r"
    const found = [];
    const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')]
      .filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility() && !one.matches('h1'));
    for (const one of all) {
      const name = one.ariaLabel || one.title || one.innerText?.trim() || [...(one.labels ?? [])].map((label) => label.innerText).join('') || document.getElementById(one.getAttribute('aria-labelledby'))?.innerText;
      if (!name) found.push(`no name: ${one.outerHTML.slice(0, 120)}`);
      if (one.tabIndex > 0) found.push(`tabindex: ${name}`);
      one.focus({ focusVisible: true });
      const { outlineStyle, outlineWidth } = getComputedStyle(one);
      if (document.activeElement !== one || outlineStyle === 'none' || parseFloat(outlineWidth) < 1) found.push(`no sign of the focus: ${name}`);
    }
    document.activeElement.blur();
    return found;";

const SCREENS: [&str; 14] = [
    "/app",
    "/app/models",
    "/app/workflows",
    "/app/chains",
    "/app/runs",
    "/app/webhooks",
    "/app/files",
    "/app/balance",
    "/app/keys",
    "/app/secrets",
    "/app/members",
    "/app/audit",
    "/app/health",
    "/app/account",
];

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn cell_screens_break_no_word_at_any_width() {
    let lines = "billing.enabled = true\nwebhooks.schedule = ['1ms', '1h']\n";
    let service = Service::configured(lines).await;
    let mut receiver = Receiver::answering([500; 4]).await;
    let owner = service.owner().await;
    service.member(&owner, "maria.schneider@firma-beispiel.de").await;
    let long = "a.person.with.many.names@a.subsidiary.of.the.company.example.com";
    service.member(&owner, long).await;
    let fields = json!({"input": {"template": "x"}, "webhook_url": receiver.url()});
    let run = service.create_with("text-template", fields).await;
    receiver.next().await;
    service.create("text-template", json!({"template": "{% broken"})).await;
    let steps = json!([{"step_id": "say", "type": "model", "model": "text-template", "params": {"template": "{% broken"}}]);
    let flow = service.workflow(steps).await;
    let execution = service.trigger(&flow, json!({})).await;
    service.completed(&execution).await;
    let text = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"scan of the long offer from last november.png\"\r\ncontent-type: image/png\r\n\r\nhello\r\n--b--\r\n";
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(text);
    upload.send().await.expect(201);
    let chain =
        json!({"model": "text-language", "name": "safe", "entries": [{"model": "text-sentiment"}]});
    service.asks(&owner, Method::POST, "/chains").json(&chain).send().await.expect(201);
    for name in ["the web shop of the subsidiary", "reportingserviceofthecompanyinberlin"] {
        let key = json!({"name": name, "expires_in_days": 30});
        service.asks(&owner, Method::POST, "/keys").json(&key).send().await.expect(201);
    }
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    let mut screens: Vec<String> = SCREENS.map(str::to_owned).to_vec();
    screens.extend([
        format!("/app/runs/{execution}?type=workflow"),
        format!("/app/webhooks/{run}"),
        format!("/app/workflows/{flow}?tab=versions"),
    ]);
    let mut wrong = Vec::new();
    for path in &screens {
        browser.open(&service, path).await;
        browser.settled().await;
        let found = browser.run(FOCUSED).await;
        if found != Value::Array(Vec::new()) {
            wrong.push(format!("{path}: {found}"));
        }
        for width in [1440, 1280, 1101, 1024, 900, 768, 390] {
            browser.looks(width, width == 1280).await;
            let size = format!("return innerWidth === {width}");
            until("width", async || (browser.run(&size).await == true).then_some(())).await;
            let name = path.trim_start_matches("/app").split(['/', '?']).nth(1).unwrap_or("home");
            browser.picture(&format!("cells-{name}-{width}-{}", wrong.len())).await;
            let found = browser.run(BROKEN).await;
            if found != Value::Array(Vec::new()) {
                wrong.push(format!("{path} at {width} px: {found}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    browser.leave().await;
}
