//! Tests of the pool against servers that keep, close and cut connections, all on loopback.

use std::io;
use std::net::TcpStream as Socket;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::{Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, mpsc};

use super::*;
use crate::client::{Builder, Client, Overflow};
use crate::connector::{Resolve, Resolving};

const LIMITS: Limits =
    Limits { total: Duration::from_secs(30), answer_bytes: 4 << 20, overflow: Overflow::Fail };
const HI: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
/// Long enough for any call in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts connections and requests.
#[derive(Clone, Default)]
struct Seen {
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Seen {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the path of the next request; `None` if the client has closed the connection.
    async fn request(&self, stream: &mut TcpStream) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await.ok()? == 0 {
                return None;
            }
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        String::from_utf8(head).ok()?.split(' ').nth(1).map(str::to_owned)
    }
}

/// Starts a server that runs `serve` for each connection; returns its URL.
async fn server<F>(serve: impl Fn(Seen, TcpStream) -> F + Send + 'static) -> (String, Seen)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let seen = Seen::default();
    let own = seen.clone();
    let tasks = Tasks::new();
    tasks.clone().spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            own.connections.fetch_add(1, Ordering::SeqCst);
            tasks.spawn(serve(own.clone(), stream));
        }
    });
    (url, seen)
}

/// Responds to every request with [`HI`].
async fn say_hi(seen: Seen, mut stream: TcpStream) {
    while seen.request(&mut stream).await.is_some() {
        stream.write_all(HI).await.unwrap();
    }
}

async fn get(client: &Client, url: &str) -> Result<Response, Error> {
    client.send(Request::get(url).body(Bytes::new()).unwrap(), &LIMITS).await
}

/// Returns the number of idle connections in the pool of `client`.
fn idle(client: &Client) -> usize {
    client.pool.lock().idle.values().map(Vec::len).sum()
}

#[tokio::test]
async fn pool_reuses_connection_for_sequential_calls() {
    let (url, seen) = server(say_hi).await;
    let client = Client::trusted();
    for _ in 0..5 {
        assert_eq!(get(&client, &url).await.unwrap().body, "hi");
        assert_eq!(idle(&client), 1);
    }
    let clone = client.clone();
    get(&clone, &url).await.unwrap();
    assert_eq!((seen.connections(), seen.requests()), (1, 6));
    // Another name of the same host is another pool key.
    get(&client, &url.replace("127.0.0.1", "localhost")).await.unwrap();
    assert_eq!((seen.connections(), idle(&client)), (2, 2));
}

#[tokio::test]
async fn pool_opens_one_connection_per_concurrent_call_and_keeps_them() {
    const CALLS: usize = 40;
    // The server responds only when all requests have arrived.
    let barrier = Arc::new(Barrier::new(CALLS));
    let (url, seen) = server(move |seen, mut stream| {
        let barrier = Arc::clone(&barrier);
        async move {
            while seen.request(&mut stream).await.is_some() {
                barrier.wait().await;
                stream.write_all(HI).await.unwrap();
            }
        }
    })
    .await;
    let client = Client::trusted();
    for round in 1..=3 {
        let answers = join_all((0..CALLS).map(|_| get(&client, &url))).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap().status == StatusCode::OK));
        assert_eq!((seen.connections(), seen.requests()), (CALLS, CALLS * round));
        assert_eq!(idle(&client), CALLS);
    }
}

/// Opens a connection to `listener`, idle in the pool of `client`. Returns the client's socket,
/// which also keeps the connection open, and the server's end.
async fn kept(client: &Client, listener: &TcpListener) -> (Socket, TcpStream) {
    let address = listener.local_addr().unwrap();
    let stream = TcpStream::connect(address).await.unwrap().into_std().unwrap();
    let socket = stream.try_clone().unwrap();
    let (end, _) = listener.accept().await.unwrap();
    let authority = address.to_string().parse().unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    client.pool.put(Connection::new(stream, authority).await.unwrap());
    (socket, end)
}

/// Waits until data or the end of the stream has arrived at `socket` and the runtime has been
/// notified.
async fn see_arrival(socket: &Socket) {
    while socket.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        tokio::task::yield_now().await;
    }
    // Each yield makes the runtime poll for events, because no other task is ready.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Accepts one connection and responds to one request on it.
async fn answer_one(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    Seen::default().request(&mut stream).await.unwrap();
    stream.write_all(HI).await.unwrap();
    stream
}

#[tokio::test]
async fn pool_replaces_connections_closed_while_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    for closed in [1, CLOSED_MAX, CLOSED_MAX + 1, CLOSED_MAX + 10] {
        let client = Client::trusted();
        for _ in 0..closed {
            let (socket, end) = kept(&client, &listener).await;
            drop(end);
            see_arrival(&socket).await;
        }
        assert_eq!(idle(&client), closed);
        let (answer, _end) = tokio::join!(get(&client, &url), answer_one(&listener));
        assert_eq!(answer.unwrap().body, "hi");
        assert_eq!(idle(&client), 1 + closed.saturating_sub(CLOSED_MAX));
    }
}

#[tokio::test]
async fn pool_replaces_connection_on_which_server_spoke_first() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let client = Client::trusted();
    let (socket, mut end) = kept(&client, &listener).await;
    end.write_all(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    see_arrival(&socket).await;
    drop(socket);
    let (answer, _end) = tokio::join!(get(&client, &url), answer_one(&listener));
    assert_eq!(answer.unwrap().status, StatusCode::OK);
    // Nothing was sent on the first connection.
    assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
}

/// Resolves the first name immediately, and later names when permitted.
#[derive(Debug, Default)]
struct Slow {
    asked: AtomicUsize,
    allowed: tokio::sync::Notify,
}

impl Resolve for Slow {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            if self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
                self.allowed.notified().await;
            }
            Ok(vec![std::net::Ipv4Addr::LOCALHOST.into()])
        })
    }

    fn resolve_here<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        self.resolve(name)
    }
}

#[tokio::test]
async fn pool_gives_returned_connection_to_call_that_waits_for_new_one() {
    let (url, seen) = server(say_hi).await;
    let url = url.replace("127.0.0.1", "slow.test");
    let slow = Arc::<Slow>::default();
    let client = Builder::new(None).resolver(Arc::clone(&slow) as Arc<dyn Resolve>).build();
    let (first, second) = tokio::join!(get(&client, &url), get(&client, &url));
    assert_eq!((first.unwrap().body, second.unwrap().body), ("hi".into(), "hi".into()));
    assert_eq!((seen.connections(), slow.asked.load(Ordering::SeqCst)), (1, 2));
    assert!(client.pool.lock().waiting.is_empty());
    // The first connection's opening continues in the background, for the next call.
    slow.allowed.notify_one();
    while idle(&client) < 2 {
        tokio::task::yield_now().await;
    }
    // A call that is dropped while it waits leaves nothing behind.
    client.pool.lock().idle.clear();
    tokio::select! {
        answer = get(&client, &url) => panic!("{answer:?}"),
        () = tokio::task::yield_now() => {}
    }
    assert!(client.pool.lock().waiting.is_empty());
}

#[tokio::test]
async fn request_is_not_sent_again_after_peer_has_read_it() {
    let (url, seen) = server(|seen, mut stream| async move {
        seen.request(&mut stream).await.unwrap();
        stream.write_all(HI).await.unwrap();
        // Reads another request and sends no response.
        let _path = seen.request(&mut stream).await;
    })
    .await;
    let client = Client::trusted();
    get(&client, &url).await.unwrap();
    let error = get(&client, &url).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert_eq!((seen.connections(), seen.requests(), idle(&client)), (1, 2, 0));
    get(&client, &url).await.unwrap();
    assert_eq!((seen.connections(), seen.requests()), (2, 3));
}

/// Number of chunks of a large response.
const CHUNKS: usize = 3000;

/// Responds by path: the body is delimited by a length, by chunks, or by the end of the connection.
async fn say_much(seen: Seen, mut stream: TcpStream) {
    while let Some(path) = seen.request(&mut stream).await {
        let head = match path.as_str() {
            "/length" => format!("Content-Length: {}", CHUNKS * 100),
            "/chunks" => "Transfer-Encoding: chunked".to_owned(),
            _ => "X-Nothing: 0".to_owned(),
        };
        let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        for number in 0..CHUNKS {
            let chunk = match path.as_str() {
                "/chunks" => format!("64\r\n{number:0100}\r\n"),
                _ => format!("{number:0100}"),
            };
            stream.write_all(chunk.as_bytes()).await.unwrap();
        }
        match path.as_str() {
            "/chunks" => stream.write_all(b"0\r\n\r\n").await.unwrap(),
            "/length" => {}
            _ => return,
        }
    }
}

async fn read_large_bodies() {
    let whole: String = (0..CHUNKS).map(|number| format!("{number:0100}")).collect();
    let (url, seen) = server(say_much).await;
    let client = Client::trusted();
    for (path, kept) in [("length", 1), ("chunks", 1), ("end", 0), ("chunks", 1), ("length", 1)] {
        let answer = get(&client, &format!("{url}{path}")).await.unwrap();
        assert!(answer.body == whole.as_bytes() && !answer.truncated, "{path}");
        assert_eq!(idle(&client), kept, "{path}");
    }
    assert_eq!(seen.connections(), 2, "only the end of a connection ends it");
}

#[tokio::test]
async fn exchange_reads_large_bodies_of_any_framing() {
    tokio::time::timeout(PATIENCE, read_large_bodies()).await.unwrap();
}

/// On threads other than the workers, a task whose budget is exhausted is woken immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn exchange_reads_large_bodies_outside_worker_threads() {
    tokio::time::timeout(PATIENCE, read_large_bodies()).await.unwrap();
}

#[tokio::test]
async fn exchange_not_fully_read_keeps_no_connection() {
    let (url, seen) = server(|seen, mut stream| async move {
        let path = seen.request(&mut stream).await.unwrap();
        let answer: &[u8] = match path.as_str() {
            "/close" => b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
            "/short" => b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n0123456789",
            _ => b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n0123456789abcdef",
        };
        stream.write_all(answer).await.unwrap();
        if path != "/short" {
            let _closed = stream.read(&mut [0]).await;
        }
    })
    .await;
    let client = Client::trusted();
    let cut = Limits { answer_bytes: 10, overflow: Overflow::Truncate, ..LIMITS };
    let request = |path: &str| Request::get(format!("{url}{path}")).body(Bytes::new()).unwrap();
    let answer = client.send(request("long"), &cut).await.unwrap();
    assert_eq!((&answer.body[..], answer.truncated), (&b"0123456789"[..], true));
    assert_eq!(idle(&client), 0, "truncated");
    let fail = Limits { overflow: Overflow::Fail, ..cut };
    assert!(matches!(client.send(request("long"), &fail).await, Err(Error::TooLarge { .. })));
    assert_eq!(idle(&client), 0, "too large");
    let short = client.send(request("short"), &LIMITS).await;
    assert!(matches!(short, Err(Error::Protocol { .. })));
    assert_eq!(idle(&client), 0, "cut off");
    assert_eq!(client.send(request("close"), &LIMITS).await.unwrap().body, "hi");
    assert_eq!((idle(&client), seen.connections()), (0, 4), "not to be kept");
}

#[tokio::test]
async fn call_dropped_or_timed_out_closes_its_connection() {
    let (news, mut heard) = mpsc::unbounded_channel();
    let (url, _seen) = server(move |seen, mut stream| {
        let news = news.clone();
        async move {
            seen.request(&mut stream).await.unwrap();
            stream.write_all(HI).await.unwrap();
            seen.request(&mut stream).await.unwrap();
            news.send("a request").unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap_or_default(), 0);
            news.send("its end").unwrap();
        }
    })
    .await;
    let client = Client::trusted();
    get(&client, &url).await.unwrap();
    tokio::select! {
        answer = get(&client, &url) => panic!("{answer:?}"),
        heard = heard.recv() => assert_eq!(heard, Some("a request")),
    }
    assert_eq!(heard.recv().await, Some("its end"));
    get(&client, &url).await.unwrap();
    let limits = Limits { total: Duration::from_millis(50), ..LIMITS };
    let late = client.send(Request::get(&url).body(Bytes::new()).unwrap(), &limits).await;
    assert_eq!(late.unwrap_err().to_string(), "no answer within 50ms");
    assert_eq!(heard.recv().await, Some("a request"));
    assert_eq!(heard.recv().await, Some("its end"));
    assert_eq!(idle(&client), 0);
}

#[tokio::test]
async fn pool_keeps_no_more_connections_than_its_limit() {
    let connector = Client::trusted().pool.connector.clone();
    let pool = Arc::new(Pool::new(connector, 2));
    let mut client = Client::trusted();
    client.pool = pool;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut ends = Vec::new();
    for _ in 0..3 {
        ends.push(kept(&client, &listener).await.1);
    }
    assert_eq!(idle(&client), 2);
    // The pool did not keep the connection that was returned last.
    assert_eq!(ends[2].read(&mut [0]).await.unwrap(), 0);
}

/// Lets the sweeper run until `left` connections are idle; returns the number of sweeps.
async fn looks_until(client: &Client, left: usize) -> u32 {
    let mut looks = 0;
    while idle(client) != left {
        tokio::time::sleep(SWEEP_EVERY).await;
        looks += 1;
        assert!(looks < 100, "{} are left", idle(client));
    }
    looks
}

#[tokio::test]
async fn sweeper_drops_old_and_closed_connections_and_ends() {
    const KEPT: usize = 3 * SWEEP_BATCH + 1;
    let client = Client::trusted();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut connections = Vec::new();
    for _ in 0..KEPT {
        connections.push(kept(&client, &listener).await);
    }
    tokio::time::pause();
    // The peer closes every third connection.
    let mut open = Vec::new();
    for (number, (socket, end)) in connections.into_iter().enumerate() {
        if number % 3 == 0 {
            drop(end);
            see_arrival(&socket).await;
        } else {
            open.push(end);
        }
    }
    assert!(looks_until(&client, open.len()).await <= 2);
    let looks = looks_until(&client, 0).await;
    let expected = u32::try_from(KEEP_IDLE.as_secs() / SWEEP_EVERY.as_secs()).unwrap();
    assert!((expected - 2..=expected + 1).contains(&looks), "{looks} looks");
    for end in &mut open {
        assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
    }
    let has_ended = || !client.pool.lock().has_sweeper && client.pool.lock().idle.is_empty();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(has_ended());
    // The next idle connection starts a new sweeper.
    let (_socket, _end) = kept(&client, &listener).await;
    assert!(!has_ended());
    looks_until(&client, 0).await;
}

#[tokio::test]
async fn pool_never_returns_expired_connection() {
    let client = Client::trusted();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (socket, mut end) = kept(&client, &listener).await;
    drop(socket);
    tokio::time::pause();
    // The sweeper has not run yet.
    tokio::time::advance(KEEP_IDLE).await;
    let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
    assert!(client.pool.take(&authority).is_none());
    assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exchange_loses_no_wake_up_under_load() {
    const TASKS: usize = 64;
    const CALLS: usize = 200;
    let (url, seen) = server(|seen, mut stream| async move {
        let answer: &[u8] =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
        let mut at = 0;
        stream.set_nodelay(true).unwrap();
        while seen.request(&mut stream).await.is_some() {
            // Cuts the response at a different offset each time: in the head, in the body, before
            // its end.
            at = (at + 7) % (answer.len() - 1);
            let (first, second) = answer.split_at(at + 1);
            stream.write_all(first).await.unwrap();
            for _ in 0..at % 4 {
                tokio::task::yield_now().await;
            }
            stream.write_all(second).await.unwrap();
        }
    })
    .await;
    let client = Client::trusted();
    let tasks = Tasks::new();
    let calling: Vec<_> = (0..TASKS)
        .map(|_| {
            let (client, url) = (client.clone(), url.clone());
            tasks.spawn(async move {
                for _ in 0..CALLS {
                    assert_eq!(get(&client, &url).await.unwrap().body, "hi");
                }
            })
        })
        .collect();
    let ended = tokio::time::timeout(PATIENCE, join_all(calling)).await.expect("all are answered");
    assert!(ended.into_iter().all(|one| one.is_ok()));
    assert_eq!(seen.requests(), TASKS * CALLS);
    // If a call that waits for a new connection gets another connection, the new connection stays
    // in the pool for the next call.
    assert!(seen.connections() < 2 * TASKS && idle(&client) == seen.connections());
}

#[test]
fn connection_of_one_runtime_serves_another_and_ends_with_its_own() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let (home, first, second) = (runtime(), runtime(), runtime());
    let (url, seen) = home.block_on(server(say_hi));
    let client = Client::trusted();
    for runtime in [&first, &second, &first, &second] {
        assert_eq!(runtime.block_on(get(&client, &url)).unwrap().body, "hi");
    }
    let (own, other) = (client.clone(), url.clone());
    let on_worker = second.spawn(async move { get(&own, &other).await.map(|answer| answer.body) });
    assert_eq!(second.block_on(on_worker).unwrap().unwrap(), "hi");
    assert_eq!(seen.connections(), 1);
    // The connection and the sweeper of the dropped runtime are lost; both are replaced.
    drop(first);
    assert!(!client.pool.lock().has_sweeper);
    assert_eq!(second.block_on(get(&client, &url)).unwrap().body, "hi");
    assert_eq!((seen.connections(), client.pool.lock().has_sweeper), (2, true));
}
