//! Erases the data of deleted organizations: at startup, and whenever an organization is deleted.
//!
//! Each layer deletes its own data, and this module deletes the remaining rows of the organization.
//! Every step is idempotent, and the organization's record is deleted last, so that the next start
//! resumes the erasure after a crash at any point.

use std::sync::Arc;
use std::time::Duration;

use orrery_api::Services;
use orrery_domain::account::Organization;
use orrery_records::audit::Actor;
use orrery_runtime::Tasks;
use orrery_storage::{Commit, Key, Page, Store, Table};

/// Delay before the next attempt, if some data could not be erased.
const RETRY: Duration = Duration::from_secs(60);
/// Number of rows deleted per commit.
const BATCH_MAX: usize = 256;

/// The tables whose keys begin with the organization and whose rows may be left over.
const OF_ORGANIZATION: [Table; 34] = [
    Table::ApiKeyId,
    Table::KeyUse,
    Table::Execution,
    Table::WorkflowExecution,
    Table::WorkflowStatus,
    Table::WorkflowOf,
    Table::WorkflowSlug,
    Table::Delivery,
    Table::DeliveryProgress,
    Table::DeliveryStanding,
    Table::EndpointDelivery,
    Table::Ledger,
    Table::Balance,
    Table::TokenUse,
    Table::AgentSession,
    Table::Reserved,
    Table::KeyReserved,
    Table::KeySpent,
    Table::Usage,
    Table::DeletedKey,
    Table::Chain,
    Table::FileUsage,
    Table::Standing,
    Table::Facet,
    Table::PayloadUsage,
    Table::LinkOf,
    Table::Owner,
    Table::Secret,
    Table::Schedule,
    Table::WebhookEndpoint,
    Table::BulkJob,
    Table::Response,
    Table::ResponseCount,
    Table::CachedResult,
];

/// Erases the data of deleted organizations until shutdown.
pub(crate) async fn run(services: Arc<Services>, tasks: Tasks) {
    // Wait until the service is ready: startup counts the unfinished work, and erasure would change
    // the count.
    tokio::select! {
        () = tasks.stopping() => return,
        () = services.readiness.wait() => {}
    }
    loop {
        let is_done = match erase_all(&services).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "failed to erase a deleted organization");
                false
            }
        };
        tokio::select! {
            () = tasks.stopping() => return,
            () = services.accounts.organization_deleted() => {}
            () = tokio::time::sleep(RETRY), if !is_done => {}
        }
    }
}

async fn erase_all(services: &Services) -> anyhow::Result<()> {
    for organization in services.accounts.deleted_organizations().await? {
        erase(services, &organization).await?;
        let Organization { id, name, .. } = &organization;
        tracing::info!(organization = %id, name, "data of a deleted organization erased");
    }
    Ok(())
}

async fn erase(services: &Services, organization: &Organization) -> anyhow::Result<()> {
    let id = organization.id;
    let accounts = services.accounts.by(Actor::service());
    accounts.delete_keys(id).await?;
    services.members.erase(id).await?;
    let schedules = services.schedules.by(Actor::service());
    for schedule in schedules.list(id).await? {
        schedules.delete(id, schedule.id).await?;
    }
    let endpoints = services.outbox.endpoints().by(Actor::service());
    for endpoint in endpoints.list(id).await? {
        endpoints.delete(id, endpoint.id).await?;
    }
    services.engine.erase(id).await?;
    services.agent.forget_unused(id, Duration::ZERO).await?;
    services.responses.erase(id).await?;
    services.outbox.erase(id).await?;
    services.batches.erase(id).await?;
    services.files.erase(id).await?;
    services.workflows.erase(id).await?;
    for table in OF_ORGANIZATION {
        erase_rows(&services.store, Key::table(table).id(id)).await?;
    }
    Ok(accounts.remove_erased(organization).await?)
}

async fn erase_rows(store: &Store, prefix: Key) -> anyhow::Result<()> {
    loop {
        let found = store.page(Page::of(prefix.clone(), BATCH_MAX)).await?;
        if found.is_empty() {
            return Ok(());
        }
        let mut commit = Commit::new();
        for (key, _) in found {
            commit.delete(key);
        }
        store.commit(commit).await?;
    }
}
