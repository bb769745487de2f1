//! A minimal HTTP/1.1 implementation for tests: messages with `Content-Length`, and a keep-alive
//! client.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Maximum number of header lines.
const LINES_MAX: usize = 100;
/// Maximum body size, in bytes.
const BODY_MAX: usize = 64 * 1024 * 1024;
/// Response timeout of the client; the service may hold a request for 60 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(75);

/// An HTTP request or response.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The request line or the status line.
    pub start: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Message {
    /// Reads one message. The end of the stream before the first byte is also an error.
    pub(crate) fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let start = line(reader)?;
        let mut headers = Vec::new();
        loop {
            let line = line(reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            if headers.len() > LINES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let mut message = Self { start, headers, body: Vec::new() };
        let length = message.header("content-length").map_or(Ok(0), str::parse);
        let length: usize = length.map_err(io::Error::other)?;
        if length > BODY_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        message.body.resize(length, 0);
        reader.read_exact(&mut message.body)?;
        Ok(message)
    }

    /// Returns a header's value; `name` is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(held, _)| held == name).map(|(_, value)| value.as_str())
    }

    /// Returns the second word of the first line: a request's path or a response's status.
    pub(crate) fn second_word(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> u16 {
        self.second_word().parse().unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.start, self.text()))
    }
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.take(64 * 1024).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// A client of one host, with an API key. It never retries: after an error, the server may or may
/// not have accepted the request, and the next request uses a new connection.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    key: String,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, key: &str) -> Self {
        Self { address, key: key.to_owned(), connection: None }
    }

    /// The service may have closed a connection that was idle; the request is then repeated on a new
    /// one.
    pub(crate) fn get(&mut self, path: &str) -> io::Result<Message> {
        let is_reused = self.connection.is_some();
        match self.send("GET", path, &[], "") {
            Err(_closed) if is_reused => self.send("GET", path, &[], ""),
            answered => answered,
        }
    }

    pub(crate) fn post(
        &mut self,
        path: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Message> {
        self.send("POST", path, more, body)
    }

    fn send(
        &mut self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Message> {
        let address = self.address;
        let key = &self.key;
        let length = body.len();
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n");
        request.push_str(&format!("X-API-Key: {key}\r\nContent-Length: {length}\r\n"));
        for (name, value) in more {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(address)?,
        };
        connection.get_mut().write_all(request.as_bytes())?;
        let answer = Message::read(&mut connection)?;
        if answer.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok(answer)
    }
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    Ok(BufReader::new(stream))
}
