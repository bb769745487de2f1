//! Keys: made, found, expired, deleted, also while requests come in with them.

use super::*;
use crate::storage::Options;

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
async fn a_key_opens_until_it_is_deleted() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (key, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    assert!(full.starts_with(&key.prefix) && full.len() == 36 && key.prefix.len() == 8);
    let caller = Some(Caller { organization, key: key.id });
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
async fn what_is_no_key_opens_nothing() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (_, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    let upper = full.to_uppercase();
    let foreign = format!("smk_{}", "a".repeat(32));
    for presented in ["", "smk_", &full[1..], &upper, &foreign, "smk_é", &"x".repeat(10_000)] {
        assert_eq!(accounts.authenticate(presented).await.unwrap(), None, "{presented}");
    }
}

#[tokio::test]
async fn a_key_expires_by_the_clock_also_in_memory() {
    let (_folder, accounts, clock, organization) = accounts().await;
    let span = Some(Duration::from_secs(60));
    let (_, full) = accounts.create_key(organization, "short", "root", span).await.unwrap();
    assert!(accounts.authenticate(&full).await.unwrap().is_some());
    clock.advance(Duration::from_secs(60));
    assert_eq!(accounts.authenticate(&full).await.unwrap(), None);
}

#[tokio::test]
async fn the_stored_rows_do_not_hold_the_key() {
    let (_folder, accounts, _, organization) = accounts().await;
    let (_, full) = accounts.create_key(organization, "ci", "root", None).await.unwrap();
    let secret = &full.as_bytes()[SHOWN..];
    for table in [Table::ApiKey, Table::ApiKeyId] {
        for (key, value) in accounts.rows(Key::table(table)).await.unwrap() {
            for bytes in [key.as_bytes(), &value] {
                assert!(!bytes.windows(secret.len()).any(|window| window == secret));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_key_never_rises_from_the_dead() {
    let (_folder, accounts, _, organization) = accounts().await;
    for _ in 0..50 {
        let (key, full) = accounts.create_key(organization, "race", "root", None).await.unwrap();
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let (accounts, full) = (accounts.clone(), full.clone());
                crate::runtime::Tasks::new()
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
async fn names_are_checked_and_unique() {
    let (_folder, accounts, _, organization) = accounts().await;
    for bad in ["", "A", "a b", "é", &"x".repeat(65)] {
        let refused = accounts.create_organization(bad).await;
        assert!(matches!(refused, Err(Error::InvalidName)), "{bad}");
    }
    accounts.create_organization("team-1").await.unwrap();
    let refused = accounts.create_organization("team-1").await.unwrap_err();
    assert_eq!(refused.to_string(), "the organization team-1 exists already");
    let names: Vec<_> =
        accounts.organizations().await.unwrap().into_iter().map(|o| o.name).collect();
    assert_eq!(names, ["default", "team-1"]);
    let missing = accounts.organization("team-2").await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no organization team-2");
    for bad in ["", "a\nb", &"x".repeat(65)] {
        let refused = accounts.create_key(organization, bad, "root", None).await;
        assert!(matches!(refused, Err(Error::InvalidKeyName)), "{bad}");
    }
}

#[test]
fn keys_are_spelled_without_look_alikes() {
    let key = random_key().unwrap();
    assert_eq!(key.len(), KEY_LENGTH);
    assert!(key[4..].bytes().all(|digit| DIGITS.contains(&digit)), "{key}");
    assert_ne!(key, random_key().unwrap());
}
