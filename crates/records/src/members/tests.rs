//! Tests of members on a store, with a clock that the test controls.

use super::*;
use orrery_domain::time::Timestamp;
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
        let sealer = Sealer::open(&options.folder).unwrap();
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted("2026-11-20T09:30:00Z".parse().unwrap());
        let options = Options {
            session_idle: 12 * HOUR,
            session_max: 7 * 24 * HOUR,
            require_second_factor: false,
        };
        let members = Members::new(store, sealer, clock.clone(), options);
        Self { _folder: folder, members, clock, organization: new_id() }
    }

    async fn owner(&self) -> (Member, String) {
        let issued = self.members.owner_link(self.organization).await.unwrap();
        self.members
            .set_up(&token(&issued), newcomer("ada@example.com"), Origin::default())
            .await
            .unwrap()
    }
}

fn newcomer(email: &str) -> Newcomer<'_> {
    Newcomer { name: " Ada ", email, password: PASSWORD }
}

fn with<'a>(email: &'a str, password: &'a str) -> LogIn<'a> {
    LogIn { email, password, code: None }
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
    let (_, session) =
        fixture.members.log_in(with("ADA@example.com", PASSWORD), Origin::default()).await.unwrap();
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
        last = fixture
            .members
            .log_in(with("ada@example.com", PASSWORD), Origin::default())
            .await
            .unwrap()
            .1;
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
    let refused =
        fixture.members.accept(&token(&late), newcomer("b@example.com"), Origin::default()).await;
    assert!(matches!(refused, Err(Error::LinkExpired)), "{refused:?}");
    let used = invite().await;
    let taken =
        fixture.members.accept(&token(&used), newcomer("ADA@EXAMPLE.COM"), Origin::default()).await;
    assert!(matches!(taken, Err(Error::EmailTaken)), "{taken:?}");
    fixture
        .members
        .accept(&token(&used), newcomer("b@example.com"), Origin::default())
        .await
        .unwrap();
    let again =
        fixture.members.accept(&token(&used), newcomer("c@example.com"), Origin::default()).await;
    assert!(matches!(again, Err(Error::LinkUsed)), "{again:?}");
    let withdrawn = invite().await;
    assert_eq!(fixture.members.invitations(fixture.organization).await.unwrap().len(), 1);
    fixture.members.withdraw_invitation(fixture.organization, withdrawn.link.id).await.unwrap();
    let refused = fixture.members.link(&token(&withdrawn)).await;
    assert!(matches!(refused, Err(Error::LinkWithdrawn)), "{refused:?}");
    // A link works only for its own purpose.
    let reset = fixture.members.reset_link(fixture.organization, owner.id).await.unwrap();
    let foreign =
        fixture.members.accept(&token(&reset), newcomer("c@example.com"), Origin::default()).await;
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
    let racing = emails
        .iter()
        .map(|email| fixture.members.set_up(&token, newcomer(email), Origin::default()));
    let outcomes = futures_util::future::join_all(racing).await;
    let made: Vec<_> = outcomes.iter().filter(|outcome| outcome.is_ok()).collect();
    assert_eq!(made.len(), 1, "{outcomes:?}");
    assert_eq!(fixture.members.list(fixture.organization).await.unwrap().len(), 1);
    let invited = fixture.members.invite(fixture.organization, None, None).await.unwrap();
    let accepted = fixture
        .members
        .accept(&self::token(&invited), newcomer("b@example.com"), Origin::default())
        .await;
    let (member, session) = accepted.unwrap();
    let visit = fixture.members.authenticate(&session, By::Person).await.unwrap().unwrap();
    let access = AccessChange { api_key_access: Some(true), role: Some(MemberRole::Viewer) };
    let allow = fixture.members.set_access(fixture.organization, member.id, access);
    let reset = fixture.members.reset_link(fixture.organization, member.id).await.unwrap();
    let reset_token = self::token(&reset);
    let reset =
        fixture.members.reset(&reset_token, "another long password", None, Origin::default());
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
        fixture
            .members
            .log_in(with("b@example.com", "another long password"), Origin::default())
            .await,
        Err(Error::WrongPassword)
    ));
    assert!(matches!(
        fixture.members.remove(fixture.organization, member.id).await,
        Err(Error::NoMember)
    ));
}

#[tokio::test]
async fn code_is_accepted_once_within_its_step_and_its_neighbors() {
    let fixture = Fixture::new();
    let (owner, _) = fixture.owner().await;
    let members = &fixture.members;
    let begun = members.begin_second_factor(&owner).await.unwrap();
    let code = |offset: i64| {
        let seconds = fixture.clock.now().unix_seconds() + 30 * offset;
        code_at(&begun.secret, Timestamp::from_micros(seconds * 1_000_000)).unwrap()
    };
    let enter = async |code: Option<&str>| {
        let log_in = LogIn { code, ..with("ada@example.com", PASSWORD) };
        members.log_in(log_in, Origin::default()).await
    };
    // An unconfirmed factor changes nothing, and is confirmed only by its own code.
    enter(None).await.unwrap();
    let wrong = members.confirm_second_factor(&owner, "000000", None).await;
    assert!(matches!(wrong, Err(Error::WrongCode)), "{wrong:?}");
    let first = code(0);
    members.confirm_second_factor(&owner, &first, None).await.unwrap();
    let begun_again = members.begin_second_factor(&owner).await;
    assert!(matches!(begun_again, Err(Error::HasSecondFactor)), "{begun_again:?}");
    assert!(matches!(enter(None).await, Err(Error::CodeNeeded)));
    assert!(matches!(enter(Some(" ")).await, Err(Error::CodeNeeded)));
    for used_or_late in [first, code(-1), code(2)] {
        assert!(matches!(enter(Some(&used_or_late)).await, Err(Error::WrongCode)));
    }
    let next = code(1);
    let spaced = format!("{} {}", &next[..3], &next[3..]);
    let (one, other) = tokio::join!(enter(Some(&next)), enter(Some(&spaced)));
    assert_eq!([one.is_ok(), other.is_ok()].iter().filter(|is_in| **is_in).count(), 1);
    // A clock that is 30 seconds behind.
    fixture.clock.advance(Duration::from_secs(90));
    enter(Some(&code(-1))).await.unwrap();
    let stored = members.member(fixture.organization, owner.id).await.unwrap();
    let factor = stored.second_factor.clone().unwrap();
    assert!(!factor.secret.contains(&begun.secret) && factor.recovery.len() == 10);
    assert!(!factor.recovery.contains(&begun.recovery_codes[0]));
    // Each recovery code works once, however it is written.
    let written = begun.recovery_codes[3].to_uppercase().replace('-', " ");
    enter(Some(&written)).await.unwrap();
    assert!(matches!(enter(Some(&begun.recovery_codes[3])).await, Err(Error::WrongCode)));
}

#[tokio::test]
async fn code_is_needed_for_reset_and_removed_with_password() {
    let fixture = Fixture::new();
    let (owner, _) = fixture.owner().await;
    let members = &fixture.members;
    let begun = members.begin_second_factor(&owner).await.unwrap();
    let code = code_at(&begun.secret, fixture.clock.now()).unwrap();
    members.confirm_second_factor(&owner, &code, None).await.unwrap();
    let link = token(&members.reset_link(fixture.organization, owner.id).await.unwrap());
    let reset = async |code: Option<&str>| {
        members.reset(&link, "another long password", code, Origin::default()).await
    };
    assert!(matches!(reset(None).await, Err(Error::CodeNeeded)));
    assert!(matches!(reset(Some("123")).await, Err(Error::WrongCode)));
    let (owner, _) = reset(Some(&begun.recovery_codes[0])).await.unwrap();
    let wrong = members.remove_second_factor(&owner, PASSWORD, None).await;
    assert!(matches!(wrong, Err(Error::WrongPassword)), "{wrong:?}");
    members.remove_second_factor(&owner, "another long password", None).await.unwrap();
    members
        .log_in(with("ada@example.com", "another long password"), Origin::default())
        .await
        .unwrap();
    let none = members.clear_second_factor(fixture.organization, owner.id).await;
    assert!(matches!(none, Err(Error::NoSecondFactor)), "{none:?}");
}

#[tokio::test]
async fn wrong_codes_are_throttled_like_passwords() {
    let fixture = Fixture::new();
    let (owner, _) = fixture.owner().await;
    let members = &fixture.members;
    let begun = members.begin_second_factor(&owner).await.unwrap();
    let code = code_at(&begun.secret, fixture.clock.now()).unwrap();
    members.confirm_second_factor(&owner, &code, None).await.unwrap();
    let origin = || Origin { address: Some("10.0.0.1".parse().unwrap()), device: None };
    let enter = async |code| {
        let log_in = LogIn { code: Some(code), ..with("ada@example.com", PASSWORD) };
        members.log_in(log_in, origin()).await
    };
    for _ in 0..5 {
        assert!(matches!(enter("000001").await, Err(Error::WrongCode)));
    }
    let right = enter(&begun.recovery_codes[0]).await;
    assert!(matches!(right, Err(Error::TooManyAttempts(_))), "{right:?}");
}

#[tokio::test]
async fn session_of_identity_provider_lasts_an_hour() {
    let fixture = Fixture::new();
    let members = &fixture.members;
    let person = |name| External {
        organization: fixture.organization,
        issuer: "https://id.example",
        subject: "ada",
        email: "ada@example.com",
        name,
        role: MemberRole::Viewer,
    };
    let log_ins = (0..4).map(|_| members.log_in_external(person("A\na"), Origin::default()));
    let log_ins = futures_util::future::join_all(log_ins).await;
    let (member, token) = log_ins.into_iter().map(Result::unwrap).next().unwrap();
    assert_eq!((member.name.as_str(), member.may_manage_keys()), ("Aa", false));
    assert_eq!(members.list(fixture.organization).await.unwrap().len(), 1);
    fixture.clock.advance(HOUR - Duration::from_secs(1));
    let visit = members.authenticate(&token, By::Person).await.unwrap().unwrap();
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(members.authenticate(&token, By::Person).await.unwrap(), None);
    // Another person with the same email address, or another issuer's person, is not this member.
    let other = External { issuer: "https://other.example", ..person("Ada") };
    let taken = members.log_in_external(other, Origin::default()).await;
    assert!(matches!(taken, Err(Error::EmailTaken)), "{taken:?}");
    let (_, token) = members.log_in_external(person(""), Origin::default()).await.unwrap();
    members.end_sessions(&visit.member).await.unwrap();
    assert_eq!(members.authenticate(&token, By::Person).await.unwrap(), None);
    members.remove(fixture.organization, member.id).await.unwrap();
    assert_eq!(members.external("https://id.example", "ada").await.unwrap(), None);
}

#[tokio::test]
async fn sessions_are_listed_and_ended_one_by_one() {
    let fixture = Fixture::new();
    let (_, first) = fixture.owner().await;
    let members = &fixture.members;
    let open = async |device: &str| {
        fixture.clock.advance(Duration::from_secs(1));
        let device = Some(device.repeat(200));
        let origin = Origin { address: Some("10.0.0.7".parse().unwrap()), device };
        members.log_in(with("ada@example.com", PASSWORD), origin).await.unwrap().1
    };
    let second = open("ab").await;
    let third = open("c").await;
    let visit = async |token: &str| members.authenticate(token, By::Page).await.unwrap();
    let own = visit(&second).await.unwrap();
    let listed = members.sessions(&own).await.unwrap();
    let current: Vec<bool> = listed.iter().map(|one| one.is_current).collect();
    assert_eq!(current, [false, true, false]);
    assert_eq!(listed[1].session.origin.device, Some("ab".repeat(128)), "cut");
    assert_eq!(listed[2].session.origin, Origin::default());
    members.end_session(&own, &listed[0].id).await.unwrap();
    assert!(visit(&third).await.is_none() && visit(&first).await.is_some());
    let gone = members.end_session(&own, &listed[0].id).await;
    assert!(matches!(gone, Err(Error::NoSession)), "{gone:?}");
    members.end_other_sessions(&own).await.unwrap();
    assert!(visit(&first).await.is_none() && visit(&second).await.is_some());
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
        identity: None,
        second_factor: None,
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
