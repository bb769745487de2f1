//! The load generator: a client that sends requests repeatedly, and a server that stands in for
//! models and webhook receivers. `orrery bench` and the programs in `benches/` use this module; the
//! service never does.
//!
//! Client and server parse only the lengths of messages, so that they use little of the CPU time
//! that they share with the service under test.

mod client;
mod server;

pub use client::{Answer, Connection, Load, Round, form, get, get_with_key, post};
pub use server::{Requests, StandIn};

/// Returns the length of head and body once the head is complete. Without a `Content-Length`, the
/// body counts as empty.
fn whole_length(read: &[u8]) -> Option<usize> {
    let head = end_of_head(read)?;
    Some(head.saturating_add(content_length(read.get(..head)?)?))
}

/// Returns the offset of the body.
fn end_of_head(read: &[u8]) -> Option<usize> {
    Some(read.windows(4).position(|four| four == b"\r\n\r\n")? + 4)
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length: ";
    let mut lines = head.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then(|| value.trim_ascii())
    });
    std::str::from_utf8(value.unwrap_or(b"0")).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn message_length_includes_head_and_body() {
        assert_eq!(whole_length(b"HTTP/1.1 200 OK\r\nContent-Le"), None);
        assert_eq!(whole_length(b"HTTP/1.1 204 No Content\r\n\r\n"), Some(27));
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\nA: b\r\n\r\nabc";
        assert_eq!(whole_length(text), Some(45 + 12));
        assert_eq!(whole_length(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"), None);
    }

    #[tokio::test]
    async fn load_counts_answers_and_their_times() {
        let server = StandIn::start().await.unwrap();
        let load = Load {
            address: server.address(),
            connections: 3,
            request: get(server.address(), "/x"),
        };
        let round = load.run_until(Duration::from_secs(30), 5).await.unwrap();
        assert_eq!((round.good, round.other, round.times.count()), (15, 0, 15));
        assert_eq!(server.answered(), 15);
        assert!(round.rate() > 0.0);
    }

    #[tokio::test]
    async fn stand_in_holds_answers_until_released() {
        let server = StandIn::start().await.unwrap();
        server.hold(true);
        let address = server.address();
        let asking = async move {
            let mut connection = Connection::open(address).await?;
            connection.ask(&post(address, "/hold", "key", "{}")).await
        };
        let mut asking = std::pin::pin!(asking);
        let waited = tokio::time::timeout(Duration::from_millis(50), &mut asking).await;
        assert!(waited.is_err(), "it answered while it was held");
        server.hold(false);
        let answer = asking.await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"value\":\"x\"}"));
        assert_eq!(server.answered(), 1);
    }

    #[tokio::test]
    async fn connection_reads_past_large_body() {
        let server = StandIn::start().await.unwrap();
        let address = server.address();
        let mut connection = Connection::open(address).await.unwrap();
        let file = vec![7; 300_000];
        let answer = connection.ask(&form(address, "/f", "key", &file)).await.unwrap();
        assert_eq!(answer.length, 13);
        let large = connection.ask(&get(address, "/large")).await.unwrap();
        assert_eq!((large.length, large.status), (server::LARGE, 200));
        assert!(large.body.len() <= 64 * 1024);
        assert_eq!(connection.ask(&get(address, "/x")).await.unwrap().text(), "{\"value\":\"x\"}");
    }
}
