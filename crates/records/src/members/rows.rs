//! The rows of members, sessions and links, and the tokens of sessions and links.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::Error;
use orrery_domain::ids::{LinkId, MemberId, OrganizationId};
use orrery_domain::member::{Link, LinkKind};
use orrery_runtime::random_bytes;
use orrery_storage::{Key, Table};

/// Random bytes in a token.
const TOKEN_BYTES: usize = 32;
/// Length of a token, in characters.
const TOKEN_LENGTH: usize = 43;

pub(super) type Hash = [u8; 32];

/// Returns the hash of a token; `None` if the string does not have the format of a token.
pub(super) fn token_hash(token: &str) -> Option<Hash> {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let has_form = token.len() == TOKEN_LENGTH && token.bytes().all(is_digit);
    has_form.then(|| Sha256::digest(token.as_bytes()).into())
}

/// Generates a token and its hash.
pub(super) fn new_token() -> Result<(String, Hash), Error> {
    let token = URL_SAFE_NO_PAD.encode(random_bytes::<TOKEN_BYTES>()?);
    let hash = Sha256::digest(token.as_bytes()).into();
    Ok((token, hash))
}

/// Returns the canonical form of an email address, for comparisons.
pub(super) fn folded(email: &str) -> String {
    email.to_lowercase()
}

/// Returns the key under which an account's login attempts are throttled.
pub(super) fn account_of(email: &str) -> Hash {
    Sha256::digest(folded(email).as_bytes()).into()
}

pub(super) fn members(organization: OrganizationId) -> Key {
    Key::table(Table::Member).id(organization)
}

pub(super) fn member(organization: OrganizationId, id: MemberId) -> Key {
    members(organization).id(id)
}

pub(super) fn email(email: &str) -> Key {
    Key::table(Table::MemberEmail).text(&folded(email))
}

pub(super) fn identity(issuer: &str, subject: &str) -> Key {
    let hash = Sha256::digest([issuer.as_bytes(), &[0], subject.as_bytes()].concat());
    Key::table(Table::MemberIdentity).raw(&hash)
}

pub(super) fn owner(organization: OrganizationId) -> Key {
    Key::table(Table::Owner).id(organization)
}

pub(super) fn session(hash: &[u8]) -> Key {
    Key::table(Table::Session).raw(hash)
}

pub(super) fn sessions_of(member: MemberId) -> Key {
    Key::table(Table::SessionOf).id(member)
}

pub(super) fn links() -> Key {
    Key::table(Table::Link)
}

pub(super) fn link(hash: &[u8]) -> Key {
    links().raw(hash)
}

pub(super) fn links_of(organization: OrganizationId, kind: LinkKind) -> Key {
    Key::table(Table::LinkOf).id(organization).raw(&[match kind {
        LinkKind::Setup => b's',
        LinkKind::Invitation => b'i',
        LinkKind::Reset => b'r',
    }])
}

/// Returns the row that contains the hash of an open link. An organization has one such row for its
/// set-up, one row for each member's password reset, and one row for each invitation.
pub(super) fn link_of(link: &Link) -> Key {
    let place = links_of(link.organization, link.kind);
    match link.kind {
        LinkKind::Setup => place,
        LinkKind::Invitation => place.id::<LinkId>(link.id),
        LinkKind::Reset => match link.member {
            Some(member) => place.id(member),
            None => place,
        },
    }
}
