//! Tests of the client against misbehaving servers and names that resolve to denied addresses.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::connector::{Resolve, Resolving};
use orrery_runtime::Tasks;

/// Resolves every name to the same addresses.
#[derive(Debug)]
struct Fixed(Vec<IpAddr>);

impl Resolve for Fixed {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        let addresses = self.0.clone();
        Box::pin(async move { Ok(addresses) })
    }

    fn resolve_here<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(std::future::ready(Err("it is in no file".to_owned().into())))
    }
}

/// Fails the first two lookups because of a lack of file descriptors.
#[derive(Debug, Default)]
struct Short(AtomicUsize);

impl Resolve for Short {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        let asked = self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            if asked < 2 {
                return Err("Too many open files (os error 24)".to_owned().into());
            }
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        })
    }

    fn resolve_here<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        self.resolve(name)
    }
}

#[tokio::test]
async fn http_client_waits_out_descriptor_shortage() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    let port = server(answer, 1).await;
    let client = |short: &Arc<Short>| {
        Builder::new(None).resolver(Arc::clone(short) as Arc<dyn Resolve>).build()
    };
    let request = || {
        let url = format!("http://name.test:{port}/");
        Request::get(url).body(Bytes::new()).unwrap()
    };
    let short = Arc::<Short>::default();
    let refused = client(&short).send(request(), &LIMITS).await;
    assert!(matches!(refused, Err(Error::Connection(connector::Error::Local { .. }))));
    let short = Arc::<Short>::default();
    let limits = Limits { total: Duration::from_millis(100), ..LIMITS };
    let refused = client(&short).send_when_able(request(), &limits).await;
    assert!(refused.is_err(), "it does not wait past its limit");
    let short = Arc::<Short>::default();
    let answer = client(&short).send_when_able(request(), &LIMITS).await.unwrap();
    assert_eq!((&answer.body[..], short.0.load(Ordering::SeqCst)), (&b"hi"[..], 3));
}

#[tokio::test]
async fn http_client_logs_no_secret_host() {
    let written = orrery_runtime::CapturedLog::default();
    let sink = written.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || sink.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let client = Builder::new(None).resolver(Arc::new(Fixed(Vec::new()))).build();
    for scheme in ["http", "https"] {
        let request = || {
            let request = Request::get(format!("{scheme}://{scheme}.name.test/"));
            request.body(Bytes::new()).unwrap()
        };
        let mut secret = request();
        secret.extensions_mut().insert(SecretHost);
        client.send(secret.clone(), &LIMITS).await.unwrap_err();
        client.send_when_able(secret.clone(), &LIMITS).await.unwrap_err();
        client.open(secret).await.unwrap_err();
        let text = written.text();
        assert!(!text.contains(&format!("{scheme}.name.test")), "{text}");
        assert!(text.contains("outgoing request failed") && text.contains("***"), "{text}");
        client.send(request(), &LIMITS).await.unwrap_err();
        assert!(written.text().contains(&format!("{scheme}.name.test")), "{}", written.text());
    }
}

const LIMITS: Limits =
    Limits { total: Duration::from_secs(20), answer_bytes: 1000, overflow: Overflow::Fail };

/// Starts a server that reads something and then sends `answer`, for `connections` clients; returns
/// its port.
async fn server(answer: &'static [u8], connections: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    Tasks::new().spawn(async move {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _read = stream.read(&mut request).await.unwrap();
            stream.write_all(answer).await.unwrap();
            // Holds the connection open until the client closes it.
            let _closed = stream.read(&mut request).await;
        }
    });
    port
}

async fn get(client: &Client, url: String, limits: &Limits) -> Result<Response, Error> {
    client.send(Request::get(url).body(Bytes::new()).unwrap(), limits).await
}

#[tokio::test]
async fn http_client_reads_whole_response_and_follows_no_redirects() {
    let client = Client::trusted();
    let answer =
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nhi";
    let port = server(answer, 1).await;
    let answer = get(&client, format!("http://localhost:{port}/"), &LIMITS).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::FOUND, &b"hi"[..]));
}

#[tokio::test]
async fn http_client_refuses_or_truncates_large_response() {
    let client = Client::trusted();
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n0123456789abcdef";
    let small = Limits { answer_bytes: 10, ..LIMITS };
    let url = format!("http://127.0.0.1:{}/", server(answer, 2).await);
    let error = get(&client, url.clone(), &small).await.unwrap_err();
    assert_eq!(error.to_string(), "the answer is larger than 10 bytes");
    let cut = Limits { overflow: Overflow::Truncate, ..small };
    let answer = get(&client, url, &cut).await.unwrap();
    assert_eq!((&answer.body[..], answer.truncated), (&b"0123456789"[..], true));
}

#[tokio::test]
async fn http_client_distinguishes_timeout_garbage_and_refusal() {
    let client = Client::trusted();
    let hasty = Limits { total: Duration::from_millis(50), ..LIMITS };
    let silent = get(&client, format!("http://127.0.0.1:{}/", server(b"", 1).await), &hasty).await;
    assert_eq!(silent.unwrap_err().to_string(), "no answer within 50ms");
    let port = server(b"garbage\r\n\r\n", 1).await;
    let garbage = get(&client, format!("http://127.0.0.1:{port}/"), &LIMITS).await.unwrap_err();
    assert!(matches!(garbage, Error::Protocol { .. }), "{garbage}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let refused = get(&client, format!("http://127.0.0.1:{port}/"), &LIMITS).await.unwrap_err();
    assert_eq!(refused.to_string(), "the host cannot be reached");
    let detail = format!("cannot connect to 127.0.0.1:{port}: connection refused");
    assert_eq!(refused.detail(), detail);
}

/// Never responds, like a host that drops packets.
#[derive(Debug)]
struct Silent;

impl Resolve for Silent {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(std::future::pending())
    }

    fn resolve_here<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn http_client_connect_failures_share_one_public_message() {
    let hasty = Limits { total: Duration::from_millis(50), ..LIMITS };
    let client = |resolver: Arc<dyn Resolve>| {
        Builder::new(Some(Policy::default())).resolver(resolver).build()
    };
    let fixed = |address: &str| client(Arc::new(Fixed(vec![address.parse().unwrap()])));
    let mut seen = Vec::new();
    for (client, host) in [
        (client(Arc::new(Silent)), "silent.example"),
        (client(Arc::new(Fixed(Vec::new()))), "nowhere.example"),
        (fixed("169.254.169.254"), "astray.example"),
        (fixed("127.0.0.1"), "own.example"),
        // A single-label name is not sent to any name server.
        (fixed("8.8.8.8"), "single"),
    ] {
        let error = get(&client, format!("http://{host}/"), &hasty).await.unwrap_err();
        assert!(error.detail().contains(host), "{}", error.detail());
        seen.push((error.to_string(), is_unconnected(&error)));
    }
    assert!(seen.iter().all(|one| *one == ("the host cannot be reached".to_owned(), true)));
}

/// Returns whether the error counts as a connection failure.
const fn is_unconnected(error: &Error) -> bool {
    matches!(error, Error::Connection(_))
}

#[tokio::test]
async fn http_client_egress_guard_checks_resolved_address() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let port = server(answer, 1).await;
    let client = |loopback: bool, addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Builder::new(Some(Policy { loopback, ..Policy::default() }))
            .resolver(Arc::new(Fixed(addresses)))
            .build()
    };
    let url = format!("http://innocent.example:{port}/");
    for address in ["127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254"] {
        let error = get(&client(false, &[address]), url.clone(), &LIMITS).await.unwrap_err();
        let forbidden = matches!(error, Error::Connection(connector::Error::LeadsAstray { .. }));
        assert!(forbidden, "{address}: {error}");
    }
    let literal = get(&client(false, &[]), format!("http://127.0.0.1:{port}/"), &LIMITS).await;
    assert!(literal.unwrap_err().to_string().contains("loopback"));
    // If a name has a denied and a permitted address, the client connects to the permitted one.
    let mixed = client(true, &["169.254.169.254", "127.0.0.1"]);
    assert_eq!(get(&mixed, url, &LIMITS).await.unwrap().status, StatusCode::OK);
}

/// Returns the bytes that a server receives for a request, with the server's port as in the URL.
async fn received(client: &Client, request: Request<Bytes>, is_plain: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut parts, body) = request.into_parts();
    let url = parts.uri.to_string().replace(":9/", &format!(":{port}/"));
    parts.uri = url.parse().unwrap();
    let request = Request::from_parts(parts, body);
    let receiving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") && !bytes.ends_with(b"the end") {
            stream.read_buf(&mut bytes).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        String::from_utf8(bytes).unwrap().replace(&port.to_string(), "9")
    };
    let sending = async {
        if is_plain {
            client.send(request, &LIMITS).await.unwrap();
        } else {
            let mut request = request;
            basic_auth::take_from_url(&mut request);
            client.send_other(request, &LIMITS).await.unwrap();
        }
    };
    tokio::join!(receiving, sending).0
}

#[tokio::test]
async fn http_client_sends_same_bytes_over_own_and_hypers_pool() {
    let client = Client::trusted();
    let large = "0".repeat(100_000) + "the end";
    for (method, url, headers, body) in [
        ("GET", "http://127.0.0.1:9/", vec![], ""),
        ("GET", "http://127.0.0.1:9/a/b?c=d%20e#f", vec![("X-One", "1"), ("x-two", "2")], ""),
        ("HEAD", "http://localhost:9/", vec![("accept", "*/*")], ""),
        ("POST", "http://127.0.0.1:9/", vec![("content-type", "text/plain")], "the end"),
        ("POST", "http://127.0.0.1:9/", vec![], ""),
        ("PUT", "http://user:secret@127.0.0.1:9/x", vec![("host", "other.test")], large.as_str()),
        ("DELETE", "http://user:secret@localhost:9/x", vec![("connection", "close")], ""),
    ] {
        let request = || {
            let mut request = Request::builder().method(method).uri(url);
            for (name, value) in &headers {
                request = request.header(*name, *value);
            }
            request.body(Bytes::copy_from_slice(body.as_bytes())).unwrap()
        };
        let expected = received(&client, request(), false).await;
        assert_eq!(received(&client, request(), true).await, expected, "{method} {url}");
        assert!(!expected.contains("secret") && expected.contains("host: "), "{expected}");
    }
}

/// Starts a server that accepts all connections, responds to the first `answered` requests, keeps
/// their connections open and ignores later requests; returns its URL.
async fn hanging(answered: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    Tasks::attend(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if held.len() < answered {
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                stream.write_all(answer).await.unwrap();
            }
            held.push(stream);
        }
    });
    url
}

fn to(url: &str) -> Request<Bytes> {
    Request::get(url).body(Bytes::new()).unwrap()
}

#[tokio::test]
async fn http_client_leaves_places_to_other_organizations() {
    let client = Builder::new(None).places(Places::new(8)).build();
    let [greedy, other]: [orrery_domain::ids::OrganizationId; 2] =
        [orrery_runtime::new_id(), orrery_runtime::new_id()];
    let url = hanging(0).await;
    let mut held = futures_util::stream::FuturesUnordered::new();
    for is_open in [true, false].repeat(10) {
        let (client, url) = (client.clone(), url.clone());
        held.push(turns::on_behalf_of(greedy, async move {
            match is_open {
                true => drop(client.open(to(&url)).await),
                false => drop(client.send_when_able(to(&url), &LIMITS).await),
            }
        }));
    }
    let hang = async { while futures_util::StreamExt::next(&mut held).await.is_some() {} };
    let served = turns::on_behalf_of(other, async {
        while client.places.used() < 4 {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            let own = hanging(1).await;
            let answer = client.send(to(&own), &LIMITS).await.unwrap();
            assert_eq!(&answer.body[..], b"hi");
        }
    });
    tokio::select! {
        () = hang => panic!("a server that does not answer ended a request"),
        () = served => {}
    }
    assert_eq!(client.places.used(), 4, "half of the places is the most for one of them");
    drop(held);
    assert_eq!(client.places.used(), 0, "cancelled requests give their places back");
}

#[tokio::test]
async fn http_client_time_limit_excludes_wait_for_slot() {
    let client = Builder::new(None).places(Places::new(1)).build();
    let held = client.places.take().await;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    let url = format!("http://127.0.0.1:{}/", server(answer, 1).await);
    let limits = Limits { total: Duration::from_secs(5), ..LIMITS };
    let release = async {
        // The wait is longer than the request's time limit, which has not started yet.
        tokio::time::sleep(Duration::from_secs(6)).await;
        drop(held);
    };
    let (answer, ()) = tokio::join!(client.send(to(&url), &limits), release);
    assert_eq!(&answer.unwrap().body[..], b"hi");
}

#[tokio::test]
async fn http_client_closes_idle_connections_for_new_ones() {
    let client = Builder::new(None).places(Places::new(2)).build();
    let mut urls = Vec::new();
    for _ in 0..9 {
        urls.push(hanging(1).await);
    }
    for url in &urls {
        client.send(to(url), &LIMITS).await.unwrap();
    }
    assert!(client.places.open_now() <= 3, "{}", client.places.open_now());
}
