//! A service without listeners. The command line uses this service if no other service runs on the
//! data folder. An offline service runs no work.

use super::{configured_hosts, open};
use orrery_api::{HostService, Role};
use orrery_config::Config;
use orrery_http::request::Peer;
use orrery_http::{Body, Response};
use orrery_runtime::Tasks;

/// A service for the command line's own requests. The service handles requests like the control
/// socket, but has no listeners and runs no work.
#[derive(Debug)]
pub struct Offline {
    control: HostService,
}

impl Offline {
    /// Handles one request.
    pub async fn call(&self, request: hyper::Request<Body>) -> Response {
        self.control.answer(request, Peer::InProcess).await
    }
}

/// Opens the store of `config` while no service runs on it.
///
/// # Errors
/// Returns an error if a service runs on the store, or the store cannot be opened.
pub async fn offline(config: &Config) -> anyhow::Result<Offline> {
    let tasks = Tasks::new();
    let services = open(config, &tasks, &tasks, configured_hosts(config), None)?;
    // No unfinished work is resumed here, so requests need not wait for it.
    services.readiness.set();
    Ok(Offline { control: HostService::new(Role::Control, services, false)? })
}
