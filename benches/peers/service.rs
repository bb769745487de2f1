//! The service to measure: a process on a fresh store, with the same models and workflows as the
//! peers.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::support::client;
use super::support::process::Killed;
use super::support::service::Setup;
use super::support::{self, workflows};

/// Number of steps of the workflow on all sides, with one call each.
pub(crate) const STEPS: u64 = 3;

/// A running service.
pub(crate) struct Service {
    pub setup: Setup,
    pub key: String,
    pub child: Killed,
    _folder: tempfile::TempDir,
}

impl Service {
    /// Starts a service on a fresh store. Its model `instant` calls the stub.
    pub(crate) fn start(stub: SocketAddr) -> Self {
        let folder = support::folder();
        let setup = Setup::new(folder.path());
        setup.model("instant", &model("instant", &format!("http://{stub}/model"), 256));
        let (child, _) = setup.start();
        let key = setup.key();
        Self { setup, key, child, _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Creates a workflow of three steps; returns the request that triggers it.
    pub(crate) async fn three_steps(&self, stub: SocketAddr) -> Arc<[u8]> {
        let step = |number: u64| {
            let body = match number {
                0 => json!({"input": "{{inputs.bid}}", "step": 0}),
                _ => json!({
                    "input": "{{inputs.bid}}", "step": number,
                    "prev": format!("{{{{s{}.output}}}}", number - 1),
                }),
            };
            json!({
                "step_id": format!("s{number}"), "type": "http", "method": "POST",
                "url": format!("http://{stub}/model"), "body": body,
            })
        };
        let steps: Value = (0..STEPS).map(step).collect();
        let address = self.setup.workflows;
        let path = workflows::make(address, &self.key, "three", steps).await;
        client::post(address, &path, &self.key, r#"{"inputs":{"bid":"b-0123456789"}}"#)
    }

    /// Returns a request that creates a prediction.
    pub(crate) fn prediction(&self, model: &str, route: &str, more: &str) -> Arc<[u8]> {
        let body = format!(
            r#"{{"model":"{model}","version":"0.0.1","input":{{"text":"a quiet harbour"}}{more}}}"#
        );
        client::post(self.setup.base, route, &self.key, &body)
    }
}

/// Returns the manifest of a model behind a URL.
pub(crate) fn model(slug: &str, url: &str, concurrency: u32) -> String {
    format!(
        "slug = '{slug}'\ntitle = 'A model'\noutput_type = 'object'\nconcurrency = {concurrency}\n\
         queue_limit = 10_000_000\ntimeout = '1h'\n[request_schema]\ntype = 'object'\n\
         [runner]\ntype = 'http'\nurl = '{url}'\n"
    )
}
