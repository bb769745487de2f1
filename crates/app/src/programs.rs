//! Sandbox options for the operator's programs: workers of `command` models, and MCP servers of the
//! agent. This module starts no program itself.

use std::sync::Arc;

use super::WORK;
use orrery_config::Config;
use orrery_guard::groups::Groups;
use orrery_runners::command::GuardConfig;
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
