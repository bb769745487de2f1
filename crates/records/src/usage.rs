//! Usage: the requests, tokens and cost of each API key and model, by day and by calendar month in
//! UTC.
//!
//! A call is counted in the commit that ends and charges it, so no call is lost or counted twice. A
//! report reads the counters of whole months. It reads the counters of days only if it groups by
//! day or covers only a part of a month. The cost of a report therefore depends on the number of
//! keys and models, not on the number of calls.
//!
//! Invariant: the costs of an organization's months equal its charges in the ledger.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::billing::Payer;
use orrery_domain::account::DeletedKey;
use orrery_domain::chat::Tokens;
use orrery_domain::execution::{Execution, Status, Work};
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_domain::usage::{Day, Month, Sums};
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Store, Table};

/// Maximum number of models counted under their own names, per organization and month.
pub const MODELS_MAX: usize = 1000;
/// Maximum number of these models whose first call failed at the upstream, so that invented names
/// do not use up [`MODELS_MAX`].
pub const DOUBTFUL_MAX: usize = 100;
/// The name under which all other models are counted together.
pub const OTHER_MODELS: &str = "(other models)";
/// Maximum length of a model's name in a report, in bytes.
const MODEL_BYTES_MAX: usize = 200;
/// Maximum number of days in a report.
pub const SPAN_DAYS_MAX: u32 = 1100;
/// Maximum number of groups in a report.
pub const GROUPS_MAX: usize = 10_000;
/// Maximum number of counters that a report reads.
pub const COUNTERS_MAX: usize = 1_000_000;
/// The number of days for which usage is kept by day.
pub const DAYS_KEPT: u32 = 400;
/// The number of months for which usage is kept by month.
pub const MONTHS_KEPT: u32 = 37;
/// Rows deleted per commit.
const BATCH_MAX: usize = 500;

/// Errors of reports.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "this report would have more than {GROUPS_MAX} rows: shorten the span or group by fewer \
         fields"
    )]
    TooManyGroups,
    #[error("this report would read more than {COUNTERS_MAX} counters: shorten the span")]
    TooManyCounters,
    #[error(
        "usage by day is kept for {DAYS_KEPT} days: for older usage, begin on the first and end on \
         the last day of a month, and do not group by day"
    )]
    TooOld,
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The period of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grain {
    Day(Day),
    Month(Month),
}

/// Ended calls of a model.
#[derive(Debug, Clone)]
pub struct Calls<'m> {
    pub model: &'m str,
    pub sums: Sums,
    /// Whether the model might not exist, because its call failed at the upstream without tokens or
    /// cost.
    pub is_doubtful: bool,
}

impl<'m> Calls<'m> {
    /// Returns the model call of an ended execution. Returns `None` for a workflow, because its
    /// model steps are counted separately. The cost is counted with the charge.
    #[must_use]
    pub fn of(execution: &'m Execution) -> Option<Self> {
        let (model, _) = execution.models()?;
        let (tokens, is_upstream) = match &execution.work {
            Work::Chat(call) => (call.tokens, call.is_upstream),
            Work::Decision(decision) => (decision.tokens, decision.is_upstream),
            Work::Agent(exchange) => (exchange.tokens, false),
            Work::Prediction(_) | Work::Workflow(_) => (Tokens::default(), false),
        };
        let is_doubtful = is_upstream
            && execution.status != Status::Success
            && execution.cost.is_zero()
            && tokens.total() == 0;
        Some(Self { model, sums: Sums { requests: 1, tokens, cost: Usd::ZERO }, is_doubtful })
    }

    /// Returns the tokens or the cost of a call whose request is counted separately.
    #[must_use]
    pub fn part(model: &'m str, tokens: Tokens, cost: Usd) -> Self {
        Self { model, sums: Sums { requests: 0, tokens, cost }, is_doubtful: false }
    }
}

/// The fields by which a report is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grouping {
    pub key: bool,
    pub model: bool,
    pub day: bool,
    pub month: bool,
}

/// One group of a report. Fields by which the report is not grouped are `None`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Group {
    pub day: Option<Day>,
    pub month: Option<Month>,
    pub key: Option<KeyId>,
    pub model: Option<Box<str>>,
}

/// The days of a report, and the key to which it is restricted, if any.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    pub key: Option<KeyId>,
}

/// The models of an organization that are counted under their own names in a month.
#[derive(Debug)]
struct Named {
    month: Month,
    models: HashSet<Box<str>>,
    /// The number of these models that were doubtful ([`Calls::is_doubtful`]) when they were first
    /// counted.
    doubtful: usize,
}

/// The usage counters in a store. Clones share the names of the counted models.
#[derive(Debug, Clone)]
pub struct Usage {
    store: Store,
    named: Arc<Mutex<HashMap<OrganizationId, Named>>>,
}

impl Usage {
    /// Opens the usage counters of a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store, named: Arc::default() }
    }

    /// Loads the names of the models that are counted this month. Call this once at startup, before
    /// any call is counted.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn load(
        &self,
        organizations: impl IntoIterator<Item = OrganizationId>,
        now: Timestamp,
    ) -> Result<(), storage::Error> {
        let month = Day::of(now).month();
        for organization in organizations {
            let prefix = names(organization).raw(&month.number().to_be_bytes());
            let start = prefix.as_bytes().len();
            let mut scan = self.store.scan(prefix);
            let (mut models, mut doubtful) = (HashSet::new(), 0);
            while let Some((key, value)) = scan.next().await? {
                doubtful += usize::from(!value.is_empty());
                let name = key.as_bytes().get(start..).and_then(|rest| rest.strip_suffix(b"\0"));
                models.extend(name.map(|name| String::from_utf8_lossy(name).into()));
            }
            if !models.is_empty() {
                let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
                named.insert(organization, Named { month, models, doubtful });
            }
        }
        Ok(())
    }

    /// Counts calls, in the commit that ends or charges them.
    pub fn count(&self, commit: &mut Commit, payer: Payer, calls: &Calls<'_>, now: Timestamp) {
        if calls.sums == Sums::default() {
            return;
        }
        let day = Day::of(now);
        let model = self.name(commit, payer.organization, day.month(), calls);
        for grain in [Grain::Day(day), Grain::Month(day.month())] {
            let row = period(payer.organization, grain).id(payer.key).text(&model);
            commit.add_each(row, &numbers(calls.sums));
        }
        if !calls.sums.cost.is_zero() {
            commit.add(total(payer.organization, day.month()), calls.sums.cost.micros());
        }
    }

    /// Returns the name under which a model is counted: its own name, or [`OTHER_MODELS`] if the
    /// limit of named models is reached.
    fn name<'m>(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        month: Month,
        calls: &Calls<'m>,
    ) -> Cow<'m, str> {
        let end = calls.model.floor_char_boundary(MODEL_BYTES_MAX);
        let model = calls.model.get(..end).unwrap_or_default();
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Named { month, models: HashSet::new(), doubtful: 0 };
        let of_month = named.entry(organization).or_insert_with(fresh);
        // If the clock is set back, calls still count toward the names of the later month.
        if of_month.month < month {
            *of_month = fresh();
        }
        if of_month.models.contains(model) {
            return Cow::Borrowed(model);
        }
        let is_full = calls.is_doubtful && of_month.doubtful >= DOUBTFUL_MAX;
        if is_full || of_month.models.len() >= MODELS_MAX {
            return Cow::Borrowed(OTHER_MODELS);
        }
        of_month.models.insert(model.into());
        of_month.doubtful += usize::from(calls.is_doubtful);
        let row = names(organization).raw(&month.number().to_be_bytes()).text(model);
        commit.put_bytes(row, if calls.is_doubtful { vec![1] } else { Vec::new() });
        Cow::Borrowed(model)
    }

    /// Returns the charges of an organization in a month.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn spent(
        &self,
        organization: OrganizationId,
        month: Month,
    ) -> Result<Usd, storage::Error> {
        self.store.counter(&total(organization, month)).await.map(Usd::from_micros)
    }

    /// Returns the usage of an organization in a span, by group. `today` is the current day.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn report(
        &self,
        organization: OrganizationId,
        span: Span,
        by: Grouping,
        today: Day,
    ) -> Result<BTreeMap<Group, Sums>, Error> {
        let mut groups: BTreeMap<Group, Sums> = BTreeMap::new();
        let mut read = 0_usize;
        for grain in pieces(span, by.day, today)? {
            let prefix = period(organization, grain);
            let start = prefix.as_bytes().len();
            let mut rows = self.store.scan(match span.key {
                Some(key) => prefix.id(key),
                None => prefix,
            });
            while let Some((key, value)) = rows.next().await? {
                read = read.saturating_add(1);
                if read > COUNTERS_MAX {
                    return Err(Error::TooManyCounters);
                }
                let Some((caller, model)) = parse(key.as_bytes(), start) else { continue };
                let Some(sums) = sums(&value) else { continue };
                let (day, month) = match grain {
                    Grain::Day(day) => (Some(day), day.month()),
                    Grain::Month(month) => (None, month),
                };
                let group = Group {
                    day: day.filter(|_| by.day),
                    month: by.month.then_some(month),
                    key: by.key.then_some(caller),
                    model: by.model.then(|| model.into()),
                };
                groups.entry(group).or_default().add(&sums);
                if groups.len() > GROUPS_MAX {
                    return Err(Error::TooManyGroups);
                }
            }
        }
        Ok(groups)
    }

    /// Returns the stored details of an organization's deleted keys.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn deleted_keys(
        &self,
        organization: OrganizationId,
    ) -> Result<Vec<(KeyId, DeletedKey)>, storage::Error> {
        let mut rows = self.store.scan(deleted_keys(organization));
        let mut keys = Vec::new();
        while let Some((key, value)) = rows.next().await? {
            if let Some(id) = key.last_id() {
                keys.push((id, decode(&value)?));
            }
        }
        Ok(keys)
    }

    /// Deletes an organization's expired counters, and the details of deleted keys to which no
    /// counter refers. Returns the number of deleted rows.
    ///
    /// # Errors
    /// [`storage::Error`]; rows deleted before the error stay deleted.
    pub async fn forget(
        &self,
        organization: OrganizationId,
        now: Timestamp,
    ) -> Result<usize, storage::Error> {
        let today = Day::of(now);
        let this_month = today.month().number();
        let first_month = Month::numbered(this_month.saturating_sub(MONTHS_KEPT));
        let first_day = Grain::Day(today.minus(DAYS_KEPT));
        let current = names(organization).raw(&this_month.to_be_bytes());
        let mut count = 0;
        for (prefix, before) in [
            (days(organization), period(organization, first_day)),
            (months(organization), period(organization, Grain::Month(first_month))),
            (totals(organization), total(organization, first_month)),
            (names(organization), current),
        ] {
            let old = Page { before: Some(before), ..Page::of(prefix, BATCH_MAX) };
            loop {
                let rows = self.store.page(old.clone()).await?;
                let deleted = self.delete(rows.into_iter().map(|(key, _)| key)).await?;
                count += deleted;
                if deleted < BATCH_MAX {
                    break;
                }
            }
        }
        let cutoff = first_month.start();
        let keys = self.deleted_keys(organization).await?;
        let old = keys.into_iter().filter(|(_, key)| key.deleted_at < cutoff);
        let old = old.map(|(id, _)| deleted_keys(organization).id(id));
        Ok(count + self.delete(old).await?)
    }

    async fn delete(&self, rows: impl Iterator<Item = Key>) -> Result<usize, storage::Error> {
        let mut commit = Commit::new();
        let mut count = 0;
        for row in rows {
            commit.delete(row);
            count += 1;
        }
        if count > 0 {
            self.store.commit(commit).await?;
        }
        Ok(count)
    }
}

/// Returns the periods that make up a span: whole months, and the days of the other months.
fn pieces(span: Span, by_day: bool, today: Day) -> Result<Vec<Grain>, Error> {
    let mut pieces = Vec::new();
    let oldest = today.minus(DAYS_KEPT);
    let to = span.to.min(today);
    let mut day = span.from;
    while day <= to {
        let month = day.month();
        let is_whole = day == month.first_day() && (month.last_day() <= span.to || to == today);
        if is_whole && !by_day {
            pieces.push(Grain::Month(month));
            day = month.next().first_day();
        } else if day < oldest {
            return Err(Error::TooOld);
        } else {
            pieces.push(Grain::Day(day));
            day = day.plus(1);
        }
    }
    Ok(pieces)
}

/// Returns the counters of a row.
fn numbers(sums: Sums) -> [i64; 4] {
    let Sums { requests, tokens, cost } = sums;
    [signed(requests), signed(tokens.input), signed(tokens.output), cost.micros()]
}

/// Parses the value of a row.
fn sums(row: &[u8]) -> Option<Sums> {
    let ([requests, input, output, cost], []) = row.as_chunks::<8>() else { return None };
    let count = |bytes: &[u8; 8]| u64::try_from(i64::from_be_bytes(*bytes)).unwrap_or_default();
    let tokens = Tokens { input: count(input), output: count(output), ..Tokens::default() };
    let cost = Usd::from_micros(i64::from_be_bytes(*cost));
    Some(Sums { requests: count(requests), tokens, cost })
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Parses the part of a row's key that follows the period.
fn parse(row: &[u8], start: usize) -> Option<(KeyId, Cow<'_, str>)> {
    let (key, model) = row.get(start..)?.split_first_chunk::<16>()?;
    let model = String::from_utf8_lossy(model.strip_suffix(b"\0")?);
    Some((KeyId::from(*key), model))
}

fn period(organization: OrganizationId, grain: Grain) -> Key {
    match grain {
        Grain::Day(day) => days(organization).raw(&day.number().to_be_bytes()),
        Grain::Month(month) => months(organization).raw(&month.number().to_be_bytes()),
    }
}

fn days(organization: OrganizationId) -> Key {
    Key::table(Table::Usage).id(organization).raw(b"d")
}

fn months(organization: OrganizationId) -> Key {
    Key::table(Table::Usage).id(organization).raw(b"m")
}

fn names(organization: OrganizationId) -> Key {
    Key::table(Table::Usage).id(organization).raw(b"n")
}

fn totals(organization: OrganizationId) -> Key {
    Key::table(Table::Usage).id(organization).raw(b"t")
}

/// The row of an organization's charges in a month.
pub(crate) fn total(organization: OrganizationId, month: Month) -> Key {
    totals(organization).raw(&month.number().to_be_bytes())
}

/// Key prefix of an organization's deleted keys.
pub(crate) fn deleted_keys(organization: OrganizationId) -> Key {
    Key::table(Table::DeletedKey).id(organization)
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
