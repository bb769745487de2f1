//! Tests of usage: reports equal a sum over all calls, names of models are bounded, and old counters
//! are deleted.

use proptest::prelude::*;

use super::*;
use orrery_runtime::new_id;
use orrery_storage::Options;

const MINE: [u8; 16] = [1; 16];

fn open(folder: &std::path::Path) -> Usage {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 65_536 };
    Usage::new(Store::open(&options).unwrap())
}

fn day(text: &str) -> Day {
    text.parse().unwrap()
}

fn noon(day: Day) -> Timestamp {
    format!("{day}T12:00:00Z").parse().unwrap()
}

fn payer(key: u8) -> Payer {
    Payer { organization: MINE.into(), key: [key; 16].into() }
}

fn sums(requests: u64, input: u64, output: u64, cost: i64) -> Sums {
    let tokens = Tokens { input, output, ..Tokens::default() };
    Sums { requests, tokens, cost: Usd::from_micros(cost) }
}

async fn count(usage: &Usage, key: u8, model: &str, on: Day, sums: Sums) {
    let mut commit = Commit::new();
    let calls = Calls { model, sums, is_doubtful: false };
    usage.count(&mut commit, payer(key), &calls, noon(on));
    usage.store.commit(commit).await.unwrap();
}

async fn report(usage: &Usage, span: (&str, &str), by: Grouping) -> Vec<(Group, Sums)> {
    let span = Span { from: day(span.0), to: day(span.1), key: None };
    let groups = usage.report(MINE.into(), span, by, day("2026-12-15")).await.unwrap();
    groups.into_iter().collect()
}

fn total_of(rows: &[(Group, Sums)]) -> Sums {
    let mut total = Sums::default();
    rows.iter().for_each(|(_, sums)| total.add(sums));
    total
}

#[derive(Debug, Clone)]
struct Call {
    day: u32,
    key: u8,
    model: u8,
    sums: Sums,
}

fn call() -> impl Strategy<Value = Call> {
    let sums =
        (0_u64..3, 0_u64..9, 0_u64..9, 0_i64..9).prop_map(|(requests, input, output, cost)| {
            super::tests::sums(requests, input, output, cost)
        });
    (0_u32..100, 1_u8..4, 0_u8..3, sums).prop_map(|(day, key, model, sums)| Call {
        day,
        key,
        model,
        sums,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The report of a span equals the sum over its calls, for any split of the span into days and
    /// months.
    #[test]
    fn report_equals_a_sum_over_the_calls(
        calls in prop::collection::vec(call(), 0..60), from in 0_u32..100, length in 0_u32..100,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let usage = open(folder.path());
            let start = day("2026-08-20");
            for call in &calls {
                let model = ["a", "b", "b/c"][usize::from(call.model)];
                count(&usage, call.key, model, start.plus(call.day), call.sums).await;
            }
            let span = Span { from: start.plus(from), to: start.plus(from + length), key: None };
            let today = day("2026-12-15");
            for by in [
                Grouping { key: true, ..Grouping::default() },
                Grouping { model: true, month: true, ..Grouping::default() },
                Grouping { day: true, ..Grouping::default() },
            ] {
                let mut expected: BTreeMap<Group, Sums> = BTreeMap::new();
                for call in &calls {
                    let on = start.plus(call.day);
                    if on < span.from || on > span.to || call.sums == Sums::default() {
                        continue;
                    }
                    let group = Group {
                        day: by.day.then_some(on),
                        month: by.month.then(|| on.month()),
                        key: by.key.then(|| [call.key; 16].into()),
                        model: by.model.then(|| ["a", "b", "b/c"][usize::from(call.model)].into()),
                    };
                    expected.entry(group).or_default().add(&call.sums);
                }
                let found = usage.report(MINE.into(), span, by, today).await.unwrap();
                assert_eq!(found, expected);
            }
            let key = Some([1; 16].into());
            let by = Grouping { key: true, ..Grouping::default() };
            let found = usage.report(MINE.into(), Span { key, ..span }, by, today).await.unwrap();
            assert!(found.keys().all(|group| group.key == key), "{found:?}");
            let of_month: i64 = calls.iter()
                .filter(|call| start.plus(call.day).month() == start.month())
                .map(|call| call.sums.cost.micros()).sum();
            let spent = usage.spent(MINE.into(), start.month()).await.unwrap();
            assert_eq!(spent.micros(), of_month);
        });
    }
}

#[tokio::test]
async fn names_of_models_are_bounded_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let usage = open(folder.path());
    let on = day("2026-12-10");
    for number in 0..MODELS_MAX {
        count(&usage, 1, &format!("m{number}"), on, sums(1, 0, 0, 0)).await;
    }
    count(&usage, 1, "one too many", on, sums(1, 0, 0, 5)).await;
    let again = Usage::new(usage.store.clone());
    again.load([MINE.into()], noon(on)).await.unwrap();
    count(&again, 1, "another", on, sums(1, 0, 0, 5)).await;
    count(&again, 1, "m7", on, sums(1, 0, 0, 0)).await;
    let by = Grouping { model: true, ..Grouping::default() };
    let rows = report(&again, ("2026-12-01", "2026-12-15"), by).await;
    assert_eq!(rows.len(), MODELS_MAX + 1);
    let of = |name: &str| rows.iter().find(|(group, _)| group.model.as_deref() == Some(name));
    assert_eq!(of(OTHER_MODELS).unwrap().1, sums(2, 0, 0, 10));
    assert_eq!(of("m7").unwrap().1, sums(2, 0, 0, 0));
    // The next month starts without names.
    count(&again, 1, "another", day("2027-01-01"), sums(1, 0, 0, 0)).await;
    let january = day("2027-01-01");
    let doubtful = async |usage: &Usage, model: &str| {
        let mut commit = Commit::new();
        let calls = Calls { model, sums: sums(1, 0, 0, 0), is_doubtful: true };
        usage.count(&mut commit, payer(1), &calls, noon(january));
        usage.store.commit(commit).await.unwrap();
    };
    for number in 0..DOUBTFUL_MAX {
        doubtful(&again, &format!("typo{number}")).await;
    }
    let restarted = Usage::new(again.store.clone());
    restarted.load([MINE.into()], noon(january)).await.unwrap();
    doubtful(&restarted, "one too many").await;
    doubtful(&restarted, "another").await;
    count(&restarted, 1, "new", january, sums(1, 0, 0, 0)).await;
    let span = Span { from: january, to: january, key: None };
    let groups = restarted.report(MINE.into(), span, by, january).await.unwrap();
    assert_eq!(groups.len(), DOUBTFUL_MAX + 3);
    let of = |name: &str| groups.iter().find(|(group, _)| group.model.as_deref() == Some(name));
    assert_eq!(of("another").unwrap().1.requests, 2);
    assert!(of("new").is_some() && of(OTHER_MODELS).is_some());
}

#[tokio::test]
async fn old_counters_and_deleted_keys_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let usage = open(folder.path());
    let now = noon(day("2026-12-15"));
    for on in ["2023-10-10", "2024-03-03", "2026-11-11"] {
        count(&usage, 1, "m", day(on), sums(1, 2, 3, 4)).await;
    }
    let mut commit = Commit::new();
    let deleted = |at: &str| DeletedKey {
        name: "ci".to_owned(),
        created_by: "x".to_owned(),
        tags: Vec::new(),
        deleted_at: noon(day(at)),
    };
    for at in ["2023-10-10", "2024-03-03"] {
        commit.put(deleted_keys(MINE.into()).id(new_id::<KeyId>()), &deleted(at)).unwrap();
    }
    usage.store.commit(commit).await.unwrap();
    let gone = usage.forget(MINE.into(), now).await.unwrap();
    // Two days and a month, a month's total, three names, and a key.
    assert_eq!(gone, 2 + 1 + 1 + 3 + 1);
    assert_eq!(usage.forget(MINE.into(), now).await.unwrap(), 0);
    assert_eq!(usage.deleted_keys(MINE.into()).await.unwrap().len(), 1);
    let by = Grouping { month: true, ..Grouping::default() };
    let rows = report(&usage, ("2024-03-01", "2026-12-15"), by).await;
    assert_eq!(total_of(&rows), sums(2, 4, 6, 8));
    let by_day = Grouping { day: true, ..by };
    let span = Span { from: day("2024-03-01"), to: day("2026-12-15"), key: None };
    let refused = usage.report(MINE.into(), span, by_day, day("2026-12-15")).await.unwrap_err();
    assert!(matches!(refused, Error::TooOld), "{refused}");
}

#[tokio::test]
async fn reports_with_too_many_groups_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let usage = open(folder.path());
    let on = day("2026-12-10");
    let mut commit = Commit::new();
    for number in 0..=GROUPS_MAX {
        let key = u128::try_from(number).unwrap().to_be_bytes();
        let payer = Payer { organization: MINE.into(), key: key.into() };
        let calls = Calls { model: "m", sums: sums(1, 0, 0, 0), is_doubtful: false };
        usage.count(&mut commit, payer, &calls, noon(on));
    }
    usage.store.commit(commit).await.unwrap();
    let span = Span { from: on, to: on, key: None };
    let by = Grouping { key: true, ..Grouping::default() };
    let refused = usage.report(MINE.into(), span, by, on).await.unwrap_err();
    assert!(matches!(refused, Error::TooManyGroups), "{refused}");
    let by = Grouping { model: true, ..Grouping::default() };
    assert_eq!(usage.report(MINE.into(), span, by, on).await.unwrap().len(), 1);
}

#[tokio::test]
async fn rows_of_usage_keep_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let usage = open(folder.path());
    count(&usage, 7, "m", day("2026-11-20"), sums(1, 2, 3, 4)).await;
    let prefix = Key::table(Table::Usage).id(OrganizationId::from(MINE));
    let start = prefix.as_bytes().len();
    let rows = usage.store.page(Page::of(prefix, 100)).await.unwrap();
    let rows: Vec<(Vec<u8>, Vec<u8>)> =
        rows.into_iter().map(|(key, value)| (key.as_bytes()[start..].to_vec(), value)).collect();
    let counters = |grain: u8, period: u32| {
        let key = [&[grain], &period.to_be_bytes()[..], &[7; 16], b"m\0"].concat();
        (key, [1_i64, 2, 3, 4].map(i64::to_be_bytes).concat())
    };
    // Days since 1970, and the year times twelve plus the month from 0.
    let (day, month) = (20_777_u32, 2026 * 12 + 10);
    let mut expected = vec![counters(b'd', day), counters(b'm', month)];
    expected.push(([&b"n"[..], &month.to_be_bytes()[..], b"m\0"].concat(), Vec::new()));
    expected.push(([&b"t"[..], &month.to_be_bytes()[..]].concat(), 4_i64.to_be_bytes().to_vec()));
    assert_eq!(rows, expected);
}
