//! Keys: a tag byte that names the table, then fixed-width parts in sort order.
//!
//! A tag is never reused, even after its table is removed. To add a table, see `CONTRIBUTING.md`,
//! "Add a table of records".

use std::fmt;

use orrery_domain::ids::Id;
use orrery_domain::time::Timestamp;

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident = $tag:literal,)*) => {
        /// The tables, each with the tag that begins its keys.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Table {
            $($(#[$doc])* $table = $tag,)*
        }

        /// All tables, for finding the name of a tag.
        const TABLES: &[Table] = &[$(Table::$table,)*];
    };
}

tables! {
    /// The format number and other metadata of the store.
    Meta = b'M',
    /// Organizations by id.
    Organization = b'O',
    /// Organization ids by name.
    OrganizationName = b'N',
    /// API keys by the hash of the key.
    ApiKey = b'K',
    /// Hashes of API keys by organization and key id.
    ApiKeyId = b'I',
    /// When API keys were last used, by organization and key id.
    KeyUse = b'l',
    /// Executions by organization, newest first.
    Execution = b'E',
    /// Unfinished executions by lane and organization, oldest first.
    Lane = b'L',
    /// Steps of workflow executions, by execution and position in the definition.
    Step = b'T',
    /// Suspended executions, by due time. Suspended executions are in no lane.
    Timer = b'A',
    /// Executions by workflow, as a counted list: see `storage::list`.
    WorkflowExecution = b'X',
    /// Executions by workflow and final status, as a counted list: see `storage::list`.
    WorkflowStatus = b'Z',
    /// Executions that were triggered together.
    Bulk = b'J',
    /// Workflows by id.
    Workflow = b'F',
    /// Workflow ids by organization, newest first, and the number of workflows.
    WorkflowOf = b'V',
    /// Workflow ids by organization and slug.
    WorkflowSlug = b'H',
    /// Trigger counts of workflows and versions: counters.
    Trigger = b'Q',
    /// Definitions, by revision.
    Definition = b'R',
    /// Deliveries by organization and execution, newest first.
    Delivery = b'D',
    /// The progress of each delivery, under the key of the delivery.
    DeliveryProgress = b'S',
    /// Deliveries by organization and status, newest first, and the number of deliveries.
    DeliveryStanding = b'd',
    /// Pending deliveries, by due time.
    Due = b'U',
    /// Deliveries that are held back because of their receiver, by receiver and time.
    Parked = b'W',
    /// Receivers whose circuit breaker is open.
    Circuit = b'C',
    /// Ledger entries by organization, newest first.
    Ledger = b'G',
    /// Balances by organization: a counter.
    Balance = b'B',
    /// Tokens used by API keys, by organization, key and day: counters.
    TokenUse = b't',
    /// Sessions of the agent, by organization and name.
    AgentSession = b'r',
    /// Exchanges in the memory of sessions, by session, oldest first.
    AgentExchange = b'w',
    /// Reserved cost of unfinished work, by organization: a counter.
    Reserved = b'e',
    /// Reserved cost of unfinished work, by organization and key: counters.
    KeyReserved = b'%',
    /// Charges of API keys, by organization, key and start of the budget's period: counters.
    KeySpent = b'$',
    /// Counters of usage, by organization, length of the period, period, key and model. Counters of
    /// cost, by organization and month. Also the names of the counted models, by organization and
    /// month.
    Usage = b'#',
    /// Details of deleted API keys, by organization and key id.
    DeletedKey = b'&',
    /// Stored responses to requests with an `Idempotency-Key`.
    Idempotency = b'Y',
    /// Fallback chains, by organization, model and name.
    Chain = b'a',
    /// Files by organization, newest first.
    File = b'b',
    /// Files that share the same contents, by digest.
    Content = b'c',
    /// Files, uploads and tombstones of files, by expiry time.
    FileExpiry = b'f',
    /// Announced uploads that have not arrived yet.
    Upload = b'h',
    /// Tombstones of deleted files.
    FileGone = b'i',
    /// Files, bytes and announced uploads of organizations: counters.
    FileUsage = b'j',
    /// Executions by organization, status and lane, newest first.
    Standing = b'u',
    /// Executions by organization and each of the other history filters, newest first.
    Facet = b'g',
    /// The audit log: a counted list.
    Audit = b'k',
    /// Payload files to which at least one record refers.
    PayloadFile = b'P',
    /// Rows that a restore holds back, under their original keys: see `storage::held_back`.
    CarriedOver = b'z',
    /// Bytes of payloads by organization, and by organization and owner: counters.
    PayloadUsage = b'v',
    /// Idempotency keys by expiry time.
    IdempotencyExpiry = b'y',
    /// Members by organization and id, oldest first.
    Member = b'm',
    /// Organization and id of each member, by email address.
    MemberEmail = b'@',
    /// Organization and id of members who log in through an identity provider, by the hash of
    /// issuer and subject.
    MemberIdentity = b'!',
    /// The ids of owners, by organization.
    Owner = b'o',
    /// Sessions of members, by the hash of the session's token.
    Session = b's',
    /// Hashes of sessions' tokens, by member.
    SessionOf = b'n',
    /// Links for the dashboard, by the hash of the link's token.
    Link = b'q',
    /// Hashes of open links' tokens, by organization, kind and recipient.
    LinkOf = b'p',
    /// Named secrets, by organization and name.
    Secret = b'1',
    /// Schedules, by organization, oldest first.
    Schedule = b'2',
    /// When to evaluate schedules, by time.
    ScheduleDue = b'3',
    /// Events received by executions, by execution and name.
    StepEvent = b'4',
    /// Webhook endpoints, by organization, oldest first, and a counter of changes to each
    /// organization's list.
    WebhookEndpoint = b'5',
    /// Updates and deliveries to endpoints, by organization, execution and delivery.
    EndpointDelivery = b'6',
    /// Bulk jobs by organization, newest first.
    BulkJob = b'8',
    /// Unfinished bulk jobs, oldest first.
    BulkJobOpen = b'9',
    /// Batches by organization, newest first.
    Batch = b'+',
    /// Unfinished batches, oldest first.
    BatchOpen = b'-',
    /// Answers to the lines of batches, by batch and number of the line.
    BatchLine = b'_',
    /// Answered and failed lines of batches: counters.
    BatchCount = b'=',
    /// Responses by organization and execution, oldest first.
    Response = b'7',
    /// Numbers of responses by organization: counters.
    ResponseCount = b'x',
    /// The number and bytes of executions' descendants, by root: counters.
    Tree = b'0',
    /// Cached results and their expiry times, by organization and slot.
    CachedResult = b'{',
}

/// Returns the name of a key's table.
#[must_use]
pub fn table_name(key: &[u8]) -> String {
    let tag = key.first().copied();
    match TABLES.iter().find(|table| Some(**table as u8) == tag) {
        Some(table) => format!("{table:?}"),
        None => tag.map_or_else(|| "(none)".to_owned(), |tag| format!("{:?}", char::from(tag))),
    }
}

/// A key in the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    /// Creates the prefix of all rows of a table: the bare tag.
    #[must_use]
    pub fn table(table: Table) -> Self {
        let mut bytes = Vec::with_capacity(48);
        bytes.push(table as u8);
        Self(bytes)
    }

    /// Appends an id's sixteen bytes: oldest first.
    #[must_use]
    pub fn id<T: Id>(mut self, id: T) -> Self {
        self.0.extend_from_slice(&id.bytes());
        self
    }

    /// Appends an id's sixteen bytes, inverted: newest first.
    #[must_use]
    pub fn id_newest_first<T: Id>(mut self, id: T) -> Self {
        self.0.extend(id.bytes().iter().map(|byte| !byte));
        self
    }

    /// Appends a number, inverted: the largest first.
    #[must_use]
    pub fn number_largest_first(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&(!number).to_be_bytes());
        self
    }

    /// Appends a time: oldest first.
    #[must_use]
    pub fn time(mut self, time: Timestamp) -> Self {
        self.0.extend_from_slice(&time.sortable());
        self
    }

    /// Appends a time, inverted: newest first.
    #[must_use]
    pub fn time_newest_first(mut self, time: Timestamp) -> Self {
        self.0.extend(time.sortable().iter().map(|byte| !byte));
        self
    }

    /// Appends text and a zero byte, so that no appended text is a prefix of another. A zero byte
    /// within the text becomes 0x01; callers reject such text beforehand.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        // Reserve room for an id after the text.
        self.0.reserve_exact(text.len().saturating_add(1 + 16));
        self.0.extend(text.bytes().map(|byte| byte.max(1)));
        self.0.push(0);
        self
    }

    /// Appends raw bytes, such as a hash.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Creates a key from its stored bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id in the last sixteen bytes; `None` if the key is too short.
    #[must_use]
    pub fn last_id<T: Id>(&self) -> Option<T> {
        let bytes: [u8; 16] = *self.0.last_chunk()?;
        Some(T::from(uuid::Uuid::from_bytes(bytes)))
    }

    /// The id in the last sixteen bytes, as written by [`Key::id_newest_first`].
    #[must_use]
    pub fn last_id_inverted<T: Id>(&self) -> Option<T> {
        let bytes: [u8; 16] = *self.0.last_chunk()?;
        Some(T::from(uuid::Uuid::from_bytes(bytes.map(|byte| !byte))))
    }
}

/// Keys are ordered by their bytes, so ordered maps can be searched by bytes.
impl std::borrow::Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_first() {
            None => f.write_str("Key()"),
            Some((tag, rest)) => {
                write!(f, "Key({}:", char::from(*tag))?;
                rest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use orrery_domain::ids::ExecutionId;

    proptest! {
        #[test]
        fn key_order_matches_value_order(a: [u8; 16], b: [u8; 16]) {
            let key = |id: [u8; 16]| Key::table(Table::Lane).id(ExecutionId::from(id));
            let newest = |id: [u8; 16]| Key::table(Table::Execution).id_newest_first(ExecutionId::from(id));
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
            prop_assert_eq!(newest(a).cmp(&newest(b)), b.cmp(&a));
            prop_assert_eq!(key(a).last_id(), Some(ExecutionId::from(a)));
            prop_assert_eq!(newest(a).last_id_inverted(), Some(ExecutionId::from(a)));
        }

        #[test]
        fn key_text_is_prefix_free(a in "[a-z/]{0,12}", b in "[a-z/]{0,12}") {
            let key = |text: &str| Key::table(Table::Lane).text(text);
            prop_assert_eq!(key(&a).as_bytes().starts_with(key(&b).as_bytes()), a == b);
        }
    }

    #[test]
    fn key_table_name_knows_every_table() {
        for table in TABLES {
            assert_eq!(table_name(Key::table(*table).as_bytes()), format!("{table:?}"));
        }
        for last in [Table::Audit, Table::CarriedOver, Table::PayloadUsage] {
            assert!(TABLES.contains(&last), "{last:?}");
        }
        assert_eq!(table_name(b"~"), "'~'");
        assert_eq!(table_name(b""), "(none)");
    }
}
