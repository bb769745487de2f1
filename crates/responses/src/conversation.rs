//! The items of the conversation that a response continues, and items by their IDs.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::rows::Stored;
use super::{Responses, parse, shown};
use orrery_dialects::responses::response_of_item;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::answers;
use orrery_http::budget::Lease;
use orrery_storage as storage;
use orrery_wire::responses::Item;

/// Maximum number of responses that a conversation is read from.
pub const DEPTH_MAX: usize = 1000;
/// Maximum size of the stored responses that a conversation is read from, in bytes.
pub const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Memory that a byte of a stored response takes while its items are read.
const ITEM_COPIES: u64 = 4;

/// Why a conversation cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The organization has no such response, or has deleted it.
    #[error("there is no stored response '{id}'")]
    NoResponse { id: String },
    /// A response in the background has not ended.
    #[error("the response '{id}' has not ended: wait until its status is completed")]
    NotEnded { id: String },
    /// There is no such item.
    #[error("there is no stored item '{id}'")]
    NoItem { id: String },
    #[error(
        "the conversation continues more than {DEPTH_MAX} responses: send its items, and begin a new one"
    )]
    TooDeep,
    #[error(
        "the stored responses of the conversation have more than {BYTES_MAX} bytes: send the items \
         that still matter, and begin a new one"
    )]
    TooLarge,
    /// The memory budget has no room for the items.
    #[error("too many bodies are in flight; try again in a moment")]
    Busy,
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The part of a stored response that a conversation needs.
#[derive(Deserialize)]
struct Output {
    output: Vec<Box<RawValue>>,
}

/// The ID of an item.
#[derive(Deserialize)]
struct Named {
    id: String,
}

/// What is read for one request: its sizes are bounded, and memory is reserved for it.
struct Reading<'a> {
    lease: &'a mut Lease,
    bytes: u64,
}

impl Reading<'_> {
    fn take(&mut self, stored: &Stored) -> Result<(), Error> {
        self.take_bytes(stored.input.len().saturating_add(stored.response.len()))
    }

    fn take_bytes(&mut self, bytes: u64) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BYTES_MAX {
            return Err(Error::TooLarge);
        }
        let copies = usize::try_from(bytes.saturating_mul(ITEM_COPIES)).unwrap_or(usize::MAX);
        self.lease.grow(copies).map_err(|_full| Error::Busy)
    }
}

impl Responses {
    /// Returns the items of the conversation up to and including the response `last`, oldest first.
    /// `lease` reserves memory for them.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn conversation(
        &self,
        organization: OrganizationId,
        last: ExecutionId,
        lease: &mut Lease,
    ) -> Result<Vec<Item>, Error> {
        let mut reading = Reading { lease, bytes: 0 };
        let mut newest_first = Vec::new();
        let mut next = Some(last);
        while let Some(id) = next {
            if newest_first.len() == DEPTH_MAX {
                return Err(Error::TooDeep);
            }
            let stored = self
                .read(organization, id)
                .await?
                .ok_or_else(|| Error::NoResponse { id: shown(id) })?;
            if stored.open.is_some() {
                return Err(Error::NotEnded { id: shown(id) });
            }
            reading.take(&stored)?;
            newest_first.push(self.items(&stored).await?);
            next = stored.previous;
        }
        let items = newest_first.into_iter().rev().flatten();
        Ok(items
            .map(|item| serde_json::from_str(item.get()))
            .collect::<Result<_, _>>()
            .map_err(|error| storage::Error::malformed("response", error))?)
    }

    /// Replaces the references among `items` by the items to which they refer. `lease` reserves
    /// memory for them.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn resolve(
        &self,
        organization: OrganizationId,
        items: &mut [Item],
        lease: &mut Lease,
    ) -> Result<(), Error> {
        let mut reading = Reading { lease, bytes: 0 };
        let mut known: HashMap<ExecutionId, HashMap<String, Box<RawValue>>> = HashMap::new();
        for item in items {
            let Item::Reference(reference) = &*item else { continue };
            let missing = || Error::NoItem { id: reference.id.clone() };
            let response = response_of_item(&reference.id).and_then(parse).ok_or_else(missing)?;
            if !known.contains_key(&response) {
                if known.len() == DEPTH_MAX {
                    return Err(Error::TooDeep);
                }
                let stored = self.read(organization, response).await?.ok_or_else(missing)?;
                reading.take(&stored)?;
                let named = self.items(&stored).await?.into_iter().filter_map(|item| {
                    let Named { id } = serde_json::from_str(item.get()).ok()?;
                    Some((id, item))
                });
                known.insert(response, named.collect());
            }
            let found = known.get(&response).and_then(|items| items.get(&reference.id));
            let found = found.ok_or_else(missing)?;
            // An item may be referred to any number of times.
            reading.take_bytes(found.get().len() as u64)?;
            *item = serde_json::from_str(found.get())
                .map_err(|error| storage::Error::malformed("response", error))?;
        }
        Ok(())
    }

    /// Returns the items of a response: those of its input, then those of its answer.
    async fn items(&self, stored: &Stored) -> Result<Vec<Box<RawValue>>, Error> {
        let input = self.store.read_payload(&stored.input).await?;
        let response = self.store.read_payload(&stored.response).await?;
        let bytes = input.get().len().saturating_add(response.get().len());
        let read = move || -> Result<Vec<Box<RawValue>>, serde_json::Error> {
            let mut items: Vec<Box<RawValue>> = serde_json::from_str(input.get())?;
            let Output { output } = serde_json::from_str(response.get())?;
            items.extend(output);
            Ok(items)
        };
        let items = answers::parse_aside(bytes, read).await;
        let items =
            items.ok_or_else(|| storage::Error::malformed("response", "it cannot be read"))?;
        Ok(items.map_err(|error| storage::Error::malformed("response", error))?)
    }
}
