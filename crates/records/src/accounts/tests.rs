//! Tests of keys: creation, lookup, expiry and deletion, also during concurrent requests.

use super::*;
use orrery_domain::money::Usd;
use orrery_storage::Options;
use orrery_storage::record::encode;

async fn accounts() -> (tempfile::TempDir, Accounts, Clock, OrganizationId) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
    let clock = Clock::scripted("2026-11-20T09:30:00Z".parse().unwrap());
    let accounts = Accounts::new(Store::open(&options).unwrap(), clock.clone());
    let (organization, made) = accounts.ensure_default().await.unwrap();
    assert!(made && !accounts.ensure_default().await.unwrap().1);
    (folder, accounts, clock, organization.id)
}

#[tokio::test]
async fn api_key_authenticates_until_deleted() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (key, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    assert!(full.starts_with(&key.prefix) && full.len() == 36 && key.prefix.len() == 8);
    let prefix = Prefix::of(&full);
    assert_eq!(prefix.to_string(), key.prefix);
    let caller = Some(Caller { organization, key: key.id, prefix });
    for _ in 0..2 {
        assert_eq!(accounts.authenticate(&full).await.unwrap(), caller);
    }
    assert_eq!(accounts.keys(organization).await.unwrap(), std::slice::from_ref(&key));
    accounts.delete_key(organization, key.id).await.unwrap();
    assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
    assert_eq!(accounts.keys(organization).await.unwrap(), []);
    let again = accounts.delete_key(organization, key.id).await;
    assert!(matches!(again, Err(Error::NoKey)));
}

#[tokio::test]
async fn malformed_api_key_is_rejected_and_not_cached() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (_, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    let upper = full.to_uppercase();
    let spaced = format!("{full} ");
    let short = "x".repeat(3);
    let long = "smk_".repeat(10_000);
    let accented = format!("smk_{}é", "a".repeat(30));
    assert_eq!(accented.len(), KEY_LENGTH);
    for presented in
        ["", "smk_", "smk_é", &full[1..], &full[..35], &upper, &spaced, &short, &long, &accented]
    {
        assert!(!has_the_form_of_a_key(KEY_PREFIX, presented), "{presented}");
        assert_eq!(accounts.authenticate(presented).await.unwrap(), None, "{presented}");
    }
    for digit in 0..100 {
        let foreign = random_key(KEY_PREFIX).unwrap();
        assert!(has_the_form_of_a_key(KEY_PREFIX, &foreign), "{foreign}");
        assert_eq!(accounts.authenticate(&foreign).await.unwrap(), None);
        let mut near = full.clone().into_bytes();
        let place = 4 + digit % 32;
        near[place] = if near[place] == b'a' { b'b' } else { b'a' };
        let near = String::from_utf8(near).unwrap();
        assert_eq!(accounts.authenticate(&near).await.unwrap(), None);
    }
    assert!(accounts.cache.read().unwrap().keys.is_empty());
}

#[tokio::test]
async fn cached_api_key_is_read_from_disk_once() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (_, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    let first = accounts.authenticate(&full).await.unwrap();
    // Delete the row directly, bypassing the cache, to detect whether the key is read again.
    let mut commit = Commit::new();
    commit.delete(hash_key(&hash(&full)));
    accounts.store.commit(commit).await.unwrap();
    assert!(first.is_some());
    assert_eq!(accounts.authenticate(&full).await.unwrap(), first);
    let fresh = Accounts::new(accounts.store.clone(), accounts.clock.clone());
    assert_eq!(fresh.authenticate(&full).await.unwrap(), None);
}

#[tokio::test]
async fn api_key_cache_is_bounded() {
    let (_folder, accounts, _, organization) = accounts().await;
    let caller = Caller { organization, key: new_id(), prefix: Prefix::of("smk_abcd") };
    for number in 0..=CACHED_KEYS as u64 {
        let known = Known { caller, expires_at: None, noted: usage::Minute::default() };
        accounts.remember(Sha256::digest(number.to_be_bytes()).into(), known, 0);
    }
    assert_eq!(accounts.cache.read().unwrap().keys.len(), 1);
}

#[tokio::test]
async fn api_key_expires_while_cached() {
    let (_folder, accounts, clock, organization) = accounts().await;
    let span = Some(Duration::from_secs(60));
    let (_, full) = accounts.create_key(organization, "short", "root", span).await.unwrap();
    assert!(accounts.authenticate(&full).await.unwrap().is_some());
    clock.advance(Duration::from_secs(60));
    assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
}

#[tokio::test]
async fn api_key_secret_is_not_stored() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (_, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    let secret = &full.as_bytes()[SHOWN..];
    for table in [Table::ApiKey, Table::ApiKeyId] {
        for (key, value) in accounts.store.page(Key::table(table).into()).await.unwrap() {
            for bytes in [key.as_bytes(), &value] {
                assert!(!bytes.windows(secret.len()).any(|window| window == secret));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_deleted_during_reads_never_authenticates_again() {
    let (_folder, accounts, _, organization) = accounts().await;
    for _ in 0..50 {
        let (key, full) = accounts.create_key(organization, "race", "root", None).await.unwrap();
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let accounts = accounts.clone();
                let full = full.clone();
                orrery_runtime::Tasks::new()
                    .spawn(async move { accounts.authenticate(&full).await })
            })
            .collect();
        accounts.delete_key(organization, key.id).await.unwrap();
        assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
        for reader in readers {
            reader.await.unwrap().unwrap();
        }
        assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
    }
}

#[tokio::test]
async fn api_key_read_before_deletion_is_not_cached_after_it() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (key, full) = accounts.create_key(organization, "race", "root", None).await.unwrap();
    let caller = accounts.authenticate(&full).await.unwrap().unwrap();
    let read_before = accounts.cache.read().unwrap().deletions;
    accounts.delete_key(organization, key.id).await.unwrap();
    let known = Known { caller, expires_at: None, noted: usage::Minute::default() };
    accounts.remember(hash(&full), known, read_before);
    assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
}

#[tokio::test]
async fn api_key_deletion_completes_after_caller_is_dropped() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (key, full) = accounts.create_key(organization, "gone", "root", None).await.unwrap();
    assert!(accounts.authenticate(&full).await.unwrap().is_some());
    let deletion = accounts.delete_key(organization, key.id);
    drop(accounts.store.faults().hold_at_sync(deletion).await);
    assert!(accounts.tasks.ended(Duration::from_secs(60)).await);
    assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
}

#[tokio::test]
async fn api_key_concurrent_deletions_succeed_once() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (key, _) = accounts.create_key(organization, "once", "root", None).await.unwrap();
    let deletions = (0..8).map(|_| accounts.delete_key(organization, key.id));
    let outcomes = futures_util::future::join_all(deletions).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let refused = outcomes.iter().filter(|outcome| matches!(outcome, Err(Error::NoKey)));
    assert_eq!(refused.count(), 7);
}

#[tokio::test]
async fn api_key_belongs_to_its_organization() {
    let (_folder, accounts, _, mine) = accounts().await;
    let other = accounts.create_organization("other").await.unwrap().id;
    let (key, full) = accounts.create_key(mine, "mine", "root", None).await.unwrap();
    assert_eq!(accounts.keys(other).await.unwrap(), []);
    let foreign = accounts.delete_key(other, key.id).await;
    assert!(matches!(foreign, Err(Error::NoKey)));
    assert_eq!(accounts.authenticate(&full).await.unwrap().unwrap().organization, mine);
    let nobodys = accounts.create_key(new_id(), "nobody", "root", None).await;
    assert!(matches!(nobodys, Err(Error::NoOrganization(_))));
}

#[tokio::test]
async fn organization_and_key_names_are_validated_and_unique() {
    let (_folder, accounts, _, organization) = accounts().await;
    for bad in ["", "A", "a b", "é", &"x".repeat(65)] {
        let refused = accounts.create_organization(bad).await;
        assert!(matches!(refused, Err(Error::InvalidName)), "{bad}");
    }
    accounts.create_organization("team-1").await.unwrap();
    let refused = accounts.create_organization("team-1").await.unwrap_err();
    assert_eq!(refused.to_string(), "the organization team-1 already exists");
    let names: Vec<_> =
        accounts.organizations().await.unwrap().into_iter().map(|o| o.name).collect();
    assert_eq!(names, ["default", "team-1"]);
    let missing = accounts.organization("team-2").await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no organization team-2: did you mean team-1?");
    for bad in ["", " ", "a\nb", &"x".repeat(65)] {
        let refused = accounts.create_key(organization, bad, "root", None).await;
        assert!(matches!(refused, Err(Error::InvalidKeyName)), "{bad}");
    }
}

#[test]
fn api_key_alphabet_has_no_lookalikes() {
    let key = random_key(KEY_PREFIX).unwrap();
    assert_eq!(key.len(), KEY_LENGTH);
    assert!(key[4..].bytes().all(|digit| DIGITS.contains(&digit)), "{key}");
    assert_ne!(key, random_key(KEY_PREFIX).unwrap());
}

proptest::proptest! {
    #[test]
    fn api_key_format_check_never_panics(text in ".*") {
        proptest::prop_assert!(!has_the_form_of_a_key(KEY_PREFIX, &text) || text.len() == KEY_LENGTH);
        proptest::prop_assert_eq!(Prefix::of(&text).to_string().len(), SHOWN);
    }
}

#[test]
fn account_records_match_golden_bytes() {
    let organization = Organization {
        id: [1; 16].into(),
        name: "default".to_owned(),
        created_at: "2026-11-20T09:30:00Z".parse().unwrap(),
        limits: Limits::default(),
        deleted_at: None,
    };
    let key = ApiKey {
        id: [2; 16].into(),
        organization: organization.id,
        name: "ci".to_owned(),
        prefix: "smk_abcd".to_owned(),
        created_by: "root".to_owned(),
        created_at: organization.created_at,
        expires_at: None,
        policy: KeyPolicy::default(),
        previous: None,
    };
    let golden = |json: &str| [b"\x01", json.as_bytes()].concat();
    let stored = r#"{"id":"01010101-0101-0101-0101-010101010101","name":"default","#.to_owned()
        + r#""created_at":1795167000000000}"#;
    assert_eq!(encode(&organization).unwrap(), golden(&stored));
    let stored = r#"{"id":"02020202-0202-0202-0202-020202020202","#.to_owned()
        + r#""organization":"01010101-0101-0101-0101-010101010101","name":"ci","#
        + r#""prefix":"smk_abcd","created_by":"root","created_at":1795167000000000}"#;
    assert_eq!(encode(&key).unwrap(), golden(&stored));
    assert_eq!(decode::<ApiKey>(&golden(&stored)).unwrap(), key);
    let deleted = DeletedKey {
        name: key.name,
        created_by: key.created_by,
        tags: vec!["team=a".to_owned()],
        deleted_at: organization.created_at,
    };
    let stored = r#"{"name":"ci","created_by":"root","tags":["team=a"],"#.to_owned()
        + r#""deleted_at":1795167000000000}"#;
    assert_eq!(encode(&deleted).unwrap(), golden(&stored));
    let monthly_budget = Some(Usd::from_micros(1_500_000));
    let limits = Limits { monthly_budget, ..Limits::default() };
    assert_eq!(serde_json::to_string(&limits).unwrap(), r#"{"monthly_budget":1500000}"#);
}

#[tokio::test]
async fn admin_keys_and_api_keys_are_not_interchangeable() {
    let (_folder, accounts, clock, organization) = accounts().await;
    let (admin, full) = accounts.create_admin_key("box", "root", None).await.unwrap();
    let (_, ordinary) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    assert!(full.starts_with(ADMIN_KEY_PREFIX) && full.len() == KEY_LENGTH);
    for _ in 0..2 {
        assert_eq!(accounts.authenticate_admin(&full).await.unwrap(), Some(admin.id));
        assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
        assert_eq!(accounts.authenticate_admin(&ordinary).await.unwrap(), None);
        assert!(accounts.authenticate(&ordinary).await.unwrap().is_some());
    }
    let swapped = full.replace(ADMIN_KEY_PREFIX, KEY_PREFIX);
    assert_eq!(accounts.authenticate(&swapped).await.unwrap(), None);
    let keys = accounts.keys(organization).await.unwrap();
    assert!(keys.iter().all(|key| key.id != admin.id), "a member would see it");
    assert_eq!(accounts.keys(box_owner()).await.unwrap(), std::slice::from_ref(&admin));
    let end = clock.now();
    accounts
        .change_key(box_owner(), admin.id, move |key| key.expires_at = Some(end))
        .await
        .unwrap();
    assert_eq!(accounts.authenticate_admin(&full).await.unwrap(), None);
    accounts.change_key(box_owner(), admin.id, |key| key.expires_at = None).await.unwrap();
    assert_eq!(accounts.authenticate_admin(&full).await.unwrap(), Some(admin.id));
    accounts.delete_key(box_owner(), admin.id).await.unwrap();
    assert_eq!(accounts.authenticate_admin(&full).await.unwrap(), None);
}

#[tokio::test]
async fn organization_limits_are_stored_and_loaded() {
    let (_folder, accounts, clock, organization) = accounts().await;
    let few = Limits { running: Some(2), ..Limits::default() };
    let changed = accounts.change_limits(organization, move |_| few).await.unwrap();
    assert_eq!((changed.limits, accounts.limits().of(organization)), (few, few));
    let again = Accounts::new(accounts.store.clone(), clock);
    assert_eq!(again.limits().of(organization), Limits::default());
    again.load_limits().await.unwrap();
    assert_eq!(again.limits().of(organization), few);
    again.change_limits(organization, |_| Limits::default()).await.unwrap();
    assert_eq!(again.limits().of(organization), Limits::default());
    let missing = again.change_limits([9; 16].into(), |held| held).await;
    assert!(matches!(missing, Err(Error::NoOrganization(_))));
}

#[tokio::test]
async fn bootstrap_key_is_made_once_and_never_again() {
    let (_folder, accounts, clock, organization) = accounts().await;
    let text = "smk_0123456789abcdef0123456789ABCDEF_-";
    let wanted = BootstrapKey::new(text.to_owned()).unwrap();
    assert_eq!(accounts.authenticate(text).await.unwrap(), None);
    let made = accounts.bootstrap(organization, &wanted).await.unwrap().unwrap();
    let caller = accounts.authenticate(text).await.unwrap().unwrap();
    assert_eq!((caller.key, caller.organization), (made.id, organization));
    assert_eq!(accounts.bootstrap(organization, &wanted).await.unwrap(), None);
    assert_eq!(accounts.keys(organization).await.unwrap(), std::slice::from_ref(&made));
    accounts.delete_key(organization, made.id).await.unwrap();
    let other = BootstrapKey::new(format!("{text}2")).unwrap();
    let again = Accounts::new(accounts.store.clone(), clock);
    for wanted in [&wanted, &other] {
        assert_eq!(again.bootstrap(organization, wanted).await.unwrap(), None);
    }
    assert_eq!(again.authenticate(text).await.unwrap(), None);
    assert_eq!(again.keys(organization).await.unwrap(), []);
}
