//! The row keys of organizations and API keys.

use super::Hash;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_storage::{Key, Table};

pub(super) fn organization_key(id: OrganizationId) -> Key {
    Key::table(Table::Organization).id(id)
}

pub(super) fn name_key(name: &str) -> Key {
    Key::table(Table::OrganizationName).text(name)
}

pub(super) fn hash_key(hash: &Hash) -> Key {
    Key::table(Table::ApiKey).raw(hash)
}

pub(super) fn id_key(organization: OrganizationId, id: KeyId) -> Key {
    Key::table(Table::ApiKeyId).id(organization).id(id)
}
