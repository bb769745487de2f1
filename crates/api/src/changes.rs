//! Streams changes in the organization to the dashboard, so that lists stay current. An event names
//! only the topics that have changed, and the page then reloads the affected lists.
//!
//! The number of open streams per member is limited. A new stream above the limit replaces the
//! member's oldest stream, whose client is notified.
//!
//! A client that reconnects may have missed changes, so it first reloads all lists.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::doc::{Doc, Kind, Param, ResponseDoc};
use super::events::over;
use super::{Context, Services};
use orrery_domain::member::Member;
use orrery_http::Response;
use orrery_http::sse::{self, Event};
use orrery_records::members::StreamPlace;
use orrery_storage::{Key, Table, Watch};
use orrery_wire::service::Change;

/// Minimum time between two events of one client.
const PAUSE: Duration = Duration::from_secs(1);
/// Retry delay for a client whose stream was rejected or replaced.
const AGAIN: Duration = Duration::from_secs(60);

/// The topics, and the tables to watch for each topic. The keys in these tables start with the
/// organization.
const TOPICS: [(&str, &[Table]); 10] = [
    ("runs", &[Table::Standing]),
    ("webhooks", &[Table::DeliveryStanding, Table::WebhookEndpoint]),
    ("files", &[Table::File]),
    // Reserved; no event has this topic yet.
    ("needs", &[]),
    ("status", &[Table::Execution, Table::DeliveryStanding]),
    // This topic covers only created, deleted and renamed workflows.
    ("workflows", &[Table::WorkflowOf, Table::WorkflowSlug]),
    ("members", &[Table::Member, Table::LinkOf]),
    ("keys", &[Table::ApiKeyId]),
    ("secrets", &[Table::Secret]),
    ("balance", &[Table::Ledger]),
];

/// The topic for the member's own record, including permissions.
const SESSION: &str = "session";

fn topics() -> Vec<&'static str> {
    TOPICS.iter().map(|(topic, _)| *topic).chain([SESSION]).collect()
}

pub(crate) const FOLLOW: Doc = Doc {
    query: &[Param::new("topics", Kind::ListOf(topics), "The topics to follow. Defaults to all")],
    responses: &[
        ResponseDoc::events::<Change<'static>>(
            200,
            "Server-sent events `changed` with the `topics` that have changed; `replaced` with \
             `retry_after` is the last event of a member's oldest stream when a ninth is opened",
        ),
        ResponseDoc::error(429, "Too many open streams"),
    ],
    description: "Streams an event whenever something in the organization has changed, at most \
                  once a second, with the topics to read again. The stream ends with the session. \
                  A member can have 8 open streams: a ninth stream closes the oldest stream. An \
                  organization can have 256 open streams; a further stream returns 429 with \
                  `Retry-After`.",
    ..Doc::new("dashboard", "follow_changes", "Stream changes in the organization")
};

/// `GET /events?topics=`
pub(crate) async fn follow(context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let asked = chosen(context.request.query.get("topics"))?;
    let services = Arc::clone(&context.services);
    let visit = context.visit()?;
    let (of, prefixes) = prefixes(&visit.member, &asked);
    let watch = services.store.watch(prefixes);
    let too_many = || {
        crate::Error::too_many("too many open streams: try again after Retry-After seconds", AGAIN)
    };
    let watch = watch.ok_or_else(too_many)?;
    let place = services.members.follow(visit).ok_or_else(too_many)?;
    let over = Box::pin(over(Arc::clone(&services), grant));
    let follower = Follower { services, watch, of, over, place, number: 0 };
    let events = futures_util::stream::unfold(Some(follower), |follower| async move {
        let mut follower = follower?;
        let (event, is_last) = follower.next().await?;
        Some((vec![event], (!is_last).then_some(follower)))
    });
    Ok(sse::response(events))
}

fn chosen(list: Option<&str>) -> Result<Vec<&'static str>, crate::Error> {
    let Some(list) = list else { return Ok(topics()) };
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    if let Some(unknown) = words.iter().find(|word| !topics().contains(word)) {
        let known = topics().join(", ");
        let message = format!("topics must be one or more of {known}, not '{unknown}'");
        return Err(crate::Error::bad_request(message));
    }
    Ok(topics().into_iter().filter(|topic| words.contains(topic)).collect())
}

/// Returns the key prefixes to watch, and the topic of each prefix.
fn prefixes(member: &Member, asked: &[&'static str]) -> (Vec<&'static str>, Vec<Key>) {
    let of = |table| Key::table(table).id(member.organization);
    let listed = TOPICS.iter().filter(|(topic, _)| asked.contains(topic));
    let each = listed.flat_map(|(topic, tables)| tables.iter().map(|table| (*topic, of(*table))));
    let own = asked.contains(&SESSION).then(|| (SESSION, of(Table::Member).id(member.id)));
    each.chain(own).unzip()
}

/// A client of the stream.
struct Follower {
    services: Arc<Services>,
    watch: Watch,
    of: Vec<&'static str>,
    over: BoxFuture<'static, ()>,
    place: StreamPlace,
    number: u64,
}

impl Follower {
    /// Returns the next event, and whether this event is the last. Returns `None` when the service
    /// stops or the session ends.
    async fn next(&mut self) -> Option<(Event, bool)> {
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
            () = self.place.replaced() => {
                let data = Change::Replaced { retry_after: AGAIN.as_secs() }.data();
                let id = (self.number + 1).to_string();
                return Some((Event { id, name: "replaced", data }, true));
            }
        };
        self.number += 1;
        let mut topics: Vec<&str> =
            changed.into_iter().filter_map(|at| self.of.get(at).copied()).collect();
        topics.dedup();
        let data = Change::Changed { topics: &topics }.data();
        Some((Event { id: self.number.to_string(), name: "changed", data }, false))
    }
}
