//! Log-in through an OpenID provider: with a stub that a test can make misbehave, and with the
//! conforming provider `oidc-provider`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use hyper::Method;
use orrery_api::Role;
use orrery_records::audit::Filter;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::support::chromium::Chromium;
use crate::support::dashboard::{PASSWORD, Person, cookie_of};
use crate::support::{Answer, IdentityProvider, Service, within};

async fn service(issuer: &str) -> Service {
    let lines = format!(
        "[dashboard.oidc]\nissuer = '{issuer}'\nclient_id = 'orrery'\nclient_secret = 'a secret/'\n\
         button = 'Log in with Example'\n\
         map = {{ 'staff' = {{ organization = 'default', role = 'operator' }}, \
         'admins' = {{ organization = 'default', role = 'editor' }}, \
         'lost' = {{ organization = 'nowhere', role = 'editor' }} }}\n"
    );
    Service::configured(&lines).await
}

/// Returns the cookies that an answer sets, as name and value.
fn cookies(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all("set-cookie").iter();
    all.map(|cookie| cookie_of(cookie.to_str().unwrap())).collect()
}

/// Begins a log-in; returns the address of the provider and the cookie.
async fn begin(service: &Service) -> (String, String) {
    let begun = service.ask(Role::Dashboard, Method::GET, "/session/oidc").send().await;
    assert_eq!(begun.status, 303, "{}", begun.text);
    let cookie = begun.header("set-cookie");
    assert!(cookie.contains("; HttpOnly; SameSite=Lax; Max-Age=600"), "{cookie}");
    (begun.header("location").to_owned(), cookie_of(cookie))
}

/// Comes back from the provider, as a browser does: from another site. The answer's location is a
/// path of the dashboard, which may lie below a path of its own.
async fn back(service: &Service, path: &str, cookie: &str) -> Answer {
    let place = url::Url::parse(&service.config.hosts.dashboard.public_url).unwrap();
    let place = place.path().trim_end_matches('/');
    let path = path.strip_prefix(place).unwrap_or(path);
    let ask = service.ask(Role::Dashboard, Method::GET, path);
    let ask = ask.header("sec-fetch-site", "cross-site").header("cookie", cookie);
    let mut answer = ask.send().await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    let location = answer.header("location").strip_prefix(place).unwrap().parse().unwrap();
    answer.headers.insert("location", location);
    answer
}

/// Logs in; returns the person, or the word for the failure.
async fn log_in(service: &Service, provider: &IdentityProvider) -> Result<Person, String> {
    let (url, cookie) = begin(service).await;
    outcome(&back(service, &provider.authorize(&url), &cookie).await)
}

fn outcome(answer: &Answer) -> Result<Person, String> {
    let cookies = cookies(answer);
    assert!(cookies.iter().any(|cookie| cookie.contains("oidc") && cookie.ends_with('=')));
    let session = cookies.into_iter().find(|cookie| cookie.contains("session"));
    match answer.header("location") {
        "/app" => Ok(Person { cookie: session.unwrap(), email: "ada@example.com".to_owned() }),
        other => {
            assert_eq!(session, None);
            Err(other.strip_prefix("/?sso=").unwrap().to_owned())
        }
    }
}

#[tokio::test]
async fn oidc_creates_member_and_groups_decide() {
    let provider = IdentityProvider::start().await;
    let service = service(&provider.issuer()).await;
    let owner = service.owner().await;
    let nobody = service.page_asks(Method::GET, "/session").send().await.expect(200);
    assert_eq!(nobody["sign_on"], "Log in with Example");
    let ada = log_in(&service, &provider).await.unwrap();
    let member = service.session_of(&ada).await["member"].clone();
    assert_eq!(
        (&member["role"], &member["name"], &member["email"], &member["external"]),
        (&json!("operator"), &json!("Ada"), &json!("ada@example.com"), &json!(true))
    );
    // The groups decide, not the Owner, and there is no password to reset or to protect.
    let path = format!("/members/{}", member["id"].as_str().unwrap());
    let role = service.asks(&owner, Method::PATCH, &path).json(&json!({"role": "editor"}));
    role.send().await.expect(409);
    service.asks(&owner, Method::POST, &format!("{path}/reset")).send().await.expect(409);
    service.asks(&ada, Method::POST, "/session/totp").send().await.expect(409);
    service.logs_in("ada@example.com", PASSWORD).await.expect(401);
    // The highest role of several groups holds; the address at the provider may change.
    provider.change(|said| {
        said.claims = json!({"groups": ["other", "staff", "admins"], "email": "a@example.com"});
    });
    let again = log_in(&service, &provider).await.unwrap();
    let now = service.session_of(&again).await["member"].clone();
    assert_eq!((&now["id"], &now["role"]), (&member["id"], &json!("editor")));
    assert_eq!(service.session_of(&ada).await["member"]["role"], "editor");
    // Without a mapped group, nobody gets in, and earlier sessions end.
    provider.change(|said| said.claims = json!({"groups": ["other"]}));
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "groups");
    service.asks(&ada, Method::GET, "/members").send().await.expect(401);
    let all = service.asks(&owner, Method::GET, "/members").send().await.expect(200);
    assert_eq!(all["members"].as_array().unwrap().len(), 2);
    // After a removal, the person can come back as a new member.
    assert_eq!(service.asks(&owner, Method::DELETE, &path).send().await.status, 204);
    provider.change(|said| said.claims = json!({"groups": "staff"}));
    let anew = log_in(&service, &provider).await.unwrap();
    assert_ne!(service.session_of(&anew).await["member"]["id"], member["id"]);
}

#[tokio::test]
async fn oidc_reads_missing_claims_from_user_info() {
    let provider = IdentityProvider::start().await;
    let service = service(&provider.issuer()).await;
    provider.change(|said| {
        said.claims = json!({"groups": null, "email": null});
        said.info = json!({"sub": "ada", "email": "ada@example.com", "groups": ["staff"]});
    });
    log_in(&service, &provider).await.unwrap();
    provider.change(|said| said.info["sub"] = json!("eve"));
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "token");
}

#[tokio::test]
async fn oidc_never_takes_over_another_member() {
    let provider = IdentityProvider::start().await;
    let service = service(&provider.issuer()).await;
    let owner = service.owner().await;
    service.member(&owner, "ADA@example.com").await;
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "taken");
    provider.change(|said| {
        said.claims = json!({"email": "eve@example.com", "email_verified": false, "sub": "eve"});
    });
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "email");
    provider.change(|said| said.claims = json!({"groups": ["lost"], "sub": "eve"}));
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "failed");
}

#[tokio::test]
async fn oidc_log_in_is_bound_to_its_browser_and_used_once() {
    let provider = IdentityProvider::start().await;
    let service = service(&provider.issuer()).await;
    let (url, cookie) = begin(&service).await;
    let path = provider.authorize(&url);
    let refused =
        async |path: &str, cookie: &str| outcome(&back(&service, path, cookie).await).unwrap_err();
    // Another browser, and another log-in of this browser.
    let (_, other) = begin(&service).await;
    for cookie in ["a=b", &other] {
        assert_eq!(refused(&path, cookie).await, "expired");
    }
    assert_eq!(provider.change(|said| said.redeemed), 0);
    outcome(&back(&service, &path, &cookie).await).unwrap();
    assert_eq!(refused(&path, &cookie).await, "expired");
    assert_eq!(provider.change(|said| said.redeemed), 1);
    // The code alone opens nothing either: the provider knows that it was used.
    let (url, cookie) = begin(&service).await;
    let state = provider.authorize(&url).split_once("state=").unwrap().1.to_owned();
    let code = path.split_once("code=").unwrap().1.split_once('&').unwrap().0;
    let replayed = format!("/session/oidc/callback?code={code}&state={state}");
    assert_eq!(refused(&replayed, &cookie).await, "provider");
}

#[tokio::test]
async fn oidc_refuses_bad_answers() {
    let provider = IdentityProvider::start().await;
    let service = service(&provider.issuer()).await;
    let (url, cookie) = begin(&service).await;
    let state = provider.authorize(&url).split_once("state=").unwrap().1.to_owned();
    let denied = format!("/session/oidc/callback?error=access_denied&state={state}");
    assert_eq!(outcome(&back(&service, &denied, &cookie).await).unwrap_err(), "denied");
    for change in [json!({"nonce": "another"}), json!({"aud": "another"}), json!({"exp": 1})] {
        provider.change(|said| said.claims = change.clone());
        assert_eq!(log_in(&service, &provider).await.unwrap_err(), "token", "{change}");
    }
    provider.change(|said| {
        (said.claims, said.header) = (json!({}), json!({"alg": "none", "kid": "one"}));
    });
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "token");
    // Failures count like wrong passwords.
    provider.change(|said| said.header = json!({"alg": "EdDSA", "kid": "one"}));
    assert_eq!(log_in(&service, &provider).await.unwrap_err(), "throttled");
    let audit = service.running.services.audit.list(&Filter::default(), 10).await.unwrap();
    assert!(audit.iter().all(|entry| entry.action != "session.create"), "{audit:?}");
}

#[tokio::test]
async fn oidc_is_absent_without_configuration() {
    let service = Service::start().await;
    for path in ["/session/oidc", "/session/oidc/callback?code=c&state=s"] {
        let answer = service.page_asks(Method::GET, path).send().await;
        answer.expect_error(404, "no identity provider is configured");
    }
    let session = service.page_asks(Method::GET, "/session").send().await.expect(200);
    assert_eq!(session["sign_on"], Value::Null);
}

/// Returns the folder with `oidc-provider`, which it installs from npm if necessary.
fn packages() -> PathBuf {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oidc");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oidc");
    let done = place.join("done.json");
    let lock = std::fs::read(wanted.join("package-lock.json")).unwrap();
    if std::fs::read(&done).is_ok_and(|there| there == lock) {
        return place;
    }
    std::fs::create_dir_all(&place).unwrap();
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(wanted.join(file), place.join(file)).unwrap();
    }
    let mut npm = std::process::Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-fund", "--no-audit"]).current_dir(&place);
    let output = npm.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "oidc-provider cannot be installed with npm: {said}");
    std::fs::write(done, lock).unwrap();
    place
}

#[tokio::test]
#[ignore = "needs nodejs and npm: run tests/run"]
async fn oidc_works_with_a_conforming_provider() {
    let packages = tokio::task::spawn_blocking(packages).await.unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oidc/provider.mjs");
    let mut node = tokio::process::Command::new("node");
    node.arg(file).arg(packages).kill_on_drop(true);
    node.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = node.spawn().unwrap();
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    let issuer = within("issuer", lines.next_line()).await.unwrap().unwrap();
    let service = service(&issuer).await;
    service.owner().await;
    let url = format!("{}\n", service.url(Role::Dashboard));
    node.stdin.take().unwrap().write_all(url.as_bytes()).await.unwrap();
    let status = within("end of the log-ins", node.wait()).await.unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn oidc_button_and_failure_are_shown() {
    let provider = IdentityProvider::start().await;
    let service = service(&provider.issuer()).await;
    service.owner().await;
    let browser = Chromium::start().await;
    browser.open(&service, "/?sso=groups").await;
    browser.see("None of your groups gives you access").await;
    browser.see("Log in with Example").await;
    let link = browser.find("//a[contains(., 'Log in with Example')]").await;
    assert_eq!(link.text().await, "Log in with Example");
    for is_dark in [false, true] {
        browser.looks(1280, is_dark).await;
        browser.picture(if is_dark { "sso-dark" } else { "sso" }).await;
    }
    browser.leave().await;
}
