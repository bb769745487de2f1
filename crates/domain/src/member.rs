//! Stored members of an organization, and their sessions and links.
//!
//! No type in this file contains a token or a password. A token's record is stored under the
//! token's hash; for a password, only the argon2id hash is stored.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ids::{LinkId, MemberId, OrganizationId};
use super::time::Timestamp;

/// Maximum length of a name, in characters.
pub const NAME_MAX: usize = 64;
/// Maximum length of an email address, in bytes (RFC 5321).
pub const EMAIL_MAX: usize = 254;
/// Minimum length of a password, in bytes.
pub const PASSWORD_MIN: usize = 12;
/// Maximum length of a password, in bytes.
pub const PASSWORD_MAX: usize = 256;

/// Returns whether a text has the rough format of an email address. The service sends no mail; the
/// address is only the login name.
#[must_use]
pub fn is_email(text: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
    let parts = text.rsplit_once('@').filter(|(name, host)| {
        !name.is_empty() && !host.is_empty() && !name.contains('@') && text.chars().all(is_plain)
    });
    parts.is_some()
}

/// The role of a member in the organization. Each role may do all that the roles after it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Each organization has exactly one Owner, who also manages the members.
    Owner,
    /// Changes workflows, chains, schedules, secrets and webhook endpoints.
    // Before there were roles, everyone but the Owner was a member and could do all this.
    #[serde(alias = "member")]
    Editor,
    /// Runs models and workflows, and cancels, repeats and redelivers.
    Operator,
    /// Reads.
    Viewer,
}

/// A person who may log in to the dashboard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: MemberId,
    pub organization: OrganizationId,
    pub name: String,
    /// The email address as entered, which is unique in the installation, ignoring case.
    pub email: String,
    pub role: MemberRole,
    /// The permission 'Can manage API keys' (`docs/spec/hosts.md`, "Authentication").
    pub api_key_access: bool,
    /// The argon2id hash of the password, in the PHC string format. Empty for a member who logs in
    /// through an identity provider.
    pub password: String,
    /// The person at the identity provider, for a member who logs in through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_factor: Option<SecondFactor>,
    /// Incremented when the password changes. Sessions with an older value end.
    pub epoch: u64,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
}

/// A person at an identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub issuer: String,
    /// The provider's permanent name of the person.
    pub subject: String,
}

/// The second factor of a member's log-in: one-time codes of an authenticator app.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondFactor {
    /// The sealed secret.
    pub secret: String,
    /// Whether the member has entered a first code. Until then, log-ins need no code.
    pub is_confirmed: bool,
    /// The time step of the last accepted code. Codes of this step and of earlier ones are refused.
    pub last_step: u64,
    /// Hashes of the unused recovery codes.
    pub recovery: Vec<String>,
}

impl std::fmt::Debug for SecondFactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecondFactor").finish_non_exhaustive()
    }
}

impl MemberRole {
    /// The roles that a member other than the Owner can have.
    pub const GIVEN: [Self; 3] = [Self::Editor, Self::Operator, Self::Viewer];

    /// Returns the name that is used in storage and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Editor => "editor",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
        }
    }

    /// Returns whether this role may do what `needed` may do.
    #[must_use]
    pub const fn covers(self, needed: Self) -> bool {
        self as u8 <= needed as u8
    }
}

impl Member {
    /// Returns whether the member may create and delete API keys.
    #[must_use]
    pub fn may_manage_keys(&self) -> bool {
        self.is_owner() || self.api_key_access
    }

    /// Returns whether log-ins of the member need a code.
    #[must_use]
    pub fn has_second_factor(&self) -> bool {
        self.second_factor.as_ref().is_some_and(|factor| factor.is_confirmed)
    }

    /// Returns whether the member's role covers `needed`.
    #[must_use]
    pub const fn may(&self, needed: MemberRole) -> bool {
        self.role.covers(needed)
    }

    /// Returns whether the member is the organization's Owner.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.role == MemberRole::Owner
    }
}

/// Where a session was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The start of the header `User-Agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// A member's session in one browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub organization: OrganizationId,
    pub member: MemberId,
    /// The member's `epoch` when the session began.
    pub epoch: u64,
    pub created_at: Timestamp,
    /// The last recorded use.
    pub seen_at: Timestamp,
    /// When the session ends in any case, if it was opened through an identity provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Where the session was opened.
    #[serde(default)]
    pub origin: Origin,
}

/// The purpose of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// Creates the organization's Owner.
    Setup,
    /// Creates a member.
    Invitation,
    /// Sets a new password for a member.
    Reset,
}

impl LinkKind {
    /// Returns the name that is used in storage and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Invitation => "invitation",
            Self::Reset => "reset",
        }
    }

    /// Returns the dashboard page that the link opens: the link is `{dashboard}/{page}#{token}`.
    #[must_use]
    pub const fn page(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Invitation => "invite",
            Self::Reset => "reset",
        }
    }
}

/// Whether a link can still be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    Open,
    Used,
    /// A newer link for the same purpose exists, or the link was withdrawn.
    Withdrawn,
}

/// A single-use link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub id: LinkId,
    pub kind: LinkKind,
    pub organization: OrganizationId,
    /// The member whose password is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// The role of the invited person. Absent: an editor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// The invited person, if the Owner entered one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    pub state: LinkState,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}
