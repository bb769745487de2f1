//! Named secrets in a browser: a member adds one, sets a new value and deletes it, and no page ever
//! shows a value.

use crate::support::Service;
use crate::support::chromium::Chromium;

const FIRST: &str = "correct-horse-battery";
const SECOND: &str = "another-horse-battery";

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn secret_screens_set_replace_and_delete_without_showing_a_value() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let secrets = service.running.services.secrets.clone();
    let stored = async || {
        let names = ["vault".to_owned()];
        let values = secrets.values(service.organization.id, &names).await.unwrap();
        values.get("vault").map(str::to_owned)
    };
    let browser = Chromium::start().await;
    browser.becomes(&service, &member).await;
    browser.open(&service, "/app/secrets").await;
    browser.see("No secrets yet").await;
    browser.is_accessible("secrets").await;
    browser.press("Add a secret").await;
    browser.fill("Name", "vault").await;
    browser.fill("Value", FIRST).await;
    browser.is_accessible("a new secret").await;
    browser.press("Add the secret").await;
    browser.see("{{secrets.vault}}").await;
    assert_eq!(stored().await.as_deref(), Some(FIRST));
    browser.find("//button[@aria-label='Set a new value of vault']").await.click().await;
    browser.fill("Value", SECOND).await;
    browser.press("Set the value").await;
    browser.see_no_more("A new value of vault").await;
    assert_eq!(stored().await.as_deref(), Some(SECOND));
    let html = browser.run("return document.documentElement.outerHTML").await.to_string();
    assert!(!html.contains(FIRST) && !html.contains(SECOND), "{html}");
    browser.picture("secrets").await;
    browser.is_accessible("secrets with one").await;
    browser.find("//button[@aria-label='Delete the secret vault']").await.click().await;
    browser.press("Delete the secret").await;
    browser.see("No secrets yet").await;
    assert_eq!(stored().await, None);
    browser.leave().await;
}
