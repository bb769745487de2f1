//! Computes an organization's costs by day and model from the charges in the ledger and their
//! executions. Each request reads a limited number of rows; no totals are stored.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hyper::StatusCode;

use super::doc::{Doc, Kind, Param, ResponseDoc};
use super::{Context, Services};
use orrery_domain::account::{EntryKind, LedgerEntry};
use orrery_domain::execution::Kind as Work;
use orrery_domain::ids::{EntryId, ExecutionId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_http::{Response, response};
use orrery_wire::member::{Cost, Costs};

const DAYS_DEFAULT: u64 = 30;
const DAYS_MAX: u64 = 90;
/// Maximum number of ledger entries that one response sums up. The latest entries are used.
const ENTRIES_MAX: usize = 20_000;
/// The number of ledger entries read at a time.
const PAGE: usize = 1000;

pub(crate) const COSTS: Doc = Doc {
    query: &[Param::new(
        "days",
        Kind::Whole { min: 1, max: DAYS_MAX, default: DAYS_DEFAULT },
        "The number of days to go back",
    )],
    responses: &[ResponseDoc::json::<Costs>(200, "Sums by day and model, oldest first")],
    description: "Returns the charges of the last `days` days (UTC), summed by day and model. At \
                  most the newest 20,000 charges are summed; `complete` is false if there are \
                  more.",
    ..Doc::new("billing", "list_costs", "List costs by day and model")
};

/// Sums by day and model: US dollars, and the number of charges.
type Sums = BTreeMap<(String, String), (Usd, u64)>;

/// `GET /costs?days=`
pub(crate) async fn costs(context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let services = &context.services;
    let days = context.request.query.number("days", 1..=DAYS_MAX, DAYS_DEFAULT)?;
    let now = services.clock.now();
    let from = now.before(Duration::from_secs(days.saturating_mul(24 * 3600)));
    let mut sums = Sums::new();
    let mut after: Option<EntryId> = None;
    let mut read = 0;
    let is_complete = loop {
        let entries = services.billing.ledger(organization, after, PAGE).await?;
        let is_last = entries.len() < PAGE;
        read += entries.len();
        after = entries.last().map(|entry| entry.id);
        let is_recent = |entry: &&LedgerEntry| from.is_none_or(|from| entry.created_at >= from);
        let recent: Vec<&LedgerEntry> = entries.iter().take_while(is_recent).collect();
        add(services, organization, &recent, &mut sums).await?;
        if is_last || recent.len() < entries.len() {
            break true;
        }
        if read >= ENTRIES_MAX {
            break false;
        }
    };
    let costs = sums.into_iter().map(|((day, model), (cost, charges))| Cost {
        day,
        model,
        cost_usd: cost.dollars(),
        charges,
    });
    Ok(response::json(StatusCode::OK, &Costs { costs: costs.collect(), complete: is_complete }))
}

/// Adds the charges in `entries` to the sums for their day and model.
async fn add(
    services: &Services,
    organization: OrganizationId,
    entries: &[&LedgerEntry],
    sums: &mut Sums,
) -> Result<(), crate::Error> {
    let charges: Vec<_> = entries.iter().filter(|entry| entry.kind != EntryKind::TopUp).collect();
    let ids: Vec<ExecutionId> = charges.iter().filter_map(|entry| entry.execution).collect();
    let executions = services.engine.read_all(organization, &ids).await?;
    let names: HashMap<ExecutionId, String> = executions
        .iter()
        .map(|execution| {
            let name = execution.models().map_or_else(
                || if execution.kind() == Work::Workflow { "workflow" } else { "other" },
                |(model, _)| model,
            );
            (execution.id, name.to_owned())
        })
        .collect();
    for entry in charges {
        let day: String = entry.created_at.to_string().chars().take(10).collect();
        let name = entry.execution.and_then(|id| names.get(&id).cloned());
        // The model is unknown if retention has deleted the execution.
        let name = name.unwrap_or_else(|| "deleted runs".to_owned());
        let (sum, count) = sums.entry((day, name)).or_default();
        *sum = sum.plus(-entry.amount);
        *count = count.saturating_add(1);
    }
    Ok(())
}
