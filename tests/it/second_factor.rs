//! The second factor over HTTP: set-up, log-in, the configuration that requires one, and what the
//! operator can do; and the list of a member's sessions.

use hyper::Method;
use orrery_domain::time::Timestamp;
use orrery_records::members::code_at;
use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::dashboard::{PASSWORD, Person, cookie_of};
use crate::support::{Answer, Service};

/// Returns the code that an authenticator app shows, or will show after `steps` steps.
fn code(begun: &Value, steps: i64) -> String {
    let now = orrery_runtime::Clock::system().now();
    let moment = Timestamp::from_micros(now.micros() + steps * 30_000_000);
    code_at(begun["secret"].as_str().unwrap(), moment).unwrap()
}

async fn enrolled(service: &Service, person: &Person) -> Value {
    let begun = service.asks(person, Method::POST, "/session/totp").send().await.expect(200);
    let confirm = service.asks(person, Method::POST, "/session/totp/confirm");
    let confirm = confirm.json(&json!({"code": code(&begun, 0)})).send().await;
    assert_eq!(confirm.status, 204, "{}", confirm.text);
    begun
}

async fn logs_in(service: &Service, email: &str, code: &str) -> Answer {
    let body = json!({"email": email, "password": PASSWORD, "code": code});
    service.page_asks(Method::POST, "/session").json(&body).send().await
}

#[tokio::test]
async fn second_factor_is_set_up_asked_for_and_removed() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let confirm = async |code: &str| {
        let confirm = service.asks(&owner, Method::POST, "/session/totp/confirm");
        confirm.json(&json!({"code": code})).send().await
    };
    confirm("123456").await.expect_error(409, "no second factor is set up");
    let begun = service.asks(&owner, Method::POST, "/session/totp").send().await.expect(200);
    assert_eq!(begun["recovery_codes"].as_array().unwrap().len(), 10);
    let url = begun["url"].as_str().unwrap();
    let starts = "otpauth://totp/Orrery:owner%40example%2Ecom?secret=";
    assert!(url.starts_with(starts), "{url}");
    assert!(begun["qr_code"].as_str().unwrap().starts_with("data:image/svg+xml;base64,"));
    confirm("12345x").await.expect(422);
    // Until it is confirmed, the password alone is enough.
    assert_eq!(service.logs_in(&owner.email, PASSWORD).await.status, 204);
    assert_eq!(confirm(&code(&begun, 0)).await.status, 204);
    assert_eq!(service.session_of(&owner).await["member"]["second_factor"], true);
    let asked = service.logs_in(&owner.email, PASSWORD).await;
    let said = asked.expect(401);
    assert_eq!(said["error"], "enter the code of your authenticator app");
    assert_eq!(said["details"], json!({"code": "required"}));
    assert_eq!(asked.header("set-cookie"), "");
    let used = logs_in(&service, &owner.email, &code(&begun, 0)).await;
    assert_eq!(used.expect(401)["details"], json!({"code": "wrong"}));
    assert_eq!(logs_in(&service, &owner.email, &code(&begun, 1)).await.status, 204);
    let recovery = begun["recovery_codes"][0].as_str().unwrap();
    assert_eq!(logs_in(&service, &owner.email, recovery).await.status, 204);
    // A wrong password is not told apart by the code.
    let body = json!({"email": owner.email, "password": "wrong horse battery", "code": recovery});
    let wrong = service.page_asks(Method::POST, "/session").json(&body).send().await;
    assert_eq!(wrong.expect(401)["details"], Value::Null);
    let remove = async |password: &str| {
        let remove = service.asks(&owner, Method::DELETE, "/session/totp");
        remove.json(&json!({"password": password})).send().await
    };
    remove("wrong horse battery").await.expect_error(422, "the password is wrong");
    assert_eq!(remove(PASSWORD).await.status, 204);
    assert_eq!(service.logs_in(&owner.email, PASSWORD).await.status, 204);
    let audit = service.asks(&owner, Method::GET, "/audit").send().await.expect(200).to_string();
    for action in ["begin", "enable", "recovery", "disable"] {
        assert!(audit.contains(&format!("member.totp.{action}")), "{action}: {audit}");
    }
    let stored = begun["secret"].as_str().unwrap();
    assert!(!audit.contains(stored) && !audit.contains(recovery));
}

#[tokio::test]
async fn second_factor_is_required_by_configuration_and_reset_by_operator() {
    let service = Service::configured("dashboard.require_second_factor = true\n").await;
    let owner = service.owner().await;
    let asks = async |path: &str| service.asks(&owner, Method::GET, path).send().await;
    let message = "this service requires a second factor: set it up on the page Your account";
    for path in ["/members", "/keys", "/api/base/v2/executions", "/invitations", "/events"] {
        asks(path).await.expect_error(403, message);
    }
    let session = asks("/session").await.expect(200);
    assert_eq!(session["needs_second_factor"], true);
    asks("/sessions").await.expect(200);
    enrolled(&service, &owner).await;
    asks("/members").await.expect(200);
    assert_eq!(service.session_of(&owner).await["needs_second_factor"], Value::Null);
    // The operator's reset takes effect in open sessions, too.
    let members = &service.running.services.members;
    let id = service.id_of(&owner, &owner.email).await.parse().unwrap();
    members.clear_second_factor(service.organization.id, id).await.unwrap();
    asks("/members").await.expect_error(403, message);
}

#[tokio::test]
async fn sessions_are_listed_and_ended() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let body = json!({"email": owner.email, "password": PASSWORD});
    let other = service.page_asks(Method::POST, "/session").header("user-agent", "Firefox/140");
    let other = other.json(&body).send().await;
    let other = Person { cookie: cookie_of(other.header("set-cookie")), ..owner.clone() };
    let listed = service.asks(&owner, Method::GET, "/sessions").send().await.expect(200);
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    let found = sessions.iter().find(|one| one["device"] == "Firefox/140").unwrap();
    assert_eq!((&found["current"], found["address"].is_string()), (&json!(false), true));
    let path = format!("/sessions/{}", found["id"].as_str().unwrap());
    // Nobody ends another person's session.
    service.asks(&member, Method::DELETE, &path).send().await.expect(404);
    service.asks(&other, Method::GET, "/members").send().await.expect(200);
    assert_eq!(service.asks(&owner, Method::DELETE, &path).send().await.status, 204);
    service.asks(&other, Method::GET, "/members").send().await.expect(401);
    let third = service.logs_in(&owner.email, PASSWORD).await;
    let third = Person { cookie: cookie_of(third.header("set-cookie")), ..owner.clone() };
    assert_eq!(service.asks(&owner, Method::DELETE, "/sessions").send().await.status, 204);
    service.asks(&third, Method::GET, "/members").send().await.expect(401);
    service.asks(&owner, Method::GET, "/members").send().await.expect(200);
    service.asks(&member, Method::GET, "/members").send().await.expect(200);
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn second_factor_is_set_up_and_used_in_the_page() {
    let service = Service::configured("dashboard.require_second_factor = true\n").await;
    let owner = service.owner().await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &owner).await;
    browser.open(&service, "/app/models").await;
    browser.see("This service requires a second factor").await;
    browser.press("Set up a second factor").await;
    let secret = browser.find("//input[@aria-label='The secret']").await.value().await;
    let begun = json!({"secret": secret});
    let codes = "return document.querySelector('ul.codes').innerText.split('\\n').length";
    assert_eq!(browser.run(codes).await, 10);
    let width = "return document.querySelector('img.qr').naturalWidth > 100";
    assert_eq!(browser.run(width).await, true);
    for is_dark in [false, true] {
        browser.looks(1280, is_dark).await;
        browser.picture(if is_dark { "second-factor-dark" } else { "second-factor" }).await;
    }
    browser.fill("3. The code that the app shows", &code(&begun, 0)).await;
    browser.press("Turn it on").await;
    browser.see("Everything that this machine can run").await;
    browser.open(&service, "/app/account").await;
    browser.see("On: when you log in").await;
    browser.see("Where you are logged in").await;
    browser.is_nobody().await;
    browser.open(&service, "/").await;
    browser.fill("Email", &owner.email).await;
    browser.fill("Password", PASSWORD).await;
    browser.press("Log in").await;
    browser.see("From your authenticator app").await;
    browser.picture("code").await;
    browser.fill("Code", "000000").await;
    browser.press("Log in").await;
    browser.see("The code is wrong").await;
    browser.fill("Code", &code(&begun, 1)).await;
    browser.press("Log in").await;
    browser.see("Running now").await;
    browser.expect_quiet_console(&["/session - Failed to load resource"]).await;
    browser.leave().await;
}
