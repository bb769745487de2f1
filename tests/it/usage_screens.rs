//! Usage in a browser: the month's budget, the table by key and month with its download, and a
//! key's spending by day in the dialog with its limits.

use orrery_domain::account::Limits;
use orrery_domain::key_policy::KeyPolicy;
use orrery_domain::money::Usd;
use serde_json::json;

use crate::chat::request;
use crate::support::chromium::Chromium;
use crate::support::{Service, Upstream};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 0.0, \
                     per_million_output_tokens = 1000.0 }]\n";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn usage_screens_show_keys_months_and_days() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let owner = service.owner().await;
    let viewer = service.member(&owner, "grace@example.com").await;
    let accounts = &service.running.services.accounts;
    let id = service.organization.id;
    let policy = KeyPolicy::default();
    let made = accounts.create_key_with(id, "web shop", "test", None, policy).await.unwrap();
    let budget = |held| Limits { monthly_budget: Some(Usd::from_micros(2_000_000)), ..held };
    accounts.change_limits(id, budget).await.unwrap();
    for _ in 0..2 {
        up.says("hello", 3, 250);
        let ask = service.ask(orrery_api::Role::Base, hyper::Method::POST, "/v1/chat/completions");
        let mut body = request("far");
        body["max_tokens"] = json!(300);
        ask.key(&made.1).json(&body).send().await.expect(200);
    }
    let browser = Chromium::start().await;
    browser.becomes(&service, &viewer).await;
    browser.open(&service, "/app/balance").await;
    browser.see("$0.50 of $2.00").await;
    browser.find("//section[h2='Usage by key and month']//tr[th[.='web shop']]").await;
    let cells = "return [...document.querySelectorAll('main tr')].find((row) => row.cells[0].innerText === 'web shop').innerText.split('\\t').slice(2).map((cell) => cell.trim())";
    assert_eq!(browser.run(cells).await, json!(["2", "6", "500", "$0.50"]));
    browser.is_accessible("usage").await;
    let csv = "const link = [...document.querySelectorAll('main a')].find((one) => one.innerText.includes('usage as CSV')); const request = new XMLHttpRequest(); request.open('GET', link.href, false); request.send(); return request.responseText";
    let csv = browser.run(csv).await;
    let csv = csv.as_str().unwrap();
    let key = made.0.id;
    assert!(csv.starts_with("month,key_id,key,requests,"), "{csv}");
    assert!(csv.contains(&format!(",{key},\"web shop\",2,6,500,0.500000\r\n")), "{csv}");

    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/keys").await;
    browser.find("//button[@aria-label='Change the limits of web shop']").await.click().await;
    browser.see("In the last 30 days: $0.50 for 2 requests.").await;
    let columns = browser.run("return document.querySelectorAll('dialog .column').length").await;
    assert_eq!(columns, 30);
    browser.is_accessible("the limits of a key with usage").await;
    browser.leave().await;
}
