//! A browser follows a prediction: headless Chromium with its native `EventSource`, on a connection
//! that breaks.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use orrery_api::Role;
use orrery_runtime::Tasks;

use crate::support::{Provider, Service, page, within};

/// A page that follows the prediction, records every event, and reports them at the end.
const PAGE: &str = r#"<!doctype html><title>follow</title><script>
const seen = [], ids = [];
let opened = 0;
const events = new EventSource(new URLSearchParams(location.search).get("link"));
const tell = (path, body) => fetch(path, {method: "POST", body: JSON.stringify(body)});
events.onopen = () => { opened += 1; };
for (const name of ["status", "log", "output", "reset"]) {
  events.addEventListener(name, (event) => {
    seen.push(name === "output" ? JSON.parse(event.data).part : name);
    ids.push(event.lastEventId);
    tell("/seen", seen.length);
  });
}
events.addEventListener("end", (event) => {
  events.close();
  tell("/end", {seen, ids, opened, output: JSON.parse(event.data).output});
});
</script>"#;

/// Starts a TCP proxy to the service that cuts all its connections on request.
async fn cuttable(service: std::net::SocketAddr) -> (u16, watch::Sender<u32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (cut, cuts) = watch::channel(0);
    let tasks = Tasks::new();
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut cuts = cuts.clone();
            cuts.mark_unchanged();
            connections.spawn(async move {
                let mut upstream = TcpStream::connect(service).await.unwrap();
                tokio::select! {
                    _ended = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                    _told = cuts.changed() => {}
                }
            });
        }
    });
    (port, cut)
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn browser_event_source_reconnects_without_a_gap() {
    let service = Service::configured("cors.allow_origins = [\"*\"]\n").await;
    let provider = Provider::start().await;
    let url = provider.url("/stream");
    let runner = format!("type = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{url}'");
    service.manifest(&format!("slug = 'chat'\noutput_type = 'string'\n[runner]\n{runner}\n"));
    let id = service.create("chat", json!({"prompt": "p"})).await;
    let link = service.get(&format!("/v1/prediction/{id}")).await.header("link").to_owned();
    let link = link.strip_prefix('<').unwrap().split_once('>').unwrap().0.to_owned();
    let (port, cut) = cuttable(service.address(Role::Base)).await;
    let link = link.replace(&service.address(Role::Base).to_string(), &format!("127.0.0.1:{port}"));

    let (sender, mut events) = mpsc::unbounded_channel::<(String, Value)>();
    let site = page(PAGE, move |path, body| sender.send((path, body)).unwrap()).await;
    let profile = tempfile::tempdir().unwrap();
    let link = link.replace('&', "%26").replace('?', "%3F").replace('=', "%3D");
    let browser = tokio::process::Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg("--remote-debugging-port=0")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("{site}/?link={link}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("Debian's package chromium is installed");

    let mut seen_until = async |count: u64| loop {
        let (path, body) = within("event in the browser", events.recv()).await.unwrap();
        if path == "/end" || body.as_u64() >= Some(count) {
            return body;
        }
    };
    provider.say("one");
    seen_until(3).await;
    cut.send_modify(|cuts| *cuts += 1);
    // While the browser is disconnected, the service buffers new output for it.
    provider.say(" two");
    provider.say(" three");
    seen_until(4).await;
    cut.send_modify(|cuts| *cuts += 1);
    provider.say(" four");
    provider.finish();
    let end = seen_until(u64::MAX).await;
    let parts: Vec<&str> =
        end["seen"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(parts[..3], ["status", "status", "one"], "{end}");
    assert_eq!(parts[2..].concat(), "one two three four", "each part once: {end}");
    assert_eq!(end["output"], "one two three four");
    assert!(end["opened"].as_u64().unwrap() >= 2, "it came again: {end}");
    let ids = end["ids"].as_array().unwrap();
    let distinct: std::collections::BTreeSet<_> = ids.iter().map(Value::to_string).collect();
    assert_eq!(distinct.len(), ids.len());
    drop(browser);
}
