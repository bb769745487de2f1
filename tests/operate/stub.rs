//! A server that answers each request with whatever bytes a test wants, including invalid ones.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::http::Message;

/// A server on a free loopback port, which runs until the test process ends.
#[derive(Debug, Clone)]
pub(crate) struct Stub {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Message>>>,
}

impl Stub {
    /// Serves `answer`, which writes to the connection. The connection closes after the answer.
    pub(crate) fn start(answer: impl Fn(&Message, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<Message>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let mut writer = stream.try_clone().unwrap();
                    let mut reader = BufReader::new(stream);
                    let Ok(mut request) = Message::read(&mut reader) else { return };
                    if request.header("transfer-encoding") == Some("chunked") {
                        request.body = chunks(&mut reader);
                    }
                    seen.lock().unwrap().push(request.clone());
                    answer(&request, &mut writer);
                });
            }
        });
        Self { address, requests }
    }

    /// Returns a URL of this server; `path` begins with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<Message> {
        self.requests.lock().unwrap().clone()
    }
}

/// Reads a chunked body.
fn chunks(reader: &mut impl BufRead) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut chunk = vec![0; length + 2];
        reader.read_exact(&mut chunk).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&chunk[..length]);
    }
}

/// Writes a response with a body. Errors are ignored: the client may have closed the connection.
pub(crate) fn respond(out: &mut TcpStream, status: u16, headers: &[(&str, &str)], body: &[u8]) {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    let _closed = out.write_all(head.as_bytes()).and_then(|()| out.write_all(body));
}
