//! Browser automation: headless Chromium with Debian's chromedriver.

use std::process::Stdio;
use std::time::Duration;

use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder};
use hyper::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use url::{ParseError, Url};

use super::dashboard::{PASSWORD, Person};
use super::shown::Shown;
use super::{Service, signal, until, within};
use orrery_api::Role;

/// Console messages that appear when the service does not respond.
pub(crate) const CONNECTION_LOST: [&str; 4] =
    ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE", "ERR_CONNECTION_RESET"];
const NEEDED: &str = "Debian's packages chromium and chromium-driver are installed: tests/run";

/// Maximum number of attempts to start chromedriver: it picks a port that is free for IPv4, but the
/// port may be in use for IPv6.
const DRIVER_STARTS: usize = 5;
/// Maximum number of polls of the page for a text, and the interval between them.
const LOOKS_MAX: usize = 600;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A browser with one window.
pub(crate) struct Chromium {
    pub client: Client,
    _driver: Child,
    _profile: Profile,
}

/// The browser's profile folder, which identifies the browser's process. A failing test does not
/// close the window, and killing the driver alone leaves the browser running.
struct Profile(tempfile::TempDir);

impl Drop for Profile {
    fn drop(&mut self) {
        let Ok(lock) = std::fs::read_link(self.0.path().join("SingletonLock")) else { return };
        let pid = lock.to_str().and_then(|lock| lock.rsplit_once('-')?.1.parse().ok());
        if let Some(pid) = pid {
            signal(pid, Signal::KILL);
        }
    }
}

/// Fetches and clears the lines of the browser's console.
#[derive(Debug)]
struct Console;

impl WebDriverCompatibleCommand for Console {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }
    fn method_and_body(&self, _url: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"type": "browser"}).to_string()))
    }
}

/// A command of the Chrome DevTools Protocol.
#[derive(Debug)]
struct Cdp(&'static str, Value);

impl WebDriverCompatibleCommand for Cdp {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }
    fn method_and_body(&self, _url: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"cmd": self.0, "params": self.1}).to_string()))
    }
}

/// Starts the driver; returns its process and its port, or `None` if it exits immediately.
async fn start_driver() -> Option<(Child, String)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("{NEEDED} ({error})"));
    let mut lines = BufReader::new(driver.stdout.take()?).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            return Some((driver, port.trim_end_matches('.').to_owned()));
        }
    }
    None
}

impl Chromium {
    pub(crate) async fn start() -> Self {
        let (driver, port) = within("start of chromedriver", async {
            for _ in 0..DRIVER_STARTS {
                if let Some(started) = start_driver().await {
                    return started;
                }
            }
            panic!("{NEEDED}")
        })
        .await;
        let profile = Profile(tempfile::tempdir().unwrap());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--window-size=1280,900",
            &format!("--user-data-dir={}", profile.0.path().display()),
        ];
        let wanted = json!({
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let wanted: Capabilities = serde_json::from_value(wanted).unwrap();
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let connecting = builder.capabilities(wanted);
        let url = format!("http://127.0.0.1:{port}");
        let client = within("browser", connecting.connect(&url)).await;
        let client = client.unwrap_or_else(|error| panic!("{NEEDED} ({error})"));
        Self { client, _driver: driver, _profile: profile }
    }

    /// Opens a path of the service's dashboard.
    pub(crate) async fn open(&self, service: &Service, path: &str) {
        self.goes_to(&format!("http://{}{path}", service.address(Role::Dashboard))).await;
    }

    /// Opens an address.
    pub(crate) async fn goes_to(&self, url: &str) {
        within("page", self.client.goto(url)).await.unwrap();
    }

    /// Waits until the element of an XPath is visible, and returns it.
    pub(crate) async fn find(&self, xpath: &str) -> Shown<'_> {
        Shown::once(&self.client, xpath.to_owned()).await
    }

    /// Returns the button or link with this name.
    pub(crate) async fn button(&self, name: &str) -> Shown<'_> {
        let name = format!("[normalize-space(.)='{name}' or @aria-label='{name}']");
        self.find(&format!("(//button{name} | //a{name})[not(ancestor::nav)]")).await
    }

    /// Clicks the button or link with this name.
    pub(crate) async fn press(&self, name: &str) {
        self.button(name).await.click().await;
    }

    /// Returns the field with this label.
    pub(crate) async fn field(&self, label: &str) -> Shown<'_> {
        let of = format!("@id=//label[starts-with(normalize-space(.),'{label}')]/@for");
        self.find(&format!("//*[self::input or self::textarea or self::select][{of}]")).await
    }

    /// Types into the field with this label.
    pub(crate) async fn fill(&self, label: &str, text: &str) {
        self.field(label).await.send_keys(text).await;
    }

    /// Waits until the page shows this text.
    pub(crate) async fn see(&self, text: &str) {
        for _ in 0..LOOKS_MAX {
            if self.text().await.contains(text) {
                return;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        panic!("no text '{text}' in:\n{}", self.text().await);
    }

    /// Returns all visible text of the page.
    pub(crate) async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Runs a script in the page; returns its result.
    pub(crate) async fn run(&self, script: &str) -> Value {
        within("script", self.client.execute(script, Vec::new())).await.unwrap()
    }

    /// Types into the focused element.
    pub(crate) async fn keys(&self, text: &str) {
        self.client.active_element().await.unwrap().send_keys(text).await.unwrap();
    }

    /// Sets the width of the window, and the light or dark theme.
    pub(crate) async fn looks(&self, width: u32, is_dark: bool) {
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.client.issue_cmd(Cdp("Emulation.setEmulatedMedia", features)).await.unwrap();
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        let size = Cdp("Emulation.setDeviceMetricsOverride", metrics);
        self.client.issue_cmd(size).await.unwrap();
    }

    /// Emulates a medium (under an empty name) or media features.
    pub(crate) async fn media(&self, features: &[(&str, &str)]) {
        let medium =
            features.iter().find(|(name, _)| name.is_empty()).map_or("", |(_, value)| value);
        let features: Vec<Value> = features
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let emulated = json!({"media": medium, "features": features});
        self.client.issue_cmd(Cdp("Emulation.setEmulatedMedia", emulated)).await.unwrap();
    }

    /// Disconnects the browser from the network, or reconnects it.
    pub(crate) async fn connected(&self, is_connected: bool) {
        let conditions = json!({"offline": !is_connected, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.client.issue_cmd(Cdp("Network.enable", json!({}))).await.unwrap();
        let conditions = Cdp("Network.emulateNetworkConditions", conditions);
        self.client.issue_cmd(conditions).await.unwrap();
    }

    /// Saves a screenshot of the window for review by a person, if `DASHBOARD_PICTURES` names a
    /// folder.
    pub(crate) async fn picture(&self, name: &str) {
        let Ok(folder) = std::env::var("DASHBOARD_PICTURES") else { return };
        let picture = self.client.screenshot().await.unwrap();
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), picture).unwrap();
    }

    /// Ends the visit: checks that the console is empty and that the page contacted no other
    /// origin.
    pub(crate) async fn leave(self) {
        self.expect_quiet_console(&[]).await;
        let foreign = "return performance.getEntriesByType('resource').map(one => one.name)\
                       .filter(name => !name.startsWith(location.origin) && !name.startsWith('data:') && !name.startsWith('blob:'))";
        assert_eq!(self.run(foreign).await, json!([]));
        self.client.close().await.unwrap();
    }

    /// Returns the console's lines since the last call.
    pub(crate) async fn console(&self) -> Vec<String> {
        let lines = self.client.issue_cmd(Console).await.unwrap();
        let said = |line: &Value| line["message"].as_str().unwrap_or_default().to_owned();
        lines.as_array().unwrap().iter().map(said).collect()
    }

    /// Checks that every line of the console contains one of `expected`.
    pub(crate) async fn expect_quiet_console(&self, expected: &[&str]) {
        let mut unexpected = self.console().await;
        unexpected.retain(|line| !expected.iter().any(|part| line.contains(part)));
        assert_eq!(unexpected, Vec::<String>::new());
    }

    /// Sets up the dashboard with a new link, which logs the browser in as the Owner.
    pub(crate) async fn set_up(&self, service: &Service) {
        let token = service.owner_token().await;
        self.open(service, &format!("/setup#{token}")).await;
        self.joins_as_owner().await;
    }

    /// Fills in the setup page that the Owner's link opens.
    pub(crate) async fn joins_as_owner(&self) {
        self.fill("Name", "Ada Lovelace").await;
        self.fill("Email", "ada@example.com").await;
        self.fill("Password", PASSWORD).await;
        self.press("Set up").await;
        self.see("Hello, Ada Lovelace.").await;
    }

    /// Takes over a person's session, without logging in.
    pub(crate) async fn becomes(&self, service: &Service, person: &Person) {
        self.is_nobody().await;
        let (name, value) = person.cookie.split_once('=').unwrap();
        let url = format!("http://{}/", service.address(Role::Dashboard));
        let cookie = json!({"name": name, "value": value, "url": url, "httpOnly": true, "sameSite": "Strict"});
        self.client.issue_cmd(Cdp("Network.setCookie", cookie)).await.unwrap();
    }

    /// Makes the window count as visible and focused, even if other windows cover it.
    pub(crate) async fn is_watched(&self) {
        let focus = Cdp("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        self.client.issue_cmd(focus).await.unwrap();
    }

    /// Drops the session, as in a new browser. Leaves the page first, because its requests would
    /// continue without a session.
    pub(crate) async fn is_nobody(&self) {
        self.client.goto("about:blank").await.unwrap();
        self.client.issue_cmd(Cdp("Network.clearBrowserCookies", json!({}))).await.unwrap();
    }

    /// Sends a request from the page; returns the JSON response.
    pub(crate) async fn asks(&self, method: &str, path: &str, body: &Value) -> Value {
        let script = "const [method, path, body, done] = arguments; \
                      fetch(path, { method, ...(body === null ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }) }) \
                        .then((answer) => answer.text()).then((text) => done(JSON.parse(text || 'null')), (error) => done(String(error)))";
        let arguments = vec![json!(method), json!(path), body.clone()];
        within("answer", self.client.execute_async(script, arguments)).await.unwrap()
    }

    /// Runs a script in each page opened from now on, before the page's own scripts.
    pub(crate) async fn before_pages(&self, script: &str) {
        let added = Cdp("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}));
        self.client.issue_cmd(added).await.unwrap();
    }

    /// Returns the accessibility tree, one node per line, without parts that differ between runs.
    pub(crate) async fn accessibility_tree(&self) -> String {
        self.client.issue_cmd(Cdp("Accessibility.enable", json!({}))).await.unwrap();
        let tree = self.client.issue_cmd(Cdp("Accessibility.getFullAXTree", json!({}))).await;
        super::tree::text_of(&tree.unwrap()["nodes"])
    }

    /// Replaces the content of the JSON editor as a person would: selects everything, then types.
    pub(crate) async fn writes_json(&self, text: &str) {
        until("JSON editor", async || {
            let focus = "const content = document.querySelector('.code-editor')?.shadowRoot?.querySelector('.cm-content'); content?.focus(); return Boolean(content)";
            (self.run(focus).await == true).then_some(())
        })
        .await;
        for kind in ["keyDown", "keyUp"] {
            let key = json!({"type": kind, "modifiers": 2, "key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65});
            self.client.issue_cmd(Cdp("Input.dispatchKeyEvent", key)).await.unwrap();
        }
        self.inserts(text).await;
    }

    /// Types at the caret.
    pub(crate) async fn inserts(&self, text: &str) {
        self.client.issue_cmd(Cdp("Input.insertText", json!({"text": text}))).await.unwrap();
    }

    /// Returns the content of the JSON editor.
    pub(crate) async fn json_text(&self) -> String {
        let lines = "const root = document.querySelector('.code-editor')?.shadowRoot; \
                     return root?.querySelector('.cm-content') ? [...root.querySelectorAll('.cm-line')].map((one) => one.textContent).join('\\n') : null";
        until("JSON editor", async || self.run(lines).await.as_str().map(str::to_owned)).await
    }

    /// Waits until the page no longer shows this text.
    pub(crate) async fn see_no_more(&self, text: &str) {
        until(text, async || (!self.text().await.contains(text)).then_some(())).await;
    }

    /// Logs in with the password that all people in the tests share.
    pub(crate) async fn logs_in(&self, service: &Service, email: &str) {
        self.open(service, "/").await;
        self.fill("Email", email).await;
        self.fill("Password", PASSWORD).await;
        self.press("Log in").await;
        self.see("Hello, ").await;
    }

    /// Opens the tab with this name.
    pub(crate) async fn press_tab(&self, name: &str) {
        let tab = format!("//button[@role='tab'][starts-with(.,'{name}')]");
        self.find(&tab).await.click().await;
    }

    /// Waits until nothing on the page is still loading.
    pub(crate) async fn settled(&self) {
        self.find("//h1").await;
        until("end of loading", async || {
            let busy = self.run("return document.querySelectorAll('.loading').length").await;
            (busy == 0).then_some(())
        })
        .await;
    }

    /// Replaces the content of the field with this label.
    pub(crate) async fn refill(&self, label: &str, text: &str) {
        self.field(label).await.replace(text).await;
    }

    /// Returns the value of the field with this label.
    pub(crate) async fn value(&self, label: &str) -> String {
        self.field(label).await.value().await
    }

    /// Selects an option of the field with this label, by its text.
    pub(crate) async fn choose(&self, label: &str, offer: &str) {
        self.field(label).await.select_by_label(offer).await;
    }
}
