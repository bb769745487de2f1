//! A page on another port in a browser that is logged in to the dashboard. The page and the
//! dashboard are the same site, so the page's requests may contain the session cookie. The page
//! must not be able to change anything, read anything, or frame the dashboard.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use orrery_api::Role;

use crate::support::chromium::Chromium;
use crate::support::{Service, page, within};

/// A page that tries each way to send a request, and reports the results.
const PAGE: &str = r#"<!doctype html><title>another</title><body><script>
const at = new URLSearchParams(location.search).get("at");
const include = { credentials: "include" };
const body = '{"name":"stolen"}';
const tries = {
  json: () => fetch(`${at}/keys`, { ...include, method: "POST", body, headers: { "content-type": "application/json" } }),
  text: () => fetch(`${at}/keys`, { ...include, method: "POST", body, mode: "no-cors" }),
  beacon: () => Promise.resolve({ type: String(navigator.sendBeacon(`${at}/keys`, body)) }),
  end: () => fetch(`${at}/session`, { ...include, method: "DELETE" }),
  read: () => fetch(`${at}/keys`, include),
  form: () => submit("text/plain"),
  fields: () => submit("application/x-www-form-urlencoded"),
  frame: () => framed((frame) => { frame.src = `${at}/app/keys`; }),
};
function framed(fill) {
  return new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = `frame-${document.querySelectorAll("iframe").length}`;
    frame.onload = () => resolve({ type: "loaded" });
    fill(frame);
    document.body.append(frame);
  });
}
function submit(enctype) {
  return framed((frame) => {
    const form = Object.assign(document.createElement("form"), { action: `${at}/keys`, method: "post", enctype, target: frame.name });
    form.append(Object.assign(document.createElement("input"), { name: '{"name":"stolen","x":"', value: '"}' }));
    document.body.append(form);
    setTimeout(() => form.submit());
  });
}
(async () => {
  const came = {};
  for (const [name, act] of Object.entries(tries)) {
    try { came[name] = (await act()).type; } catch (error) { came[name] = "refused"; }
  }
  await fetch("/end", { method: "POST", body: JSON.stringify(came) });
})();
</script>"#;

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn page_of_another_port_changes_nothing_and_reads_nothing() {
    let service = Service::start().await;
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    let before = browser.asks("GET", "/keys", &Value::Null).await;
    let (sender, mut ends) = mpsc::unbounded_channel::<Value>();
    let site = page(PAGE, move |_, body| sender.send(body).unwrap()).await;
    let dashboard = format!("http://{}", service.address(Role::Dashboard));
    browser.goes_to(&format!("{site}/?at={dashboard}")).await;
    let came = within("end of the tries", ends.recv()).await.unwrap();
    let expected = json!({
        "json": "refused", "text": "refused", "beacon": "true", "end": "refused", "read": "refused",
        "form": "loaded", "fields": "loaded", "frame": "loaded",
    });
    assert_eq!(came, expected, "a refused frame loads a page of the browser itself");
    let said = browser.console().await;
    let refused = |what: &str| said.iter().filter(|line| line.contains(what)).count();
    assert_eq!(refused("violates"), 3, "a frame, also of a form's answer: {said:?}");
    assert_eq!(refused("403"), 2, "the forms: {said:?}");
    assert_eq!(refused("NotSameOrigin"), 2, "the text and the beacon: {said:?}");
    assert_eq!(refused("blocked by CORS policy"), 3, "{said:?}");
    // The session is still valid.
    browser.open(&service, "/app/keys").await;
    assert_eq!(browser.asks("GET", "/keys", &Value::Null).await, before);
    browser.client.close().await.unwrap();
}
