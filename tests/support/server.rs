//! A server on a free loopback port: one thread per connection, one function for all requests.

use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use super::http::Message;

/// A status and a JSON body.
pub(crate) type Answer = (u16, String);

/// A server that runs until dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `answer` on a free port of 127.0.0.1.
    pub(crate) fn start(answer: impl Fn(&Message) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), answer)
    }

    /// Serves `answer` at an address.
    pub(crate) fn start_at(
        address: SocketAddr,
        answer: impl Fn(&Message) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = Arc::new(AtomicBool::new(false));
        let answer = Arc::new(answer);
        let stop = Arc::clone(&stopping);
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || serve(stream, &*answer));
            }
        });
        Self { address, stopping, accepting: Some(accepting) }
    }

    /// Returns a URL of this server; `path` begins with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wake the accepting thread, which exits at its next connection.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

/// Answers requests until the client disconnects.
fn serve(stream: TcpStream, answer: &(impl Fn(&Message) -> Answer + ?Sized)) {
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Ok(request) = Message::read(&mut reader) {
        let (status, body) = answer(&request);
        let head = format!(
            "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if writer.write_all(format!("{head}{body}").as_bytes()).is_err() {
            return;
        }
    }
}

/// A gate that blocks all callers until it is opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Passage>, Condvar)>);

#[derive(Debug, Default)]
struct Passage {
    open: bool,
    held: usize,
}

impl Gate {
    /// Returns once the gate is open.
    pub(crate) fn pass(&self) {
        let (passage, opened) = &*self.0;
        let mut passage = passage.lock().unwrap();
        passage.held += 1;
        let mut passage = opened.wait_while(passage, |passage| !passage.open).unwrap();
        passage.held -= 1;
    }

    /// Returns the number of blocked callers.
    pub(crate) fn held(&self) -> usize {
        self.0.0.lock().unwrap().held
    }

    /// Opens the gate permanently.
    pub(crate) fn open(&self) {
        self.0.0.lock().unwrap().open = true;
        self.0.1.notify_all();
    }
}
