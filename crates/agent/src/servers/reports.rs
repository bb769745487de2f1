//! Handles notifications from a server: the progress of calls, and changes to the server's tools.
//! Only the latest progress of each call is retained; progress of an unknown call is dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use tokio::sync::watch;

/// Maximum length of a message, in characters.
const MESSAGE_CHARS_MAX: usize = 200;

/// The progress of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The progress from 0 to 100; `None` if the server does not report a total.
    pub percent: Option<u8>,
    /// The server's message.
    pub message: Option<String>,
}

/// The calls in flight by progress token, and whether the tools have changed; clones share both.
#[derive(Debug, Clone, Default)]
pub(super) struct Reports {
    calls: Arc<Mutex<Calls>>,
    has_new_tools: Arc<AtomicBool>,
}

type Calls = HashMap<ProgressToken, watch::Sender<Option<Report>>>;

/// The registration of a call for progress reports. Dropping it ends the registration.
#[derive(Debug)]
pub(super) struct Listening {
    reports: Reports,
    token: ProgressToken,
}

impl Reports {
    /// Sends the reports for this token to `heard` from now on.
    pub(super) fn listen(
        &self,
        token: ProgressToken,
        heard: watch::Sender<Option<Report>>,
    ) -> Listening {
        self.with(|calls| calls.insert(token.clone(), heard));
        Listening { reports: self.clone(), token }
    }

    /// Handles a progress notification from a server.
    pub(super) fn take(&self, said: &ProgressNotificationParam) {
        self.with(|calls| {
            if let Some(heard) = calls.get(&said.progress_token) {
                heard.send_replace(Some(read(said)));
            }
        });
    }

    /// Records that the server's tools have changed.
    pub(super) fn tools_changed(&self) {
        self.has_new_tools.store(true, Ordering::Relaxed);
    }

    /// Returns whether the tools have changed since the last call of this function.
    pub(super) fn take_tools_changed(&self) -> bool {
        self.has_new_tools.swap(false, Ordering::Relaxed)
    }

    /// Returns whether both values belong to the same connection.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.calls, &other.calls)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Calls) -> T) -> T {
        act(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.reports.with(|calls| calls.remove(&self.token));
    }
}

fn read(said: &ProgressNotificationParam) -> Report {
    let share = said.total.filter(|total| *total > 0.0).map(|total| said.progress / total);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, and within 0 to 100"
    )]
    let percent = share
        .filter(|share| share.is_finite())
        .map(|share| (share * 100.0).round().clamp(0.0, 100.0) as u8);
    let message = said.message.as_deref().filter(|message| !message.is_empty());
    let message = message.map(|message| message.chars().take(MESSAGE_CHARS_MAX).collect());
    Report { percent, message }
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;
    use serde_json::{Value, json};

    use super::*;

    fn said(fields: &Value) -> ProgressNotificationParam {
        serde_json::from_value(fields.clone()).unwrap()
    }

    #[test]
    fn mcp_reports_reach_the_call_that_waits() {
        let (reports, (heard, newest)) = (Reports::default(), watch::channel(None));
        let listening = reports.listen(ProgressToken(NumberOrString::Number(7)), heard);
        reports.take(&said(&json!({"progressToken": 8, "progress": 1, "total": 2})));
        assert_eq!(*newest.borrow(), None);
        let cases = [
            (json!({"progress": 1, "total": 3, "message": "a third"}), Some(33), Some("a third")),
            (json!({"progress": 9, "total": 3}), Some(100), None),
            (json!({"progress": -9, "total": 3, "message": ""}), Some(0), None),
            (json!({"progress": 4, "total": 0}), None, None),
            (json!({"progress": 4}), None, None),
        ];
        for (mut fields, percent, message) in cases {
            fields["progressToken"] = json!(7);
            reports.take(&said(&fields));
            let expected = Report { percent, message: message.map(str::to_owned) };
            assert_eq!(newest.borrow().as_ref(), Some(&expected), "{fields}");
        }
        let long = json!({"progressToken": 7, "progress": 1, "message": "é".repeat(9000)});
        reports.take(&said(&long));
        let shown = newest.borrow().clone().unwrap().message.unwrap();
        assert_eq!(shown.chars().count(), MESSAGE_CHARS_MAX);
        drop(listening);
        assert!(newest.has_changed().is_err(), "nothing is left of the call");
    }
}
