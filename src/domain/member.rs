//! Members of an organization, their sessions and their links, as they are stored.
//!
//! No token and no password is in any type of this file: of a token there is the hash under which the
//! record is stored, of a password its argon2id hash.

use serde::{Deserialize, Serialize};

use super::ids::{LinkId, MemberId, OrganizationId};
use super::time::Timestamp;

/// What a member is to the organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Exactly one member of an organization is.
    Owner,
    Member,
}

/// A person who may log in to the dashboard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: MemberId,
    pub organization: OrganizationId,
    pub name: String,
    /// As it was entered; unique on the box, whatever its letter case.
    pub email: String,
    pub role: MemberRole,
    /// The permission 'Can manage API keys' (`docs/spec/hosts.md`, "Authentication").
    pub api_key_access: bool,
    /// The argon2id hash of the password, in the PHC string format.
    pub password: String,
    /// Counts the changes of the password: sessions of an earlier count have ended.
    pub epoch: u64,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
}

impl MemberRole {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Member => "member",
        }
    }
}

impl Member {
    /// Whether the member may create and delete API keys.
    #[must_use]
    pub fn may_manage_keys(&self) -> bool {
        self.is_owner() || self.api_key_access
    }

    /// Whether it is the organization's Owner.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.role == MemberRole::Owner
    }
}

/// A session of a member, in one browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub organization: OrganizationId,
    pub member: MemberId,
    /// The member's count of passwords when the session began.
    pub epoch: u64,
    pub created_at: Timestamp,
    /// The last use that was written.
    pub seen_at: Timestamp,
}

/// What a link is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// Makes the organization's Owner.
    Setup,
    /// Makes a member.
    Invitation,
    /// Sets a new password for a member.
    Reset,
}

impl LinkKind {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Invitation => "invitation",
            Self::Reset => "reset",
        }
    }

    /// The page that the link opens: the link is `{dashboard}/{page}#{token}`.
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

/// A link that works once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub id: LinkId,
    pub kind: LinkKind,
    pub organization: OrganizationId,
    /// Whose password is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// Who is invited, where the Owner said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    pub state: LinkState,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}
