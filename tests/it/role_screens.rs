//! Which roles see each button and may use it: every screen and every route of the dashboard, as
//! the Owner, as a member with "API key access", as a member without it, and logged out. Also that
//! the page does not store the text of a new key anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use hyper::Method;
use orrery_api::{Access, MOUNTED, Needs, ROUTES};
use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::dashboard::Person;
use crate::support::{Process, Receiver, Service};

/// Restricted buttons, by screen and the beginning of their name, with who has them: the Owner, a
/// member with the permission, and a member without it.
const RESTRICTED: [(&str, &str, [bool; 3]); 15] = [
    ("/app/keys", "Create a key", [true, true, false]),
    ("/app/keys", "Delete the key test", [true, true, false]),
    ("/app/keys", "Change the limits of test", [true, true, false]),
    ("/app/keys", "Rotate the key test", [true, true, false]),
    ("/app/keys", "Block the key test", [true, true, false]),
    ("/app/members", "Invite a person", [true, false, false]),
    ("/app/members", "Withdraw", [true, false, false]),
    ("/app/members", "Role of manager@example.com", [true, false, false]),
    ("/app/members", "Role of member@example.com", [true, false, false]),
    ("/app/members", "API key access of manager@example.com", [true, false, false]),
    ("/app/members", "API key access of member@example.com", [true, false, false]),
    ("/app/members", "Create a password reset link for manager@example.com", [true, false, false]),
    ("/app/members", "Create a password reset link for member@example.com", [true, false, false]),
    ("/app/members", "Remove manager@example.com", [true, false, false]),
    ("/app/members", "Remove member@example.com", [true, false, false]),
];

/// Returns the names of all controls of the page outside the navigation.
const PRESSED: &str = "return [...document.querySelectorAll('main button, main a[href], main input, main select, main textarea, main summary')]\
    .filter((one) => one.checkVisibility())\
    .map((one) => one.ariaLabel || (one.labels?.[0]?.innerText ?? one.innerText).trim().split('\\n')[0] || one.name || one.type)";

/// An organization with three people and one resource of each kind.
pub(crate) struct Populated {
    pub service: Service,
    pub people: [Person; 3],
    pub screens: Vec<String>,
}

pub(crate) async fn populated() -> Populated {
    let service = Service::configured("webhooks.schedule = ['1ms']\n").await;
    let mut receiver = Receiver::answering([500]).await;
    let owner = service.owner().await;
    let manager = service.member(&owner, "manager@example.com").await;
    let member = service.member(&owner, "member@example.com").await;
    let id = service.id_of(&owner, "manager@example.com").await;
    let allow = service.asks(&owner, Method::PATCH, &format!("/members/{id}"));
    allow.json(&json!({"api_key_access": true})).send().await.expect(200);
    let invite = service.asks(&owner, Method::POST, "/invitations").json(&json!({}));
    invite.send().await.expect(201);
    let fields = json!({"input": {"template": "Hello"}, "webhook_url": receiver.url()});
    let run = service.create_with("text-template", fields).await;
    service.ended(&run).await;
    receiver.next().await;
    let steps = json!([{"step_id": "say", "type": "model", "model": "text-template", "params": {"template": "{% broken"}}]);
    let flow = service.workflow(steps).await;
    let execution = service.trigger(&flow, json!({})).await;
    service.completed(&execution).await;
    let chain =
        json!({"model": "text-language", "name": "safe", "entries": [{"model": "text-sentiment"}]});
    service.asks(&owner, Method::POST, "/chains").json(&chain).send().await.expect(201);
    let screens = [
        "/app",
        "/app/models",
        "/app/models/text-template",
        "/app/models/text-template?tab=json",
        "/app/models/text-template?tab=code",
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
        format!("/app/runs/{run}"),
        format!("/app/runs/{execution}?type=workflow"),
        format!("/app/webhooks/{run}"),
        format!("/app/workflows/{flow}"),
        format!("/app/workflows/{flow}?tab=json"),
        format!("/app/workflows/{flow}?tab=run"),
        format!("/app/workflows/{flow}?tab=versions"),
    ]);
    Populated { service, people: [owner, manager, member], screens }
}

pub(crate) async fn pressed(browser: &Chromium, service: &Service, path: &str) -> BTreeSet<String> {
    browser.open(service, path).await;
    browser.settled().await;
    let names = browser.run(PRESSED).await;
    names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn role_screens_show_each_button_only_to_permitted_roles() {
    let Populated { service, people, screens } = populated().await;
    let browser = Chromium::start().await;
    let mut seen: BTreeMap<(String, String), [bool; 3]> = BTreeMap::new();
    for (at, person) in people.iter().enumerate() {
        browser.becomes(&service, person).await;
        for path in &screens {
            for name in pressed(&browser, &service, path).await {
                seen.entry((path.clone(), name)).or_default()[at] = true;
            }
        }
    }
    let mut unexpected = Vec::new();
    for ((path, name), who) in &seen {
        let restricted = RESTRICTED.iter().find(|(at, start, _)| path == at && name == start);
        let expected = restricted.map_or([true; 3], |(_, _, who)| *who);
        if *who != expected {
            unexpected.push(format!("{path}: {name}: {who:?}"));
        }
    }
    assert_eq!(unexpected, Vec::<String>::new());
    for (path, name, _) in RESTRICTED {
        let is_seen = seen.contains_key(&(path.to_owned(), name.to_owned()));
        assert!(is_seen, "{path}: no {name}");
    }
    assert!(seen.len() > 150, "only {} buttons", seen.len());
    // Logged out, every link leads only to the log-in page.
    browser.is_nobody().await;
    for path in &screens {
        let names = pressed(&browser, &service, path).await;
        let log_in = ["Email", "Log in", "Password"].map(str::to_owned);
        assert_eq!(names, BTreeSet::from(log_in), "{path}");
        assert_eq!(
            browser.run("return document.querySelectorAll('nav').length").await,
            0,
            "{path}"
        );
    }
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn role_screens_restricted_buttons_work_for_owner() {
    let Populated { service, people, .. } = populated().await;
    let browser = Chromium::start().await;
    browser.becomes(&service, &people[0]).await;
    browser.open(&service, "/app/members").await;
    let tick = "//input[@aria-label='API key access of member@example.com']";
    browser.find(tick).await.click().await;
    crate::support::until("permission", async || {
        let may = service.session_of(&people[2]).await["member"]["api_key_access"] == true;
        may.then_some(())
    })
    .await;
    browser.press("Withdraw").await;
    browser.see_no_more("Open invitations").await;
    browser.press("Invite a person").await;
    browser.fill("Email", "new@example.com").await;
    browser.press("Create the link").await;
    browser.see("The invitation is ready").await;
    browser.press("Done").await;
    browser.see("new@example.com").await;
    browser.press("Create a password reset link for member@example.com").await;
    browser.press("Create the link").await;
    browser.see("The link is ready").await;
    browser.press("Done").await;
    browser.press("Remove member@example.com").await;
    browser.press("Remove").await;
    crate::support::until("end of the session", async || {
        let answer = service.asks(&people[2], Method::GET, "/members").send().await;
        (answer.status == 401).then_some(())
    })
    .await;
    // A member with the permission creates a key and deletes another person's key.
    browser.becomes(&service, &people[1]).await;
    browser.open(&service, "/app/keys").await;
    browser.press("Delete the key test").await;
    browser.press("Delete the key").await;
    browser.see_no_more("test").await;
    service
        .ask(orrery_api::Role::Base, Method::GET, "/v1/billing/balance")
        .key(&service.key)
        .send()
        .await
        .expect(401);
    browser.leave().await;
}

#[tokio::test]
async fn mounted_routes_accept_only_members() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "member@example.com").await;
    let mut checked = 0;
    for (name, role) in MOUNTED {
        let by_key = |route: &&orrery_api::Route| {
            route.hosts.contains(&role)
                && route.needs != Needs::Work
                && matches!(route.access, Access::Key | Access::BodyKey | Access::Link)
        };
        for route in ROUTES.iter().filter(by_key) {
            let path = format!("/api/{name}{}", crate::routes::path_of(route));
            let method = || route.method.clone();
            let nobody = service.page_asks(method(), &path).send().await;
            assert_eq!(nobody.status, 401, "{} {path}", route.method);
            let with_key = service.page_asks(method(), &path).key(&service.key).send().await;
            assert_eq!(with_key.status, 401, "{} {path} with a key", route.method);
            for person in [&owner, &member] {
                let answer = service.asks(person, method(), &path).send().await;
                let is_in = ![401, 403].contains(&answer.status);
                assert!(is_in, "{} {path} {}: {}", route.method, person.email, answer.status);
            }
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked} routes");
}

/// Records the text of each response to the page.
const HEARD: &str = "window.heard = []; const ask = window.fetch; \
    window.fetch = async (...given) => { const answer = await ask(...given); answer.clone().text().then((text) => window.heard.push(text)); return answer; };";

/// Returns the content of all storage of a page, as one string.
const KEPT: &str = "const done = arguments[0]; (async () => { \
    const bases = await indexedDB.databases(); \
    const caches_ = await caches.keys(); \
    const workers = await navigator.serviceWorker.getRegistrations(); \
    done([document.documentElement.outerHTML, location.href, JSON.stringify(history.state), JSON.stringify(localStorage), \
      JSON.stringify(sessionStorage), document.cookie, JSON.stringify(bases), JSON.stringify(caches_), workers.length, \
      performance.getEntries().map((one) => one.name).join(' ')].join(' ')); })()";

fn files_with(folder: &Path, text: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with(&path, text, found);
        } else if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            if bytes.windows(text.len()).any(|part| part == text.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn role_screens_never_store_text_of_new_key() {
    let process = Process::start("log.level = \"debug\"\n", |_| {}).await;
    let link = process.command(&["owner", "link"]).await;
    let token = link.split_once('#').unwrap().1.split_whitespace().next().unwrap();
    let browser = Chromium::start().await;
    browser.before_pages(HEARD).await;
    browser.goes_to(&process.page(&format!("/setup#{token}"))).await;
    browser.joins_as_owner().await;
    browser.goes_to(&process.page("/app/keys")).await;
    browser.press("Create a key").await;
    browser.fill("What is the key for?", "nightly report").await;
    browser.press("Create the key").await;
    let shown = browser.find("//input[@aria-label='The new API key']").await;
    let key = shown.value().await;
    let heard = format!("return window.heard.filter((text) => text.includes('{key}')).length");
    assert_eq!(browser.run(&heard).await, 1);
    browser.press("I have copied it").await;
    browser.see("nightly report").await;
    for round in 0..3 {
        let kept = browser.client.execute_async(KEPT, Vec::new()).await.unwrap();
        let kept = kept.as_str().unwrap();
        assert!(kept.contains("nightly report") && !kept.contains(&key), "round {round}");
        if round > 0 {
            assert_eq!(browser.run(&heard).await, 0, "round {round}");
        }
        if round < 2 {
            browser.client.refresh().await.unwrap();
            browser.see("nightly report").await;
            // Check that the audit log contains the key's name, but not the key.
            let audit = browser.asks("GET", "/audit", &Value::Null).await;
            assert!(!audit.to_string().contains(&key) && audit.to_string().contains("key.create"));
        }
    }
    browser.leave().await;
    let mut found = Vec::new();
    files_with(process.folder.path(), &key, &mut found);
    assert_eq!(found, Vec::<String>::new(), "the log and the data have its hash alone");
    assert!(process.log().contains("/keys"), "the log tells of the request");
}
