//! A stub server for runner tests: one response per connection. Integration tests use real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use orrery_runtime::Tasks;

/// Starts a server that responds to each request according to its first line, its body and its
/// number. Returns the URL and the request counter.
pub(crate) async fn server(
    answer: impl Fn(&str, &str, usize) -> (u16, String) + Copy + Send + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tasks = Tasks::new();
    let count = Arc::<AtomicUsize>::default();
    let counting = Arc::clone(&count);
    let serving = tasks.clone();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counting = Arc::clone(&counting);
            serving.spawn(async move {
                let mut text = Vec::new();
                let mut buffer = [0; 4096];
                let is_get = |text: &[u8]| text.starts_with(b"GET") && text.ends_with(b"\r\n\r\n");
                while !text.ends_with(b"}") && !is_get(&text) {
                    match stream.read(&mut buffer).await {
                        Ok(count @ 1..) => text.extend_from_slice(&buffer[..count]),
                        _ => return,
                    }
                }
                let number = counting.fetch_add(1, Ordering::SeqCst);
                let text = String::from_utf8(text).unwrap();
                let line = text.lines().next().unwrap();
                let body = text.split_once("\r\n\r\n").unwrap().1;
                let (status, body) = answer(line, body, number);
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                // Writing fails if the client was cancelled and has closed the connection.
                let _closed = stream.write_all(format!("{head}{body}").as_bytes()).await;
            });
        }
    });
    (url, count)
}
