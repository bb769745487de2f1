//! The `Date` header of responses. Hyper's own implementation panics after the year 9999, which
//! would break every response.

use std::cell::RefCell;
use std::sync::LazyLock;

use hyper::header::HeaderValue;

use orrery_runtime::Clock;

static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::system);

thread_local! {
    /// The date header that this thread wrote last, and the second for which it was written.
    static LAST: RefCell<Option<(i64, HeaderValue)>> = const { RefCell::new(None) };
}

/// Returns the current time as a header value.
pub(crate) fn now() -> HeaderValue {
    let now = CLOCK.now();
    let second = now.unix_seconds();
    LAST.with_borrow_mut(|last| match last {
        Some((written, value)) if *written == second => value.clone(),
        _ => {
            let value = HeaderValue::try_from(now.http_date());
            let value = value.unwrap_or(HeaderValue::from_static(""));
            *last = Some((second, value.clone()));
            value
        }
    })
}
