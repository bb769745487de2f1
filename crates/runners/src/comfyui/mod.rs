//! The runner `comfyui`: runs a graph of nodes on a ComfyUI server.
//!
//! Each run is one prompt of ComfyUI: the graph of the manifest, with the values of the request.
//! The request schema comes from the server's description of the nodes. The prompt's ID depends
//! only on the attempt, so that a run that is repeated after a crash continues with the prompt that
//! it has already queued, instead of queueing a second prompt. ComfyUI servers from before May 2025
//! choose the ID themselves; with these servers, the repeated run queues a second prompt.

mod graph;
mod interface;
mod progress;
mod prompt;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::Request;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use self::graph::Graph;
use self::interface::Interface;
use super::endpoints::{self, DescriptionAge, EndpointState, Pool, Readiness, Servers};
use super::options::{self, Dependencies, Model, Type, base_url};
use super::source::Sources;
use super::{Health, Job, Maintenance, ModelInterface, Run, Runner, managed};
use orrery_config::reader::Section;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::OutputType;
use orrery_http::client::Client;
use orrery_runtime::Tasks;
use orrery_schema as schema;

/// The start of the names of uploaded files.
const UPLOAD_PREFIX: &str = "orrery-";
/// The path that reports the health of a server.
const HEALTH: &str = "/system_stats";

/// The manifest section of this runner type.
pub const TYPE: Type = Type {
    name: "comfyui",
    read: |section, folder| Some(Arc::new(Options::read(section, folder)?)),
};

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    /// The servers, whose URLs have no trailing slashes.
    servers: Servers,
    graph: Arc<Graph>,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let health = managed::health(section);
        let servers = Servers::read(section, folder, health, base_url, "");
        let graph = Graph::read(section, folder);
        Some(Self { servers: servers?, graph: Arc::new(graph?) })
    }
}

impl options::Options for Options {
    fn is_self_describing(&self) -> bool {
        true
    }

    fn output_type(&self) -> Option<OutputType> {
        Some(interface::output_type(&self.graph))
    }

    /// A ComfyUI server runs one prompt at a time.
    fn concurrency(&self) -> Option<usize> {
        Some(self.servers.concurrency().unwrap_or(self.servers.addresses.len()))
    }

    fn programs(&self) -> Option<Vec<PathBuf>> {
        self.servers.programs()
    }

    fn missing(&self, groups: Option<&managed::Groups>) -> Option<String> {
        self.servers.missing(groups)
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let check = managed::Check {
            path: HEALTH.to_owned(),
            is_ready: managed::success,
            authorization: None,
            describes_model: true,
        };
        let servers = model.servers(&self.servers, true, true, Some(check), dependencies);
        Arc::new(ComfyRunner {
            graph: Arc::clone(&self.graph),
            model,
            client: dependencies.client.clone(),
            sources: dependencies.sources.clone(),
            tasks: dependencies.guard.tasks.clone(),
            servers,
            known: Mutex::default(),
        })
    }
}

/// A runner of one model.
#[derive(Debug)]
struct ComfyRunner {
    graph: Arc<Graph>,
    model: Model,
    client: Client,
    sources: Sources,
    /// Runs the requests that cancel prompts.
    tasks: Tasks,
    servers: Pool,
    known: Mutex<Known>,
}

/// The model's interface, as last read.
#[derive(Debug, Default)]
struct Known {
    interface: Option<Arc<Interface>>,
    /// Why the interface could not be read.
    fault: Option<String>,
    /// When the interface was last read.
    description: DescriptionAge,
}

impl ComfyRunner {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn probe(&self, url: String) -> Readiness {
        let request = Request::get(format!("{url}{HEALTH}"));
        endpoints::ask_readiness(&self.client, request, |status| status.is_success()).await
    }

    /// Reads the descriptions of the nodes that have inputs.
    async fn classes(&self, url: &str) -> Result<HashMap<String, Value>, String> {
        let mut classes = HashMap::new();
        for input in &self.graph.inputs {
            let Some(class) = self.graph.class(&input.node) else { continue };
            if classes.contains_key(class) {
                continue;
            }
            let name = utf8_percent_encode(class, NON_ALPHANUMERIC);
            let request = Request::get(format!("{url}/object_info/{name}"));
            let answer = endpoints::probe(&self.client, request).await;
            let answer = answer.map_err(|error| format!("cannot read its nodes: {error}"))?;
            if !answer.status.is_success() {
                let status = answer.status.as_u16();
                return Err(format!("cannot read its nodes: the server answered {status}"));
            }
            let mut described: Value = serde_json::from_slice(&answer.body)
                .map_err(|error| format!("its node {class:?} is not valid JSON: {error}"))?;
            let described = described.get_mut(class).map(Value::take).ok_or_else(|| {
                let node = self.graph.name_of(&input.node);
                format!("its server has no nodes of the class of {node}: install the extension")
            })?;
            classes.insert(class.to_owned(), described);
        }
        Ok(classes)
    }

    /// Reads the model's interface from a server.
    async fn read_interface(&self, url: &str) -> Result<Arc<Interface>, String> {
        let found = match self.classes(url).await {
            Ok(classes) => {
                let graph = Arc::clone(&self.graph);
                let read = schema::compile(move || interface::read(&graph, &classes)).await;
                read.unwrap_or_else(|error| Err(format!("its inputs were not read: {error}")))
            }
            Err(error) => Err(error),
        };
        let mut known = self.known();
        known.description.note();
        match found {
            Ok(found) => {
                known.fault = None;
                match &known.interface {
                    Some(same) if same.model == found.model => Ok(Arc::clone(same)),
                    Some(_) | None => {
                        let found = Arc::new(found);
                        known.interface = Some(Arc::clone(&found));
                        Ok(found)
                    }
                }
            }
            Err(error) => {
                if known.fault.as_ref() != Some(&error) {
                    let model = &self.model.name;
                    tracing::warn!(%model, "cannot describe the model: {error}");
                }
                known.fault = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Returns the model's interface, which it reads from the server if it is not known yet.
    async fn interface_at(&self, url: &str) -> Result<Arc<Interface>, Failure> {
        let known = self.known().interface.clone();
        match known {
            Some(known) => Ok(known),
            None => self
                .read_interface(url)
                .await
                .map_err(|error| self.model.failure(ErrorClass::InvalidModelConfig, &error)),
        }
    }
}

impl Runner for ComfyRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move { self.run_prompt(&job).await })
    }

    fn health(&self) -> Health {
        let fault = self.known().fault.clone();
        match (self.servers.health(), fault) {
            (Health::Good, Some(fault)) => Health::Impaired(fault),
            (health, _) => health,
        }
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(async {
            self.servers.probe(|url| self.probe(url)).await;
            let usable = self.servers.usable();
            let is_due = self.known().description.is_due(usable.is_some());
            if let Some(url) = usable.filter(|_| is_due) {
                let _is_noted = self.read_interface(&url).await;
            }
        })
    }

    fn endpoints(&self) -> Vec<EndpointState> {
        self.servers.states()
    }

    fn interface(&self) -> Option<Arc<ModelInterface>> {
        Some(Arc::clone(&self.known().interface.as_ref()?.model))
    }

    fn managed(&self) -> Option<&Arc<managed::Server>> {
        self.servers.server()
    }

    fn diagnostics(&self) -> Option<String> {
        self.servers.server()?.diagnostics()
    }
}

#[cfg(test)]
mod tests;
