//! Sandbox options for the operator's programs (the processes of `command` models and the agent's
//! MCP servers), and the dependencies that all runners share. This module starts no program itself.

use std::sync::Arc;

use super::WORK;
use orrery_config::Config;
use orrery_guard::groups::Groups;
use orrery_http::client::Client;
use orrery_http::egress::Policy;
use orrery_records::files::Files;
use orrery_runners::builtin::{BuiltinContext, Workers};
use orrery_runners::command::GuardConfig;
use orrery_runners::llm::Room;
use orrery_runners::managed::Groups as ServerGroups;
use orrery_runners::options::Dependencies;
use orrery_runners::source::Sources;
use orrery_runtime::Tasks;

/// Returns the sandbox options of programs.
pub(super) fn guard(config: &Config, tasks: &Tasks, groups: Option<Arc<Groups>>) -> GuardConfig {
    GuardConfig {
        program: config.program.clone(),
        work: config.data_dir.join(WORK),
        hidden: vec![config.data_dir.clone(), config.backup.folder.clone()],
        models: config.models_dir.clone(),
        groups,
        tasks: tasks.clone(),
    }
}

/// Returns the groups, each with the memory that its servers share.
#[must_use]
pub fn server_groups(config: &Config) -> ServerGroups {
    let groups = config.groups.iter();
    ServerGroups::new(groups.map(|group| (group.name.clone(), group.memory, group.swap_after)))
}

/// Returns the dependencies that all runners share. Without files, inputs cannot refer to files.
pub(super) fn dependencies(
    config: &Config,
    policy: &Policy,
    files: Option<Files>,
    guard: &GuardConfig,
) -> Dependencies {
    let workers = Workers::new(config.program.clone(), guard.groups.clone());
    let sources = Sources::new(policy.clone(), files);
    Dependencies {
        builtins: BuiltinContext::new(sources.clone(), workers),
        sources,
        client: Client::trusted(),
        guard: guard.clone(),
        room: Arc::new(Room::of_bytes(config.limits.model_memory_bytes)),
        endpoints: Arc::default(),
        groups: Arc::new(server_groups(config)),
        jobs: Arc::default(),
    }
}
