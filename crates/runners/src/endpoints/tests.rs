//! Tests the selection of endpoints, and failover if an endpoint does not respond. No network is
//! used: responses are a function of the URL.

use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use super::*;

fn addresses(urls: &[(&str, u32, Option<usize>)]) -> Vec<Address> {
    let address = |(url, weight, concurrency): &(&str, u32, Option<usize>)| Address {
        url: (*url).to_owned(),
        weight: *weight,
        concurrency: *concurrency,
    };
    urls.iter().map(address).collect()
}

fn pool_in(registry: &Registry, urls: &[(&str, u32, Option<usize>)], is_probed: bool) -> Pool {
    let addresses = addresses(urls);
    let settings = Settings {
        model: "m",
        addresses: &addresses,
        patience: Duration::from_secs(20),
        is_probed,
        starts_unknown: false,
        is_strict: false,
        server: None,
    };
    Pool::new(&settings, registry)
}

fn pool(urls: &[(&str, u32, Option<usize>)]) -> Pool {
    pool_in(&Registry::default(), urls, false)
}

/// Returns a lease of an endpoint; panics if no endpoint is free.
fn picked(pool: &Pool) -> Lease {
    let Pick::Lease(lease) = pool.pick(&[]) else { panic!("no endpoint is free") };
    lease
}

fn refused() -> client::Error {
    client::Error::Connection(connector::Error::Connect {
        address: ([127, 0, 0, 1], 1).into(),
        reason: "refused".to_owned(),
    })
}

fn broken() -> client::Error {
    client::Error::Protocol { reason: "reset".to_owned() }
}

/// Sends a request; each endpoint responds according to `answer`. Returns the last response and the
/// endpoints that received the request.
async fn ask(
    pool: &Pool,
    answer: impl Fn(&str) -> Result<u16, client::Error>,
) -> (Result<u16, client::Error>, Vec<String>) {
    let asked = Mutex::new(Vec::new());
    let request = |url: &str| {
        asked.lock().unwrap().push(url.to_owned());
        Ok::<_, Infallible>(Request::get(url).body(Bytes::new()).unwrap())
    };
    let send = |request: Request<Bytes>| {
        let host = request.uri().host().unwrap().to_owned();
        std::future::ready(answer(&host))
    };
    let status = |status: &u16| StatusCode::from_u16(*status).unwrap();
    let answer = match pool.exchange(request, send, status).await {
        Ok((status, mut lease)) => {
            lease.note(None);
            Ok(status)
        }
        Err(Error::Client(error)) => Err(error),
        Err(Error::Unmade(never)) => match never {},
        Err(Error::Unstarted(reason)) => panic!("{reason}"),
    };
    (answer, asked.into_inner().unwrap())
}

#[test]
fn endpoints_get_requests_by_weight() {
    let pool = pool(&[("http://a", 1, None), ("http://b", 3, None)]);
    let held: Vec<Lease> = (0..8).map(|_| picked(&pool)).collect();
    let of_b = held.iter().filter(|lease| lease.url() == "http://b").count();
    assert_eq!(of_b, 6, "requests in flight at b");
    drop(held);
    let turns: Vec<String> = (0..40).map(|_| picked(&pool).url().into_owned()).collect();
    let of_b = turns.iter().filter(|url| *url == "http://b").count();
    assert!((29..=31).contains(&of_b), "sequential requests to b: {of_b}");
    // An idle endpoint receives the next request, regardless of the turns.
    let one = picked(&pool);
    assert_ne!(picked(&pool).url(), one.url());
}

#[tokio::test]
async fn endpoint_concurrency_is_enforced_by_waiting() {
    let pool = pool(&[("http://a", 1, Some(1)), ("http://b", 1, Some(2))]);
    let mut held: Vec<Lease> = (0..3).map(|_| picked(&pool)).collect();
    assert!(matches!(pool.pick(&[]), Pick::Full));
    let waiting = pool.lease(&[]);
    tokio::pin!(waiting);
    assert!(futures_util::poll!(&mut waiting).is_pending());
    let free = held.pop().unwrap();
    let url = free.url().into_owned();
    drop(free);
    assert_eq!(waiting.await.unwrap().url(), url);
}

#[tokio::test]
async fn request_fails_over_only_if_it_had_no_effect() {
    type Answer = fn(&str) -> Result<u16, client::Error>;
    let cases: [(Answer, bool, usize); 7] = [
        (|host| if host == "a" { Err(refused()) } else { Ok(200) }, true, 2),
        (|host| if host == "a" { Ok(503) } else { Ok(200) }, true, 2),
        (|host| if host == "a" { Ok(500) } else { Ok(200) }, true, 1),
        (|host| if host == "a" { Ok(429) } else { Ok(200) }, true, 1),
        (|host| if host == "a" { Err(broken()) } else { Ok(200) }, false, 1),
        (|_| Err(refused()), false, 3),
        (|_| Ok(502), true, 3),
    ];
    for (index, (answer, is_answered, tries)) in cases.into_iter().enumerate() {
        let urls = ["http://a", "http://b", "http://c", "http://d"].map(|url| (url, 1, None));
        let (came, asked) = ask(&pool(&urls), answer).await;
        assert_eq!((came.is_ok(), asked.len()), (is_answered, tries), "{index}: {came:?}");
        assert_eq!(asked[0], "http://a");
        assert!(asked.windows(2).all(|two| two[0] != two[1]), "{asked:?}");
    }
    let (came, asked) = ask(&pool(&[("http://a", 1, None)]), |_| Ok(503)).await;
    assert_eq!((came.unwrap(), asked.len()), (503, 1), "there is no other endpoint");
}

#[tokio::test]
async fn endpoint_that_does_not_answer_leaves_rotation() {
    let pool = pool(&[("http://a", 1, None), ("http://b", 1, None)]);
    let answer = |host: &str| if host == "a" { Err(refused()) } else { Ok(200) };
    for _ in 0..6 {
        assert_eq!(ask(&pool, answer).await.0.unwrap(), 200);
    }
    assert_eq!(pool.states()[0].standing, Standing::Ejected);
    let count = AtomicUsize::new(0);
    for _ in 0..10 {
        let counted = |host: &str| {
            count.fetch_add(usize::from(host == "a"), Ordering::Relaxed);
            answer(host)
        };
        assert_eq!(ask(&pool, counted).await.1, ["http://b"]);
    }
    assert_eq!(count.into_inner(), 0);
    assert_eq!(pool.health(), Health::Good);
    // If all endpoints are out of rotation, requests still try them.
    for _ in 0..3 {
        assert!(ask(&pool, |_| Err(refused())).await.0.is_err());
    }
    let Health::Failing(reason) = pool.health() else { panic!("all endpoints are out") };
    assert!(reason.starts_with("none of its 2 servers answers; a: it did not answer"), "{reason}");
    assert_eq!(ask(&pool, |_| Ok(200)).await.0.unwrap(), 200);
    assert_eq!(pool.health(), Health::Good);
}

#[tokio::test]
async fn probes_remove_and_restore_endpoints() {
    let urls = [("http://a", 1, None), ("http://b", 1, None)];
    let pool = pool_in(&Registry::default(), &urls, true);
    let gone = |url: String| async move {
        let is_gone = url == "http://a";
        if is_gone { Readiness::Unready("gone".to_owned()) } else { Readiness::Ready }
    };
    pool.probe(gone).await;
    pool.probe(gone).await;
    assert_eq!(pool.states()[0].standing, Standing::Ejected);
    let leases: Vec<Lease> = (0..4).map(|_| picked(&pool)).collect();
    assert!(leases.iter().all(|lease| lease.url() == "http://b"));
    drop(leases);
    pool.probe_now("http://a", |_| async { Readiness::Ready }).await;
    let first = picked(&pool);
    assert_eq!(first.url(), "http://a", "a is on trial");
    let others: Vec<Lease> = (0..4).map(|_| picked(&pool)).collect();
    assert!(others.iter().all(|lease| lease.url() == "http://b"), "only one request tries a");
    let mut first = first;
    first.note(None);
    assert_eq!(picked(&pool).url(), "http://a");
}

#[test]
fn reload_keeps_the_state_of_an_endpoint_that_stays() {
    let registry = Registry::default();
    let before = pool_in(&registry, &[("http://a", 1, None), ("http://b", 1, None)], false);
    let held: Vec<Lease> = (0..2).map(|_| picked(&before)).collect();
    let after = pool_in(&registry, &[("http://b", 1, Some(1)), ("http://c", 1, None)], false);
    drop(before);
    assert_eq!(after.states()[0].in_flight, 1, "b counts earlier requests");
    let next: Vec<Lease> = (0..3).map(|_| picked(&after)).collect();
    assert!(next.iter().all(|lease| lease.url() == "http://c"), "b is at its limit");
    drop(held);
    assert_eq!(picked(&after).url(), "http://b");
}

/// The engine drops a run on timeout.
#[tokio::test(start_paused = true)]
async fn endpoint_that_hangs_leaves_rotation() {
    let pool = pool(&[("http://a", 1, None)]);
    for _ in 0..3 {
        let lease = picked(&pool);
        tokio::time::advance(Duration::from_secs(20)).await;
        drop(lease);
    }
    let reason = "it did not answer the last 3 times: no answer within 20s";
    assert_eq!(pool.health(), Health::Failing(reason.to_owned()));
    let cancelled = pool_in(&Registry::default(), &[("http://a", 1, None)], false);
    for _ in 0..3 {
        drop(picked(&cancelled));
    }
    assert_eq!(cancelled.health(), Health::Good, "a cancelled run is no miss");
}
