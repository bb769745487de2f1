//! Requests that arrive while the service is still reading unfinished work at startup: the service
//! must count each request once, and complete all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use crate::leftovers::check_none;
use crate::support::eventually;
use crate::support::service::Setup;

const SENDERS: usize = 8;
const STARTS: usize = 4;
/// Predictions accepted after each start.
const TAKEN: usize = 40;

/// Creates predictions until `is_over`, starting before the service listens.
fn send(setup: &Setup, key: &str, is_over: &AtomicBool, taken: &AtomicUsize) {
    let body = json!({"model": "text-template", "version": "1", "input": {"template": "x"}});
    let body = body.to_string();
    let mut client = setup.client(key);
    while !is_over.load(Ordering::SeqCst) {
        match client.post("/v1/prediction", &[], &body) {
            Ok(answer) => {
                assert_eq!(answer.status(), 200, "{}", answer.text());
                taken.fetch_add(1, Ordering::SeqCst);
            }
            Err(_refused) => std::thread::yield_now(),
        }
    }
}

#[test]
fn work_sent_during_a_start_is_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let mut service = setup.start();
    let key = setup.create_key();
    for _ in 0..STARTS {
        service.kill_and_keep();
        let (is_over, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..SENDERS {
                scope.spawn(|| send(&setup, &key, &is_over, &taken));
            }
            service = setup.start();
            eventually("predictions are taken", || {
                (taken.load(Ordering::SeqCst) >= TAKEN).then_some(())
            });
            is_over.store(true, Ordering::SeqCst);
        });
        // If the queue were counted too high, it would stay so until the next start.
        eventually("nothing runs", || (setup.unfinished() == Some(0.0)).then_some(()));
    }
    check_none(&setup, service);
}
