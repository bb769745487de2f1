//! Tests of ledgers: the entries always add up to the balance, even with concurrent charges and
//! top-ups.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use orrery_domain::account::{ApiKey, Limits};
use orrery_domain::ids::Id;
use orrery_domain::key_policy::{BudgetPeriod, KeyPolicy};
use orrery_storage::Options;
use orrery_storage::commit::Expect;
use orrery_storage::record::{decode, encode};

const MINE: [u8; 16] = [1; 16];
const OTHER: [u8; 16] = [2; 16];
const KEY: [u8; 16] = [7; 16];

fn open(folder: &std::path::Path) -> Billing {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 65_536 };
    let clock = Clock::scripted(Timestamp::from_micros(1));
    let store = Store::open(&options).unwrap();
    Billing::new(store, clock, key_policies::Handle::default(), limits::Handle::default())
}

fn by(organization: OrganizationId, key: [u8; 16]) -> Payer {
    Payer { organization, key: key.into() }
}

fn charge(amount: Usd) -> Charge<'static> {
    Charge { amount, execution: new_id(), entry: new_id(), model: "m" }
}

/// Reads all entries page by page.
async fn whole_ledger(billing: &Billing, organization: OrganizationId) -> Vec<LedgerEntry> {
    let mut entries: Vec<LedgerEntry> = Vec::new();
    loop {
        let after = entries.last().map(|entry| entry.id);
        let page = billing.ledger(organization, after, 7).await.unwrap();
        assert!(page.len() <= 7);
        if page.is_empty() {
            return entries;
        }
        entries.extend(page);
    }
}

async fn invariant_entries_add_up_to_the_balance(billing: &Billing, organization: OrganizationId) {
    let entries = whole_ledger(billing, organization).await;
    let sum: Usd = entries.iter().map(|entry| entry.amount).sum();
    assert_eq!(billing.balance(organization).await.unwrap(), sum);
    assert!(entries.windows(2).all(|pair| pair[0].id.bytes() > pair[1].id.bytes()), "{entries:?}");
}

/// An operation on a ledger by a client or the engine.
#[derive(Debug, Clone)]
enum Act {
    TopUp(i64),
    Charge(i64),
    /// A charge in a commit that fails because the commit's precondition is not met.
    ChargeInVain(i64),
}

async fn act(billing: &Billing, organization: OrganizationId, act: &Act) -> i64 {
    let store = &billing.store;
    match *act {
        Act::TopUp(micros) => {
            billing.top_up(organization, Usd::from_micros(micros)).await.unwrap();
            micros
        }
        Act::Charge(micros) | Act::ChargeInVain(micros) => {
            let mut commit = Commit::new();
            let amount = Usd::from_micros(micros);
            let payer = by(organization, KEY);
            billing.charge(&mut commit, payer, charge(amount)).unwrap();
            if matches!(act, Act::ChargeInVain(_)) {
                commit.expect(Expect::Present(Key::table(Table::Execution)));
                assert!(matches!(store.commit(commit).await, Err(storage::Error::Conflict { .. })));
                return 0;
            }
            store.commit(commit).await.unwrap();
            -micros
        }
    }
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1..1_000_000_i64).prop_map(Act::TopUp),
        (0..1_000_000_i64).prop_map(Act::Charge),
        (0..1_000_000_i64).prop_map(Act::ChargeInVain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn ledger_entries_sum_to_balance_under_concurrency(
        acts in prop::collection::vec((any::<bool>(), any_act()), 1..60)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let billing = open(folder.path());
            let tasks = orrery_runtime::Tasks::new();
            let running: Vec<_> = acts
                .into_iter()
                .map(|(is_mine, one)| {
                    let billing = billing.clone();
                    let organization = if is_mine { MINE } else { OTHER };
                    tasks.spawn(async move {
                        (is_mine, act(&billing, organization.into(), &one).await)
                    })
                })
                .collect();
            let mut mine = 0;
            let mut other = 0;
            for one in running {
                let (is_mine, change) = one.await.unwrap();
                *if is_mine { &mut mine } else { &mut other } += change;
            }
            for (organization, sum) in [(MINE, mine), (OTHER, other)] {
                let organization = OrganizationId::from(organization);
                invariant_entries_add_up_to_the_balance(&billing, organization).await;
                assert_eq!(billing.balance(organization).await.unwrap(), Usd::from_micros(sum));
            }
        });
    }
}

#[tokio::test]
async fn hold_is_not_delayed_by_reads_of_its_organization() {
    const READS: usize = 5000;
    let folder = tempfile::tempdir().unwrap();
    let billing = open(folder.path());
    let mine = OrganizationId::from(MINE);
    billing.top_up(mine, Usd::from_micros(1)).await.unwrap();
    let mut reads = futures_util::stream::FuturesUnordered::new();
    for _ in 0..READS {
        reads.push(turns::on_behalf_of(mine, billing.ledger(mine, None, 10)));
    }
    // Most of the reads are still queued when the balance is read.
    let first = futures_util::StreamExt::next(&mut reads).await;
    assert!(first.is_some_and(|read| read.is_ok()));
    let price = Price { known: Usd::from_micros(1), open: false };
    let hold = turns::on_behalf_of(mine, billing.hold(by(mine, KEY), price, true));
    tokio::pin!(hold);
    let mut before = 1;
    let held = loop {
        tokio::select! {
            biased;
            held = &mut hold => break held,
            Some(_read) = futures_util::StreamExt::next(&mut reads) => before += 1,
        }
    };
    assert_eq!(held.unwrap().amount(), price.known);
    assert!(before < READS / 2, "{before} reads came first");
}

#[tokio::test]
async fn budget_of_key_covers_charges_and_reservations_of_its_period() {
    let folder = tempfile::tempdir().unwrap();
    let billing = open(folder.path());
    let payer = by(MINE.into(), KEY);
    let day = Duration::from_secs(24 * 3600);
    let key = ApiKey {
        id: payer.key,
        organization: payer.organization,
        name: "k".to_owned(),
        prefix: "smk_abcd".to_owned(),
        created_by: "x".to_owned(),
        created_at: billing.clock.now(),
        expires_at: None,
        policy: KeyPolicy {
            max_budget: Some(Usd::from_micros(100)),
            budget_duration: Some(BudgetPeriod::Span(day)),
            ..KeyPolicy::default()
        },
        previous: None,
    };
    assert!(!billing.has_budget(payer));
    billing.policies.set(&key);
    assert!(billing.has_budget(payer));
    let price = |micros| Price { known: Usd::from_micros(micros), open: false };
    let held = billing.hold(payer, price(60), false).await.unwrap();
    let Err(Unreserved::OverBudget(over)) = billing.hold(payer, price(41), false).await else {
        panic!("60 of 100 are pending");
    };
    assert_eq!((over.spent.micros(), over.reserved.micros(), over.is_passing()), (0, 60, true));
    let other = by(MINE.into(), [8; 16]);
    billing.hold(other, price(1_000_000), false).await.unwrap();

    let mut commit = Commit::new();
    reserve(&mut commit, payer, held.amount());
    billing.store.commit(commit).await.unwrap();
    drop(held);
    assert!(billing.hold(payer, price(41), false).await.is_err(), "60 are reserved");
    let mut commit = Commit::new();
    release(&mut commit, payer, Usd::from_micros(60));
    billing.charge(&mut commit, payer, charge(Usd::from_micros(90))).unwrap();
    billing.store.commit(commit).await.unwrap();
    assert!(billing.hold(payer, price(11), false).await.is_err(), "90 are spent");
    drop(billing.hold(payer, price(10), false).await.unwrap());
    let open = Price { known: Usd::ZERO, open: true };
    drop(billing.hold(payer, open, false).await.unwrap());

    billing.clock.advance(day);
    let next = billing.hold(payer, price(100), false).await.unwrap();
    assert!(billing.hold(payer, open, false).await.is_err(), "everything is pending");
    drop(next);
    assert_eq!(billing.spent(payer, ALL_TIME).await.unwrap().micros(), 90);
}

#[tokio::test]
async fn budget_of_organization_is_for_a_calendar_month() {
    let folder = tempfile::tempdir().unwrap();
    let billing = open(folder.path());
    let (one, two) = (by(MINE.into(), KEY), by(MINE.into(), [8; 16]));
    assert!(!billing.has_budget(one));
    let budget = Some(Usd::from_micros(100));
    billing.limits.set(MINE.into(), Limits { monthly_budget: budget, ..Limits::default() });
    assert!(billing.has_budget(one) && billing.has_budget(two));
    let price = |micros| Price { known: Usd::from_micros(micros), open: false };
    let held = billing.hold(one, price(60), false).await.unwrap();
    let Err(Unreserved::OverBudget(over)) = billing.hold(two, price(41), false).await else {
        panic!("60 of 100 are pending");
    };
    assert_eq!((over.whose, over.reserved.micros()), (Whose::Organization, 60));
    billing.hold(by(OTHER.into(), KEY), price(1_000_000), false).await.unwrap();
    drop(held);

    let mut commit = Commit::new();
    billing.charge(&mut commit, one, charge(Usd::from_micros(90))).unwrap();
    billing.store.commit(commit).await.unwrap();
    assert!(billing.hold(two, price(11), false).await.is_err(), "90 are spent");
    drop(billing.hold(two, price(10), false).await.unwrap());
    let [used] = &billing.budgets().await.unwrap()[..] else { panic!("one budget") };
    assert_eq!((used.budget.micros(), used.spent.micros(), &used.key_name), (100, 90, &None));

    // The clock begins on the first day of a month.
    let day = Duration::from_secs(24 * 3600);
    billing.clock.advance(30 * day);
    assert!(billing.hold(two, price(11), false).await.is_err(), "the month has 31 days");
    billing.clock.advance(day);
    drop(billing.hold(two, price(100), false).await.unwrap());
    assert_eq!(billing.budgets().await.unwrap()[0].spent, Usd::ZERO);
}

#[tokio::test]
async fn ledger_page_is_newest_first_and_continues_after_entry() {
    let folder = tempfile::tempdir().unwrap();
    let billing = open(folder.path());
    let mine = OrganizationId::from(MINE);
    for micros in 1..=20 {
        billing.top_up(mine, Usd::from_micros(micros)).await.unwrap();
    }
    billing.top_up(OTHER.into(), Usd::from_micros(1)).await.unwrap();
    let amounts = |page: Vec<LedgerEntry>| -> Vec<i64> {
        page.iter().map(|entry| entry.amount.micros()).collect()
    };
    let first = billing.ledger(mine, None, 3).await.unwrap();
    let last = first[2].id;
    assert_eq!(amounts(first), [20, 19, 18]);
    assert_eq!(amounts(billing.ledger(mine, Some(last), 2).await.unwrap()), [17, 16]);
    assert_eq!(whole_ledger(&billing, mine).await.len(), 20);
}

#[tokio::test]
async fn top_up_must_be_positive_and_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let billing = open(folder.path());
    for micros in [0, -1, i64::MIN, i64::MAX, TOP_UP_MAX.micros() + 1] {
        let refused = billing.top_up(MINE.into(), Usd::from_micros(micros)).await;
        assert!(matches!(refused, Err(Error::Amount)), "{micros}");
    }
    assert_eq!(billing.ledger(MINE.into(), None, 10).await.unwrap(), []);
    assert_eq!(billing.top_up(MINE.into(), TOP_UP_MAX).await.unwrap(), TOP_UP_MAX);
}

#[test]
fn ledger_entry_matches_golden_bytes() {
    let entry = LedgerEntry {
        id: [3; 16].into(),
        kind: EntryKind::Charge,
        amount: Usd::from_micros(-2000),
        execution: Some([4; 16].into()),
        created_at: Timestamp::from_micros(5),
    };
    let stored = r#"{"id":"03030303-0303-0303-0303-030303030303","kind":"charge","#.to_owned()
        + r#""amount":-2000,"execution":"04040404-0404-0404-0404-040404040404","created_at":5}"#;
    let golden = [b"\x01", stored.as_bytes()].concat();
    assert_eq!(encode(&entry).unwrap(), golden);
    assert_eq!(decode::<LedgerEntry>(&golden).unwrap(), entry);
}
