//! What has changed in the organization, for lists that follow it: which topics, and nothing of what they
//! hold. A list that hears of a change reads itself again.
//!
//! A client that comes again has missed an unknown number of changes: it reads everything again first.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::doc::{Doc, Kind, Param, ResponseDoc};
use super::events::over;
use super::{Context, Services};
use crate::domain::ids::OrganizationId;
use crate::http::sse::{self, Event};
use crate::http::{self, Response};
use crate::storage::{Key, Table, Watch};

/// Between two events of one client.
const PAUSE: Duration = Duration::from_secs(1);
/// When a client that was refused comes again.
const AGAIN: Duration = Duration::from_secs(60);

/// What can be followed, with the tables whose rows begin with the organization.
const TOPICS: [(&str, &[Table]); 4] = [
    ("runs", &[Table::Standing]),
    ("webhooks", &[Table::DeliveryStanding, Table::WebhookEndpoint]),
    ("files", &[Table::File]),
    ("status", &[Table::Execution, Table::DeliveryStanding]),
];

fn topics() -> Vec<&'static str> {
    TOPICS.iter().map(|(topic, _)| *topic).collect()
}

pub const FOLLOW: Doc = Doc {
    query: &[Param::new("topics", Kind::ListOf(topics), "Any of these; without it, all")],
    responses: &[
        ResponseDoc::events(
            200,
            "Server-sent events `changed` with the `topics` that have changed",
        ),
        ResponseDoc::error(429, "Too many clients follow"),
    ],
    ..Doc::new("dashboard", "follow_changes", "Follow what changes in the organization")
};

/// `GET /events?topics=`
pub async fn follow(context: Context) -> Result<Response, http::Error> {
    let grant = context.grant()?;
    let asked = chosen(context.request.query.get("topics"))?;
    let services = Arc::clone(&context.services);
    let (of, prefixes) = prefixes(grant.organization, &asked);
    let watch = services.store.watch(prefixes);
    let watch = watch.ok_or_else(|| {
        http::Error::too_many("too many pages follow: try again after Retry-After seconds", AGAIN)
    })?;
    let over = Box::pin(over(Arc::clone(&services), grant));
    let follower = Follower { services, watch, of, over, number: 0 };
    let events = futures_util::stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((vec![event], follower))
    });
    Ok(sse::response(events))
}

fn chosen(list: Option<&str>) -> Result<Vec<&'static str>, http::Error> {
    let Some(list) = list else { return Ok(topics()) };
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    if let Some(unknown) = words.iter().find(|word| !topics().contains(word)) {
        let known = topics().join(", ");
        let message = format!("topics must be one or more of {known}, not '{unknown}'");
        return Err(http::Error::bad_request(message));
    }
    Ok(topics().into_iter().filter(|topic| words.contains(topic)).collect())
}

/// What to watch, and the topic of each prefix.
fn prefixes(organization: OrganizationId, asked: &[&'static str]) -> (Vec<&'static str>, Vec<Key>) {
    let asked = TOPICS.iter().filter(|(topic, _)| asked.contains(topic));
    let each = asked.flat_map(|(topic, tables)| tables.iter().map(|table| (*topic, *table)));
    each.map(|(topic, table)| (topic, Key::table(table).id(organization))).unzip()
}

/// A client that follows.
struct Follower {
    services: Arc<Services>,
    watch: Watch,
    of: Vec<&'static str>,
    over: BoxFuture<'static, ()>,
    number: u64,
}

impl Follower {
    /// The next event. `None` when the service stops or the session ends.
    async fn next(&mut self) -> Option<Event> {
        let first = self.number == 0;
        let changed = async {
            if !first {
                tokio::time::sleep(PAUSE).await;
            }
            self.watch.changed().await
        };
        let changed = tokio::select! {
            changed = changed => changed,
            () = self.services.engine.stopping() => return None,
            () = &mut self.over => return None,
        };
        self.number += 1;
        let mut topics: Vec<&str> =
            changed.into_iter().filter_map(|at| self.of.get(at).copied()).collect();
        topics.dedup();
        let data = serde_json::json!({"topics": topics}).to_string();
        Some(Event { id: self.number.to_string(), name: "changed", data })
    }
}
