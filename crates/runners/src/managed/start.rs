//! Starts the process of a server, and waits until the server is ready.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::AUTHORIZATION;
use tokio::net::TcpStream;

use super::server::{STOPPING, Server};
use super::{PORT, at_port, success};
use crate::command::process::{Process, Program};
use crate::endpoints::PROBE_TIMEOUT;
use orrery_config::secret::Secret;
use orrery_http::client::{Limits, Overflow};
use orrery_runtime::Tasks;
use orrery_runtime::shortage::when_able;

/// Interval of checks whether a server is ready.
const READY_EVERY: Duration = Duration::from_millis(100);
/// How long to retry a spawn that fails because the machine is out of resources.
const SPAWNING_MAX: Duration = Duration::from_secs(60);
const HEALTH_BYTES_MAX: usize = 64 * 1024;

impl Server {
    /// Starts the process, and waits until the server is ready.
    pub(super) async fn start(&self) -> Result<(Process, u16), String> {
        let port = free_port().map_err(|error| format!("there is no free port: {error}"))?;
        let written = port.to_string();
        let command: Vec<String> =
            self.options.command.iter().map(|word| word.replace(PORT, &written)).collect();
        let mut env: Vec<(String, Secret)> = Vec::with_capacity(self.options.env.len() + 1);
        env.push(("PORT".to_owned(), Secret::from(written.clone())));
        env.extend(self.options.env.iter().map(|(name, value)| {
            (name.clone(), Secret::from(value.expose().replace(PORT, &written)))
        }));
        let program = Program {
            command: &command,
            directory: &self.options.directory,
            env: &env,
            memory_bytes: None,
            writable: &[],
            model: Some(&self.model),
            grace: Some(self.options.stop_timeout),
        };
        let spawned = when_able(SPAWNING_MAX, || Process::start(&self.guard, &program, &self.tail));
        let (mut process, output) =
            spawned.await.map_err(|error| format!("its server cannot be started: {error}"))?;
        Tasks::attend(self.tail.clone().drain(output));
        let timeout = self.options.start_timeout;
        let ready = tokio::select! {
            ready = tokio::time::timeout(timeout, self.ready(&mut process, port)) => ready,
            () = self.guard.tasks.stopping() => Ok(Err(STOPPING.to_owned())),
        };
        let reason = match ready {
            Ok(Ok(())) => return Ok((process, port)),
            Ok(Err(reason)) => reason,
            Err(_elapsed) => {
                format!("its server was not ready within {}", humantime::format_duration(timeout))
            }
        };
        process.end().await;
        Err(reason)
    }

    /// Waits until the server is ready; fails if it exits.
    async fn ready(&self, process: &mut Process, port: u16) -> Result<(), String> {
        loop {
            if let Some(status) = process.ended() {
                return Err(self.describe(status));
            }
            if self.answers(port).await {
                return Ok(());
            }
            tokio::time::sleep(READY_EVERY).await;
        }
    }

    async fn answers(&self, port: u16) -> bool {
        let url = at_port(&self.url, port);
        let (target, is_ready): (_, fn(&_) -> bool) = match (&self.options.health, &self.check) {
            (Some(path), _) => {
                let target = url::Url::parse(&url).and_then(|url| url.join(path));
                (target.map_or(url, String::from), success)
            }
            (None, Some(check)) => (format!("{url}{}", check.path), check.is_ready),
            (None, None) => {
                let address = (Ipv4Addr::LOCALHOST, port_of(&url).unwrap_or(port));
                let connected = tokio::time::timeout(PROBE_TIMEOUT, TcpStream::connect(address));
                return matches!(connected.await, Ok(Ok(_)));
            }
        };
        let mut request = Request::get(target);
        let check_authorization =
            self.check.as_ref().and_then(|check| check.authorization.as_ref());
        if let Some(authorization) = check_authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let limits = Limits {
            total: PROBE_TIMEOUT,
            answer_bytes: HEALTH_BYTES_MAX,
            overflow: Overflow::Truncate,
        };
        let Ok(request) = request.body(Bytes::new()) else { return false };
        let answer = self.client.send(request, &limits).await;
        answer.is_ok_and(|answer| is_ready(&answer))
    }
}

/// Returns a port of the loopback interface that is free now. The server opens it a moment later;
/// if another program is faster, the server fails to start and is tried again with another port.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn port_of(url: &str) -> Option<u16> {
    url::Url::parse(url).ok()?.port_or_known_default()
}
