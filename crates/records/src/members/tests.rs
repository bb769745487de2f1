//! Tests of members on a store, with a clock that the test controls.

use super::*;
use orrery_storage::record::decode;

const PASSWORD: &str = "correct horse battery";
const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    _folder: tempfile::TempDir,
    members: Members,
    clock: Clock,
    organization: OrganizationId,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = storage::Options { folder: folder.path().join("data"), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted("2026-11-20T09:30:00Z".parse().unwrap());
        let options = Options { session_idle: 12 * HOUR, session_max: 7 * 24 * HOUR };
        let members = Members::new(store, clock.clone(), options);
        Self { _folder: folder, members, clock, organization: new_id() }
    }

    async fn owner(&self) -> (Member, String) {
        let issued = self.members.owner_link(self.organization).await.unwrap();
        self.members.set_up(&token(&issued), newcomer("ada@example.com")).await.unwrap()
    }
}

fn newcomer(email: &str) -> Newcomer<'_> {
    Newcomer { name: " Ada ", email, password: PASSWORD }
}

fn token(issued: &Issued) -> String {
    issued.url("").split_once('#').unwrap().1.to_owned()
}

#[tokio::test]
async fn session_ends_when_idle_and_at_its_maximum() {
    let fixture = Fixture::new();
    let (owner, session) = fixture.owner().await;
    assert_eq!(owner.name, "Ada");
    let stored = fixture.members.member(fixture.organization, owner.id).await.unwrap();
    assert_eq!(stored.last_seen_at, Some(fixture.clock.now()), "a new session is a use");
    // A session that is used every 11 hours lasts for a week, but no longer.
    for _ in 0..15 {
        fixture.clock.advance(11 * HOUR);
        assert!(fixture.members.authenticate(&session, By::Person).await.unwrap().is_some());
    }
    fixture.clock.advance(4 * HOUR);
    assert_eq!(fixture.members.authenticate(&session, By::Person).await.unwrap(), None);
    let (_, session) = fixture.members.log_in("ADA@example.com", PASSWORD, None).await.unwrap();
    // Neither the page's own requests nor a stream keep a session alive.
    let visit = fixture.members.authenticate(&session, By::Person).await.unwrap().unwrap();
    assert!(visit.member.last_seen_at.is_some());
    for _ in 0..11 {
        fixture.clock.advance(HOUR);
        assert!(fixture.members.authenticate(&session, By::Page).await.unwrap().is_some());
    }
    fixture.clock.advance(HOUR);
    fixture.members.ended(&visit).await;
    assert_eq!(fixture.members.authenticate(&session, By::Person).await.unwrap(), None);
    // The sweep removes both sessions, and the link that was used days ago.
    assert_eq!(fixture.members.sweep().await.unwrap(), 3);
    for nonsense in ["", "x", &"a".repeat(43), &"é".repeat(43)] {
        assert_eq!(fixture.members.authenticate(nonsense, By::Person).await.unwrap(), None);
    }
}

#[tokio::test]
async fn session_beyond_the_limit_ends_the_oldest() {
    let fixture = Fixture::new();
    let (_, first) = fixture.owner().await;
    let mut last = String::new();
    for _ in 0..32 {
        fixture.clock.advance(Duration::from_secs(1));
        last = fixture.members.log_in("ada@example.com", PASSWORD, None).await.unwrap().1;
    }
    assert_eq!(fixture.members.authenticate(&first, By::Person).await.unwrap(), None);
    assert!(fixture.members.authenticate(&last, By::Person).await.unwrap().is_some());
}

#[tokio::test]
async fn link_works_once_for_a_day() {
    let fixture = Fixture::new();
    let (owner, _) = fixture.owner().await;
    let invite = async || fixture.members.invite(fixture.organization, None, None).await.unwrap();
    let late = invite().await;
    fixture.clock.advance(24 * HOUR);
    let refused = fixture.members.accept(&token(&late), newcomer("b@example.com")).await;
    assert!(matches!(refused, Err(Error::LinkExpired)), "{refused:?}");
    let used = invite().await;
    let taken = fixture.members.accept(&token(&used), newcomer("ADA@EXAMPLE.COM")).await;
    assert!(matches!(taken, Err(Error::EmailTaken)), "{taken:?}");
    fixture.members.accept(&token(&used), newcomer("b@example.com")).await.unwrap();
    let again = fixture.members.accept(&token(&used), newcomer("c@example.com")).await;
    assert!(matches!(again, Err(Error::LinkUsed)), "{again:?}");
    let withdrawn = invite().await;
    assert_eq!(fixture.members.invitations(fixture.organization).await.unwrap().len(), 1);
    fixture.members.withdraw_invitation(fixture.organization, withdrawn.link.id).await.unwrap();
    let refused = fixture.members.link(&token(&withdrawn)).await;
    assert!(matches!(refused, Err(Error::LinkWithdrawn)), "{refused:?}");
    // A link works only for its own purpose.
    let reset = fixture.members.reset_link(fixture.organization, owner.id).await.unwrap();
    let foreign = fixture.members.accept(&token(&reset), newcomer("c@example.com")).await;
    assert!(matches!(foreign, Err(Error::LinkUnknown)), "{foreign:?}");
    // The records are removed a day after the links have expired; no open link is lost.
    fixture.clock.advance(47 * HOUR);
    assert_eq!(fixture.members.sweep_links().await.unwrap(), 2);
    fixture.clock.advance(HOUR);
    assert_eq!(fixture.members.sweep_links().await.unwrap(), 3);
    let gone = fixture.members.link(&token(&reset)).await;
    assert!(matches!(gone, Err(Error::LinkUnknown)), "{gone:?}");
    assert!(fixture.members.store.get(&rows::link_of(&reset.link)).await.unwrap().is_none());
}

#[tokio::test]
async fn member_changes_race_without_a_second_owner_or_a_lost_write() {
    let fixture = Fixture::new();
    let issued = fixture.members.owner_link(fixture.organization).await.unwrap();
    let token = token(&issued);
    let emails: Vec<String> = (0..4).map(|number| format!("{number}@example.com")).collect();
    let racing = emails.iter().map(|email| fixture.members.set_up(&token, newcomer(email)));
    let outcomes = futures_util::future::join_all(racing).await;
    let made: Vec<_> = outcomes.iter().filter(|outcome| outcome.is_ok()).collect();
    assert_eq!(made.len(), 1, "{outcomes:?}");
    assert_eq!(fixture.members.list(fixture.organization).await.unwrap().len(), 1);
    let invited = fixture.members.invite(fixture.organization, None, None).await.unwrap();
    let accepted = fixture.members.accept(&self::token(&invited), newcomer("b@example.com")).await;
    let (member, session) = accepted.unwrap();
    let visit = fixture.members.authenticate(&session, By::Person).await.unwrap().unwrap();
    let access = AccessChange { api_key_access: Some(true), role: Some(MemberRole::Viewer) };
    let allow = fixture.members.set_access(fixture.organization, member.id, access);
    let reset = fixture.members.reset_link(fixture.organization, member.id).await.unwrap();
    let reset_token = self::token(&reset);
    let reset = fixture.members.reset(&reset_token, "another long password");
    let (allowed, reset) = tokio::join!(allow, reset);
    assert!(allowed.is_ok() && reset.is_ok());
    let now = fixture.members.member(fixture.organization, member.id).await.unwrap();
    assert_eq!((now.api_key_access, now.role, now.epoch), (true, MemberRole::Viewer, 1));
    let owner = AccessChange { role: Some(MemberRole::Owner), ..AccessChange::default() };
    let refused = fixture.members.set_access(fixture.organization, member.id, owner).await;
    assert!(matches!(refused, Err(Error::OneOwner)), "{refused:?}");
    tokio::time::timeout(60 * Duration::from_secs(1), fixture.members.ended(&visit)).await.unwrap();
    fixture.members.remove(fixture.organization, member.id).await.unwrap();
    assert!(matches!(
        fixture.members.log_in("b@example.com", "another long password", None).await,
        Err(Error::WrongPassword)
    ));
    assert!(matches!(
        fixture.members.remove(fixture.organization, member.id).await,
        Err(Error::NoMember)
    ));
}

#[test]
fn member_names_and_addresses_are_checked() {
    for bad in
        ["", "ada", "@x", "ada@", "a b@x", "a@b@c", "a\n@x", &format!("{}@x", "a".repeat(253))]
    {
        assert!(check_email(bad).is_err(), "{bad}");
    }
    for good in ["ada@example.com", "ä@ü.example", "a+b@x"] {
        assert!(check_email(good).is_ok(), "{good}");
    }
    assert!(check_name("").is_err() && check_name(&"x".repeat(65)).is_err());
    assert!(check_name("a\u{7}").is_err() && check_name("Ada Lovelace").is_ok());
}

#[test]
fn member_records_match_golden_bytes() {
    use orrery_storage::record::encode;
    let at = "2026-11-20T09:30:00Z".parse().unwrap();
    let member = Member {
        id: [1; 16].into(),
        organization: [2; 16].into(),
        name: "Ada".to_owned(),
        email: "ada@example.com".to_owned(),
        role: MemberRole::Owner,
        api_key_access: true,
        password: "$argon2id$".to_owned(),
        epoch: 3,
        created_at: at,
        last_seen_at: None,
    };
    let stored = r#"{"id":"01010101-0101-0101-0101-010101010101","#.to_owned()
        + r#""organization":"02020202-0202-0202-0202-020202020202","name":"Ada","#
        + r#""email":"ada@example.com","role":"owner","api_key_access":true,"#
        + r#""password":"$argon2id$","epoch":3,"created_at":1795167000000000}"#;
    assert_eq!(encode(&member).unwrap(), [b"\x01", stored.as_bytes()].concat());
    assert_eq!(decode::<Member>(&encode(&member).unwrap()).unwrap(), member);
    // Before there were roles, everyone but the Owner was a `member`.
    let before = [b"\x01", stored.replace("owner", "member").as_bytes()].concat();
    assert_eq!(decode::<Member>(&before).unwrap().role, MemberRole::Editor);
}

#[tokio::test]
async fn streams_are_limited_for_each_member_and_organization() {
    let fixture = Fixture::new();
    let (_, session) = fixture.owner().await;
    let visit = fixture.members.authenticate(&session, By::Page).await.unwrap().unwrap();
    let another = |organization| {
        let mut visit = visit.clone();
        (visit.member.id, visit.member.organization) = (new_id(), organization);
        visit
    };
    let follow = |visit: &Visit| fixture.members.follow(visit);
    let mut held = Vec::new();
    while let Some(place) = follow(&another(fixture.organization)) {
        held.push(place);
    }
    assert_eq!(held.len(), followers::STREAMS_OF_ORGANIZATION_MAX);
    // Other organizations have their own limit, and a released slot can be used again.
    assert!(follow(&another(new_id())).is_some());
    held.pop();
    let own: Vec<_> = (0..followers::STREAMS_MAX).map_while(|_| follow(&visit)).collect();
    assert_eq!(own.len(), 1);
    held.truncate(1);
    let more: Vec<_> = (0..followers::STREAMS_MAX).map_while(|_| follow(&visit)).collect();
    assert_eq!(more.len(), followers::STREAMS_MAX);
    // The member's ninth stream replaces the first.
    own.first().unwrap().replaced().await;
}
