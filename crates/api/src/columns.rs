//! The types of the route table's columns.

/// The host that a route belongs to. Each host has its own listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Base,
    Workflows,
    Flows,
    Agent,
    Dashboard,
    /// Ollama's API. Off unless the configuration gives it an address.
    Ollama,
    /// The listener for Prometheus.
    Metrics,
    /// The Unix socket for the command line. The owner of the socket has full access.
    Control,
}

impl Role {
    /// Returns the role's name in `GET /` and in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Workflows => "workflows",
            Self::Flows => "flows",
            Self::Agent => "agent",
            Self::Dashboard => "dashboard",
            Self::Ollama => "ollama",
            Self::Metrics => "metrics",
            Self::Control => "control",
        }
    }
}

/// The credentials that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No credentials.
    Public,
    /// Optional: an API key is validated if the request has one.
    MaybeKey,
    /// An API key.
    Key,
    /// An API key, which may also be in the body as `api_key`.
    BodyKey,
    /// An API key, or none for requests from this machine, if the configuration names their key.
    LocalKey,
    /// An API key, or a signed link of the service whose `token` grants access to this path.
    Link,
    /// A dashboard session of a member with the role of the route's row.
    Member,
    /// A dashboard session, for the member's own account. The role does not matter.
    Account,
    /// A dashboard session of a member with the permission 'Can manage API keys', or of the Owner.
    KeyManager,
    /// A dashboard session of the organization's Owner.
    Owner,
    /// An admin key. These routes exist only if the configuration enables them.
    Admin,
    /// Access to the listener itself is sufficient. Only the owner of the control socket can
    /// connect to it.
    Local,
}

impl Access {
    /// Returns whether a member's session is required.
    #[must_use]
    pub const fn is_by_session(self) -> bool {
        matches!(self, Self::Member | Self::Account | Self::KeyManager | Self::Owner)
    }
}

/// The maximum body size of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLimit {
    /// The body is not read.
    None,
    /// 64 KiB, for a few fields.
    Small,
    /// `limits.body_bytes` of the configuration.
    Configured,
    /// `files.max_bytes` of the configuration, plus the overhead of a form.
    File,
}

/// The rate limit of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// No limit.
    Free,
    /// `limits.rate` of the configuration, per key.
    Configured,
    /// Three requests per second, per key (`docs/spec/hosts.md`, "Limits").
    Balance,
}
