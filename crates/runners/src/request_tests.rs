//! Tests the requests of `http` steps: the request as sent and as shown, the response, and
//! failures.

use std::borrow::Cow;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::test_call;
use orrery_domain::definition::{Http, Kind, Plan};
use orrery_domain::reference::{Field, Inputs};
use orrery_http::egress::Policy;
use orrery_runtime::Tasks;

const PATIENT: Duration = Duration::from_secs(20);

/// Builds an `http` step with these fields.
fn http(mut fields: Value) -> Http {
    fields["step_id"] = "h".into();
    fields["type"] = "http".into();
    let plan = Plan::compile(Some(&json!({"steps": [fields]})), &|_| true).unwrap();
    let Kind::Http(http) = &plan.step("h").unwrap().kind else { panic!("no http step") };
    (**http).clone()
}

fn prepared(fields: Value, inputs: Value) -> Result<Prepared, Error> {
    prepare(&http(fields).request, &Inputs(inputs))
}

/// Starts a server that responds to one request with `answer`. Returns the port, and the request as
/// received.
async fn server(answer: Vec<u8>) -> (u16, oneshot::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, request) = oneshot::channel();
    Tasks::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = String::new();
        let mut buffer = [0; 4096];
        let whole = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            (body.len() >= length.map_or(0, |length| length.parse().unwrap())).then_some(())
        };
        while whole(&text).is_none() {
            let count = stream.read(&mut buffer).await.unwrap();
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        let _sent = asked.send(text);
        let _written = stream.write_all(&answer).await;
        while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    });
    (port, request)
}

fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

async fn exchange(
    mut fields: Value,
    inputs: Value,
    answer: Vec<u8>,
) -> (Result<Response, Failure>, String) {
    let (port, request) = server(answer).await;
    fields["url"] = format!("http://127.0.0.1:{port}/p?a=1").into();
    let http = http(fields);
    let prepared = prepare(&http.request, &Inputs(inputs)).unwrap();
    let answer =
        send(&Client::trusted(), prepared, &http.fail_when, PATIENT, "e:h:1", &test_call()).await;
    (answer, request.await.unwrap())
}

#[tokio::test]
async fn http_step_propagates_trace_unless_it_sets_the_headers_itself() {
    let traceparent = format!("traceparent: {}", test_call().traceparent());
    let own = json!({"headers": {"Traceparent": "mine", "X-Request-Id": "{{inputs.n}}"}});
    for (fields, has) in [
        (json!({}), [&*traceparent, "x-request-id: 07070707-0707-0707-0707-070707070707"]),
        (own, ["traceparent: mine", "x-request-id: 7"]),
    ] {
        let (answered, request) = exchange(fields, json!({"n": 7}), answer(200, "", "")).await;
        answered.unwrap();
        assert!(has.iter().all(|line| request.lines().any(|sent| sent == *line)), "{request}");
        assert_eq!(request.matches("traceparent").count(), 1, "{request}");
    }
}

#[tokio::test]
async fn http_step_sends_each_request_part_as_configured() {
    let lines = |request: &str| -> Vec<String> { request.lines().map(str::to_owned).collect() };
    for (fields, first, has) in [
        (json!({}), "GET /p?a=1 HTTP/1.1", vec!["idempotency-key: e:h:1"]),
        (json!({"method": "head"}), "HEAD /p?a=1 HTTP/1.1", vec![]),
        (
            json!({"method": "PUT", "body": {"n": "{{inputs.n}}"}}),
            "PUT /p?a=1 HTTP/1.1",
            vec!["content-type: application/json", "content-length: 7", r#"{"n":7}"#],
        ),
        (
            json!({"method": "POST", "body": "n is {{inputs.n}}"}),
            "POST /p?a=1 HTTP/1.1",
            vec!["content-type: text/plain; charset=utf-8", "n is 7"],
        ),
        (
            json!({"method": "PATCH", "body": [1], "headers": {"Content-Type": "a/b", "X-N": "{{inputs.n}}"}}),
            "PATCH /p?a=1 HTTP/1.1",
            vec!["content-type: a/b", "x-n: 7", "[1]"],
        ),
        (
            json!({"query_params": {"q": ["a b", 2], "t": "{{inputs.text}}"}}),
            "GET /p?a=1&q=a+b&q=2&t=x%26y HTTP/1.1",
            vec![],
        ),
        (
            json!({"headers": {"Idempotency-Key": "mine"}}),
            "GET /p?a=1 HTTP/1.1",
            vec!["idempotency-key: mine"],
        ),
        (
            json!({"auth": {"type": "basic", "username": "u", "password": "{{inputs.text}}"}}),
            "GET /p?a=1 HTTP/1.1",
            vec!["authorization: Basic dTp4Jnk="],
        ),
        (
            json!({"auth": {"type": "bearer", "token": "t"}}),
            "GET /p?a=1 HTTP/1.1",
            vec!["authorization: Bearer t"],
        ),
        (
            json!({"auth": {"type": "api_key", "name": "X-Key", "value": "k"}}),
            "GET /p?a=1 HTTP/1.1",
            vec!["x-key: k"],
        ),
        (
            json!({"auth": {"type": "api_key", "name": "key", "value": "k", "in": "query"}}),
            "GET /p?a=1&key=k HTTP/1.1",
            vec![],
        ),
    ] {
        let inputs = json!({"n": 7, "text": "x&y"});
        let (answered, request) = exchange(fields.clone(), inputs, answer(200, "", "")).await;
        assert_eq!(answered.unwrap().body, "", "{fields}");
        let lines = lines(&request);
        assert_eq!(lines[0], first, "{fields}");
        for line in has {
            assert!(lines.contains(&line.to_owned()), "{line:?} is not in {request}");
        }
    }
}

#[tokio::test]
async fn http_step_response_is_json_or_text_with_headers() {
    let headers = "X-A: 1\r\nx-a: 2\r\nContent-Type: text/html\r\n";
    for (body, expect) in [
        (r#"{"a": [1]}"#.to_owned(), json!({"a": [1]})),
        ("<p>".to_owned(), json!("<p>")),
        (String::new(), json!("")),
        // The body is nested too deeply to parse, so it is treated as text.
        ("[".repeat(300) + &"]".repeat(300), json!("[".repeat(300) + &"]".repeat(300))),
    ] {
        let (answered, _) = exchange(json!({}), json!({}), answer(203, headers, &body)).await;
        let answered = answered.unwrap();
        assert_eq!((answered.status, answered.body), (203, expect));
        assert_eq!(answered.headers["x-a"], "1, 2");
        assert_eq!(answered.headers["content-type"], "text/html");
    }
    let many: String = (0..90).map(|n| format!("X-{n}: {}\r\n", "v".repeat(300))).collect();
    let (answered, _) = exchange(json!({}), json!({}), answer(200, &many, "")).await;
    let kept = Value::Object(answered.unwrap().headers).to_string().len();
    assert!(kept < 2 * HEADERS_MAX, "{kept}");
}

#[tokio::test]
async fn http_step_response_is_decoded_from_its_charset_or_fails() {
    let json = "application/json";
    for (headers, body, expect) in [
        ("text/plain; charset=ISO-8859-1", &b"caf\xe9"[..], Ok(json!("café"))),
        ("application/json; charset=windows-1251", b"{\"a\": \"\xff\"}", Ok(json!({"a": "я"}))),
        (json, b"\xef\xbb\xbf{\"a\": 1}", Ok(json!({"a": 1}))),
        (json, b"\xff\xfe1\0", Ok(json!(1))),
        (json, b" ", Ok(json!(" "))),
        (
            "text/plain",
            b"123456789012345678901234567890",
            Ok(json!("123456789012345678901234567890")),
        ),
        ("application/x-ndjson", b"{}\n{}", Ok(json!("{}\n{}"))),
        (json, b"oops", Err("not valid JSON: expected value at line 1 column 1")),
        ("application/problem+json", b"{\"a\": NaN}", Err("not valid JSON")),
        (json, br#"{"a": "\ud800"}"#, Err("not valid JSON")),
        (json, b"[123456789012345678901234567890]", Err("does not fit into 64 bits")),
        ("text/plain", b"caf\xe9", Err("not valid UTF-8")),
        ("text/plain; charset=klingon", b"x", Err("charset 'klingon'")),
        ("text/plain\r\nContent-Encoding: br", b"x", Err("content coding 'br'")),
        ("text/plain\r\nContent-Encoding: gzip", b"x", Err("not valid gzip")),
    ] {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nContent-Type: {headers}\r\n\r\n",
            body.len()
        );
        let (answered, _) = exchange(json!({}), json!({}), [head.as_bytes(), body].concat()).await;
        match (answered, expect) {
            (Ok(answered), Ok(expect)) => assert_eq!(answered.body, expect, "{headers}"),
            (Err(failure), Err(expect)) => {
                assert_eq!(failure.class, ErrorClass::ProviderError, "{failure:?}");
                assert!(failure.message.contains(expect), "{failure:?}");
            }
            (answered, _) => panic!("{headers}: {answered:?}"),
        }
    }
}

#[tokio::test]
async fn http_step_fail_when_maps_statuses_to_error_classes() {
    let listed = json!([404, 302]);
    for (fail_when, status, expect) in [
        (json!(null), 500, None),
        (json!("connection_error"), 404, None),
        (json!("non_2xx"), 204, None),
        (json!("non_2xx"), 302, Some(ErrorClass::ProviderError)),
        (json!("non_2xx"), 401, Some(ErrorClass::ProviderAuth)),
        (json!("non_2xx"), 429, Some(ErrorClass::ProviderRateLimit)),
        (json!("non_2xx"), 503, Some(ErrorClass::ProviderUnavailable)),
        (listed.clone(), 500, None),
        (listed.clone(), 404, Some(ErrorClass::InvalidUserInput)),
        (listed, 302, Some(ErrorClass::ProviderError)),
    ] {
        let fields = json!({"fail_when": fail_when});
        let answer = answer(status, "Location: http://127.0.0.1:1/\r\n", "it said no");
        let (answered, _) = exchange(fields, json!({}), answer).await;
        let failure = answered.err();
        assert_eq!(failure.as_ref().map(|failure| failure.class), expect, "{fail_when} {status}");
        if let Some(failure) = failure {
            assert_eq!(failure.message, format!("'127.0.0.1' answered {status}: it said no"));
        }
    }
}

#[tokio::test]
async fn http_step_without_response_fails_within_limits() {
    let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 10485761\r\n\r\nx".to_vec();
    let huge = [huge, vec![b'x'; ANSWER_MAX]].concat();
    let drip = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx".to_vec();
    for (answer, class, message) in [
        (huge, ErrorClass::ProviderError, "larger than 10485760 bytes"),
        (b"nonsense\r\n\r\n".to_vec(), ErrorClass::ProviderError, "not HTTP"),
        (drip, ErrorClass::ExecutionTimeout, "no answer within"),
    ] {
        let (port, _request) = server(answer).await;
        let http = http(json!({"url": format!("http://127.0.0.1:{port}/")}));
        let prepared = prepare(&http.request, &Inputs(json!({}))).unwrap();
        let limit =
            Duration::from_millis(if class == ErrorClass::ExecutionTimeout { 50 } else { 20_000 });
        let answered =
            send(&Client::trusted(), prepared, &http.fail_when, limit, "k", &test_call()).await;
        let failure = answered.unwrap_err();
        assert_eq!(failure.class, class, "{failure:?}");
        assert!(failure.message.contains(message), "{failure:?}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let http = http(json!({"url": format!("http://{closed}/")}));
    let prepared = prepare(&http.request, &Inputs(json!({}))).unwrap();
    let guarded = Client::guarded(Policy::default());
    for (client, class) in [
        (&Client::trusted(), ErrorClass::ProviderUnavailable),
        (&guarded, ErrorClass::InvalidModelConfig),
    ] {
        let answered =
            send(client, prepared.clone(), &http.fail_when, PATIENT, "k", &test_call()).await;
        assert_eq!(answered.unwrap_err().class, class);
    }
}

#[test]
fn http_step_validates_resolved_references() {
    let whole = |url: &str| json!({"url": url});
    for (fields, inputs, expect) in [
        (whole("{{inputs.url}}"), json!({"url": "ftp://h/"}), "url must be an absolute http"),
        (whole("{{inputs.url}}"), json!({"url": 7}), "url must be an absolute http"),
        (whole("http://h/{{inputs.no}}/"), json!({}), "{{inputs.no}} resolves to nothing"),
        (
            whole("http://h/{{inputs.x}}/p"),
            json!({"x": ".."}),
            "url must not get the path segment '..'",
        ),
        (
            whole("http://{{inputs.x}}:c@h/"),
            json!({"x": "a:b"}),
            "url must not have ':' in its user name",
        ),
        (
            json!({"url": "http://h/", "auth": {"type": "basic", "username": "a:b", "password": "c"}}),
            json!({}),
            "the user name of basic credentials",
        ),
        (
            json!({"url": "http://h/", "headers": {"X": "{{inputs.x}}"}}),
            json!({"x": "a\r\nInjected: 1"}),
            "the header 'X' must be a string",
        ),
        (
            json!({"url": "http://h/", "headers": {"X": "{{inputs.x}}"}}),
            json!({"x": {}}),
            "the header 'X' must be a string",
        ),
        (
            json!({"url": "http://h/", "query_params": {"q": "{{inputs.x}}"}}),
            json!({"x": [{}]}),
            "the query parameter 'q'",
        ),
        (
            json!({"url": "http://h/", "auth": {"type": "bearer", "token": "{{inputs.x}}"}}),
            json!({"x": "a\nb"}),
            "the credentials must be strings",
        ),
        (
            json!({"url": "http://h/", "method": "POST", "body": ["{{inputs.x}}", "{{inputs.x}}"]}),
            json!({"x": "y".repeat(RESOLVED_BYTES_MAX / 2)}),
            "larger than",
        ),
    ] {
        let said = prepared(fields, inputs).unwrap_err().to_string();
        assert!(said.contains(expect), "{said}");
    }
}

/// An `http` step of a definition stored by an earlier release.
#[test]
fn http_step_with_reference_in_stored_host_fails_when_it_runs() {
    for url in ["http://{{inputs.x}}/", "http://h:{{inputs.x}}/", "{{inputs.x}}/y"] {
        let steps = json!({"steps": [{"step_id": "h", "type": "http", "url": "http://h/",
            "fallback": {"url": url}}]});
        let refused = Plan::compile(Some(&steps), &|_| true).unwrap_err();
        assert_eq!(refused.problems().next().unwrap().path, "/steps/0/fallback/url");
        let plan = Plan::load(Some(&steps)).unwrap();
        let Kind::Http(http) = &plan.step("h").unwrap().kind else { panic!("no http step") };
        let request = http.fallback.as_ref().unwrap();
        let said = prepare(request, &Inputs(json!({"x": "80"}))).unwrap_err().to_string();
        assert!(said.contains("{{inputs.x}} in its scheme, host or port"), "{said}");
    }
}

#[test]
fn http_step_decodes_credentials_in_url() {
    for (url, inputs, expect) in [
        ("http://al%40ice:p%40ss@h/", json!({}), "al@ice:p@ss"),
        ("http://üser:pä%3A@h/", json!({}), "üser:pä:"),
        (
            "http://{{inputs.u}}:{{inputs.p}}@h/",
            json!({"u": "a@b%40", "p": ":/?#é"}),
            "a@b%40::/?#é",
        ),
        ("http://{{inputs.u}}@h/", json!({"u": "a"}), "a:"),
    ] {
        let prepared = prepared(json!({"url": url}), inputs).unwrap();
        let expect = format!("Basic {}", STANDARD.encode(expect));
        let mut request = HyperRequest::get(prepared.url.as_str()).body(()).unwrap();
        basic_auth::take_from_url(&mut request);
        assert_eq!(request.headers()[AUTHORIZATION], expect, "{url}");
        assert_eq!(request.uri(), "http://h/");
    }
}

#[test]
fn http_step_never_shows_credentials() {
    let shown = |auth: Value| {
        let fields = json!({
            "url": "http://user:hidden@h/p?q=1", "auth": auth,
            "headers": {"Cookie": "hidden", "X-A": "a"}, "query_params": {"n": 1},
        });
        let prepared = prepared(fields, json!({})).unwrap();
        format!("{} {:?}", prepared.shown(), prepared.headers)
    };
    for auth in [
        json!({"type": "basic", "username": "u", "password": "hidden"}),
        json!({"type": "bearer", "token": "hidden"}),
        json!({"type": "api_key", "name": "X-Key", "value": "hidden"}),
        json!({"type": "api_key", "name": "key", "value": "hidden", "in": "query"}),
    ] {
        let shown = shown(auth);
        let (detail, _debug) = shown.split_once("} ").unwrap();
        assert!(!detail.contains("hidden"), "{detail}");
        assert!(detail.contains("http://h/p?q=1") && detail.contains(r#""n":1"#), "{detail}");
    }
}

/// A scope with a secret.
struct WithSecret(String);

impl Scope for WithSecret {
    fn inputs(&self) -> &Value {
        &Value::Null
    }
    fn execution_id(&self) -> String {
        "e".to_owned()
    }
    fn item(&self, _name: &str) -> Option<&Value> {
        None
    }
    fn step(&self, _id: &str, _field: Field) -> Option<Cow<'_, Value>> {
        None
    }
    fn secret(&self, name: &str) -> Option<&str> {
        (name == "url").then_some(&self.0)
    }
}

#[tokio::test]
async fn http_step_shows_no_host_of_a_secret_url() {
    let http = http(json!({"url": "{{secrets.url}}", "fail_when": "non_2xx"}));
    let exchanged = async |url: String| {
        let prepared = prepare(&http.request, &WithSecret(url)).unwrap();
        assert!(prepared.shown().get().contains(r#""url":"***""#), "{prepared:?}");
        let call = test_call();
        send(&Client::trusted(), prepared, &http.fail_when, PATIENT, "e:h:1", &call).await
    };
    let (port, _request) = server(answer(500, "", "no 127.0.0.1 here")).await;
    let failed = exchanged(format!("http://127.0.0.1:{port}/p")).await.unwrap_err();
    assert_eq!(failed.message, "'***' answered 500: no *** here");
    let (port, _request) = server(answer(200, "Content-Type: application/json\r\n", "{")).await;
    let failed = exchanged(format!("http://127.0.0.1:{port}/p")).await.unwrap_err();
    assert!(failed.message.starts_with("the answer from '***' (200)"), "{}", failed.message);
    let failed = exchanged("http://MySecretHost.invalid/p".to_owned()).await.unwrap_err();
    assert!(failed.message.starts_with("the request to '***' failed"), "{}", failed.message);
    assert!(!failed.message.to_lowercase().contains("mysecret"), "{}", failed.message);
}

/// A scope with inputs and secrets.
struct Guarded;

const TOKEN: &str = "hunter2 & \"more\"";

impl Scope for Guarded {
    fn inputs(&self) -> &Value {
        &Value::Null
    }
    fn execution_id(&self) -> String {
        "e".to_owned()
    }
    fn item(&self, _name: &str) -> Option<&Value> {
        None
    }
    fn step(&self, _id: &str, _field: Field) -> Option<Cow<'_, Value>> {
        None
    }
    fn secret(&self, name: &str) -> Option<&str> {
        (name == "token").then_some(TOKEN)
    }
}

#[tokio::test]
async fn http_step_sends_secrets_and_shows_none() {
    let said = json!({"you said": {"hunter2 & \"more\"": [TOKEN, "hunter2+%26+%22more%22"]},
        "authorization": STANDARD.encode(format!("u:{TOKEN}"))});
    let echoed = answer(200, "X-Echo: hunter2 & \"more\"\r\n", &said.to_string());
    let (port, request) = server(echoed).await;
    let http = http(json!({
        "method": "POST",
        "url": format!("http://127.0.0.1:{port}/p?a={{{{secrets.token}}}}"),
        "headers": {"X-Plain": "is {{secrets.token}}"},
        "query_params": {"q": ["{{secrets.token}}", 1]},
        "body": {"text": "{{secrets.token}}", "kept": 1},
        "auth": {"type": "basic", "username": "u", "password": "{{secrets.token}}"},
    }));
    let prepared = prepare(&http.request, &Guarded).unwrap();
    for seen in [prepared.shown().to_string(), format!("{prepared:?}")] {
        assert!(!seen.contains("hunter2"), "{seen}");
    }
    let shown: Value = serde_json::from_str(prepared.shown().get()).unwrap();
    assert_eq!(shown["url"], format!("http://127.0.0.1:{port}/p?a=***"));
    assert_eq!(shown["headers"]["X-Plain"], "is ***");
    assert_eq!(shown["query_params"]["q"], json!(["***", 1]));
    assert_eq!(shown["body"], json!({"text": "***", "kept": 1}));
    let client = Client::trusted();
    let got =
        send(&client, prepared, &http.fail_when, PATIENT, "e:h:1", &test_call()).await.unwrap();
    let request = request.await.unwrap();
    assert!(request.contains("x-plain: is hunter2 & \"more\""), "{request}");
    assert!(request.contains("q=hunter2+%26+%22more%22&q=1 "), "{request}");
    assert_eq!(got.headers["x-echo"], "***");
    assert_eq!(got.body, json!({"you said": {"***": ["***", "***"]}, "authorization": "***"}));
}

#[tokio::test]
async fn http_step_failure_quotes_no_secret() {
    let body = format!("{}{TOKEN}", "x".repeat(295));
    let (port, _request) = server(answer(500, "", &body)).await;
    let http = http(json!({
        "url": format!("http://127.0.0.1:{port}/"),
        "headers": {"X-Plain": "{{secrets.token}}"},
        "fail_when": "non_2xx",
    }));
    let prepared = prepare(&http.request, &Guarded).unwrap();
    let failed =
        send(&Client::trusted(), prepared, &http.fail_when, PATIENT, "e:h:1", &test_call()).await;
    let message = failed.unwrap_err().message;
    assert!(message.contains("xxx***") && !message.contains("hunter"), "{message}");
    let unknown = self::http(json!({"url": "http://h/{{secrets.other}}"}));
    let error = prepare(&unknown.request, &Guarded).unwrap_err().to_string();
    assert_eq!(error, "{{secrets.other}} resolves to nothing");
}

#[tokio::test]
async fn http_step_rejects_response_with_too_many_values_before_parsing() {
    let long = "0,".repeat(ANSWER_VALUES_MAX);
    for body in [format!("[{long}0]"), format!(" {{\"a\":[{long}0]}}"), "[],".repeat(600_000)] {
        let body = if body.starts_with("[]") { format!("[{body}[]]") } else { body };
        let (answered, _) = exchange(json!({}), json!({}), answer(200, "", &body)).await;
        let failure = answered.unwrap_err();
        assert_eq!(failure.class, ErrorClass::ProviderError);
        let expect = "the response from '127.0.0.1' is too large: the response contains more \
                      than 1000000 JSON values";
        assert_eq!(failure.message, expect);
    }
    // A string counts as one value, regardless of how many commas it contains.
    let (answered, _) = exchange(json!({}), json!({}), answer(200, "", &format!("a{long}"))).await;
    let answered = answered.unwrap();
    assert!(answered.room.is_counted());
    assert!(answered.body.is_string());
}
