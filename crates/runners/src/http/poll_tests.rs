//! Tests forms and jobs with a server that sends scripted responses and records the requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::RecordingProgress;
use orrery_domain::money::Usd;
use orrery_http::egress::Policy;
use orrery_runtime::Tasks;

const PATIENT: Duration = Duration::from_secs(30);

/// A server that sends the scripted responses in order, and repeats the last response for all
/// further requests.
struct Scripted {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    async fn start(answers: &[(u16, Value)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let mut answers = answers.to_vec();
        answers.reverse();
        let seen = Arc::clone(&requests);
        Tasks::new().spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = request(&mut stream).await;
                seen.lock().unwrap().push(request);
                let (status, body) = answers.last().unwrap().clone();
                if answers.len() > 1 {
                    answers.pop();
                }
                let (body, close) = (body.to_string(), "Connection: close");
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{close}");
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
            }
        });
        Self { port, requests }
    }

    /// Returns the first lines of the requests so far.
    fn lines(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|one| one.lines().next().unwrap_or_default().to_owned()).collect()
    }

    fn runner(&self, manifest: &str) -> HttpRunner {
        let text = format!("url = \"http://127.0.0.1:{}/jobs\"\n{manifest}", self.port);
        let options = read(&text).unwrap();
        let servers = Pool::of_test(&options.servers.addresses, PATIENT);
        HttpRunner {
            options: Arc::new(options),
            model: Model::of_test("poll", PATIENT),
            client: Client::trusted(),
            sources: Sources::new(Policy::default(), None),
            servers,
        }
    }
}

/// Reads a request with its body.
async fn request(stream: &mut tokio::net::TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = read.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return read;
            }
        }
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "a request ended early: {read}");
        text.extend_from_slice(&buffer[..count]);
    }
}

/// Reads the `[runner]` table of a manifest.
fn read(text: &str) -> Result<Options, String> {
    let reader = orrery_config::reader::Reader::new(text);
    let table = reader.document();
    let options = Section::root(&reader, &table, |section| Options::read(section, Path::new("/")));
    let (errors, _) = reader.finish();
    match errors.first() {
        Some(error) => Err(error.message.clone()),
        None => Ok(options.unwrap()),
    }
}

fn job(input: Value) -> Job {
    Arc::<RecordingProgress>::default().job(input)
}

const POLL: &str = r#"
[poll]
id = "/job/id"
url = "/jobs/{{id}}?full=1"
every = "100ms"
until = { expression = "$.status", operator = "equals", value = "done" }
failed_when = { expression = "$.status", operator = "in", value = ["failed", "lost"] }
output = "/result"
error = "/reason"
cancel = "delete /jobs/{{id}}"
"#;

#[tokio::test]
async fn poll_asks_until_the_condition_holds_and_survives_short_outages() {
    let server = Scripted::start(&[
        (202, json!({"job": {"id": "a/b"}})),
        (200, json!({"status": "running"})),
        (503, json!({"error": "busy"})),
        (200, json!({"status": "done", "result": {"text": "hi"}, "metrics": {"cost": 0.5}})),
    ])
    .await;
    let done = server.runner(POLL).run(job(json!({"x": 1}))).await.unwrap();
    assert_eq!(done.output, json!({"text": "hi"}));
    assert_eq!(done.usage.cost, Some(Usd::from_micros(500_000)));
    let ask = "GET /jobs/a%2Fb?full=1 HTTP/1.1";
    assert_eq!(server.lines(), ["POST /jobs HTTP/1.1", ask, ask, ask]);
}

#[tokio::test]
async fn poll_reports_failures_with_the_reason_of_the_server() {
    for (answers, expect) in [
        (
            vec![
                (202, json!({"job": {"id": 7}})),
                (200, json!({"status": "lost", "reason": "no"})),
            ],
            "the model 'poll': its job failed: no",
        ),
        (vec![(202, json!({"id": 7}))], "the model 'poll' gave an answer without /job/id"),
        (
            vec![(202, json!({"job": {"id": ".."}}))],
            "gave an ID whose URL must not get the path segment '..' from {{id}}",
        ),
        (
            vec![(202, json!({"job": {"id": 7}})), (200, json!({"state": "done"}))],
            "gave a state in which {{status}} resolves to nothing",
        ),
        (
            vec![(202, json!({"job": {"id": 7}})), (200, json!({"status": "done"}))],
            "gave an answer without /result",
        ),
        (
            vec![(202, json!({"job": {"id": 7}})), (404, json!({"error": "gone"}))],
            "the model 'poll' answered 404",
        ),
        (
            vec![(202, json!({"job": {"id": 7}})), (500, json!({"error": "x"}))],
            "the model 'poll' answered 500",
        ),
        (
            vec![(202, json!({"job": {"id": 7}})), (503, json!({"error": "x"}))],
            "the model 'poll' answered 503",
        ),
    ] {
        let server = Scripted::start(&answers).await;
        let error = server.runner(POLL).run(job(json!({}))).await.unwrap_err();
        assert!(error.to_string().contains(expect), "{error}: {expect}");
        assert!(server.requests.lock().unwrap().len() <= 10, "{:?}", server.lines());
    }
}

#[tokio::test]
async fn poll_cancels_the_job_of_a_run_that_is_dropped() {
    let server =
        Scripted::start(&[(202, json!({"job": {"id": 7}})), (200, json!({"status": "on"}))]).await;
    let runner = server.runner(POLL);
    let run = tokio::time::timeout(Duration::from_millis(350), runner.run(job(json!({}))));
    run.await.unwrap_err();
    for _ in 0..200 {
        if server.lines().iter().any(|line| line == "DELETE /jobs/7 HTTP/1.1") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the job was not cancelled: {:?}", server.lines());
}

#[tokio::test]
async fn multipart_sends_fields_and_files() {
    let server = Scripted::start(&[(200, json!({"text": "hi"}))]).await;
    let runner = server.runner(
        "output = \"/text\"\nfiles = [\"file\"]\nmultipart = { file = \"{{input.audio}}\", \
         model = \"x\", language = \"{{input.language}}\", words = \"{{input.words}}\", n = 2 }",
    );
    let input = json!({"audio": ["data:audio/wav;base64,AAEC", "data:text/plain;base64,aGk="],
                       "words": ["a", "b"]});
    assert_eq!(runner.run(job(input)).await.unwrap().output, "hi");
    let request = server.requests.lock().unwrap().pop().unwrap();
    let (_, boundary) = request.split_once("multipart/form-data; boundary=").unwrap();
    let boundary = boundary.lines().next().unwrap();
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let field = |name: &str, rest: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{rest}\r\n")
    };
    let expect = [
        field("file", "; filename=\"file.wav\"\r\nContent-Type: audio/wav\r\n\r\n\0\u{1}\u{2}"),
        field("file", "; filename=\"file.txt\"\r\nContent-Type: text/plain\r\n\r\nhi"),
        field("model", "\r\n\r\nx"),
        field("n", "\r\n\r\n2"),
        field("words", "\r\n\r\na"),
        field("words", "\r\n\r\nb"),
        format!("--{boundary}--\r\n"),
    ];
    for part in &expect {
        assert!(body.contains(part.as_str()), "{part:?} in {body:?}");
    }
    assert_eq!(body.len(), expect.iter().map(String::len).sum::<usize>(), "{body}");
}

#[tokio::test]
async fn multipart_refuses_files_that_it_cannot_read() {
    let server = Scripted::start(&[(200, json!({}))]).await;
    let runner = server.runner("files = [\"f\"]\nmultipart = { f = \"{{input.f}}\" }");
    let many: Vec<&str> = vec!["data:;base64,"; 33];
    let large = format!("data:;base64,{}", "AAAA".repeat(12 * 1024 * 1024));
    for (file, expect) in [
        (json!("data:audio/wav,plain"), "'f' of its form: a data: URI must be base64"),
        (json!("photo.png"), "'f' of its form: must be an absolute http or https URL"),
        (json!("http://127.0.0.1:1/x"), "'f' of its form: "),
        (json!({"a": 1}), "'f' of its form: "),
        (json!(many), "more than 32 files"),
        (json!(large), "all files together are larger than 33554432 bytes"),
    ] {
        let error = runner.run(job(json!({"f": file}))).await.unwrap_err();
        assert_eq!(error.failure.class, ErrorClass::InvalidUserInput);
        assert!(error.to_string().contains(expect), "{error}: {expect}");
    }
    assert!(server.lines().is_empty(), "no request was sent");
}

#[tokio::test]
async fn multipart_limits_its_parts_and_their_size() {
    let server = Scripted::start(&[(200, json!({}))]).await;
    let runner = server.runner("multipart = { a = \"{{input.a}}\", b = \"{{input.a}}\" }");
    for (value, expect) in [
        (json!(vec![1; 1001]), "its form has more than 1000 fields"),
        (json!("x".repeat(5 * 1024 * 1024)), "are larger than 8388608 bytes"),
    ] {
        let error = runner.run(job(json!({"a": value}))).await.unwrap_err();
        assert_eq!(error.failure.class, ErrorClass::InvalidUserInput);
        assert!(error.to_string().contains(expect), "{error}: {expect}");
    }
    assert!(server.lines().is_empty(), "no request was sent");
}

#[test]
fn poll_and_multipart_refuse_mistakes_in_manifests() {
    let poll = |change: &dyn Fn(&str) -> String| change(POLL);
    for (manifest, expect) in [
        ("files = [\"x\"]".to_owned(), "`files` requires `multipart`"),
        ("multipart = {a = \"1\"}\nfiles = [\"b\"]".to_owned(), "\"b\" is not a field"),
        ("multipart = {a = \"1\"}\nbody = {}".to_owned(), "either `body` or `multipart`"),
        ("multipart = {a = \"1\"}\nmethod = \"GET\"".to_owned(), "is a POST, PUT or PATCH"),
        ("multipart = {a = \"{{x.y}}\"}".to_owned(), "is not a reference to the input"),
        (poll(&|text| text.replace("{{id}}?", "?")), "must contain {{id}}"),
        (poll(&|text| text.replace("{{id}}?", "{{input.a}}?")), "is not {{id}}"),
        (poll(&|text| text.replace("\"/jobs/{{id}}?", "\"http://{{id}}/?")), "in its scheme, host"),
        (poll(&|text| text.replace("delete /", "/")), "a method and a URL such as"),
        (poll(&|text| text.replace("delete /", "del ete /")), "a method and a URL such as"),
        (poll(&|text| text.replace("delete /jobs/{{id}}", "delete /{{input.x}}")), "is not {{id}}"),
        (poll(&|text| text.replace("\"/jobs/{{id}}?", "\"//jobs/{{id}}?")), "with one slash"),
        ("multipart = {\"\" = \"1\"}".to_owned(), "must not be empty"),
        (poll(&|text| text.replace("\"in\"", "\"is\"")), "the condition"),
        (poll(&|text| text.replace("100ms", "1ms")), "100ms"),
    ] {
        let url = "url = \"http://127.0.0.1:1/jobs\"\n";
        let error = read(&format!("{url}{manifest}")).unwrap_err();
        assert!(error.contains(expect), "{error}: {expect}");
    }
}
