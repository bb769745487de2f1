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
    /// An answer of an upstream that has the Responses API itself.
    #[error("the conversation has items that only an upstream with the Responses API can read")]
    Foreign,
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
        let items = self.raw_conversation(organization, last, lease).await?;
        let parse = |item: &RawValue| serde_json::from_str(item.get());
        items
            .iter()
            .map(|item| parse(item))
            .collect::<Result<_, _>>()
            .map_err(|_unknown_type| Error::Foreign)
    }

    /// Returns the items of a conversation like [`Self::conversation`], of any type.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn raw_conversation(
        &self,
        organization: OrganizationId,
        last: ExecutionId,
        lease: &mut Lease,
    ) -> Result<Vec<Box<RawValue>>, Error> {
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
        Ok(newest_first.into_iter().rev().flatten().collect())
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
        let mut stored = StoredItems::new(self, organization, lease);
        for item in items {
            let Item::Reference(reference) = &*item else { continue };
            let found = stored.find(&reference.id).await?;
            *item = serde_json::from_str(found.get()).map_err(|_unknown_type| Error::Foreign)?;
        }
        Ok(())
    }

    /// Replaces the references among items like [`Self::resolve`], of any type.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn resolve_raw(
        &self,
        organization: OrganizationId,
        items: &mut [Box<RawValue>],
        lease: &mut Lease,
    ) -> Result<(), Error> {
        #[derive(Deserialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Referring {
            ItemReference { id: String },
        }
        let mut stored = StoredItems::new(self, organization, lease);
        for item in items {
            let referring: Result<Referring, _> = serde_json::from_str(item.get());
            if let Ok(Referring::ItemReference { id }) = referring {
                *item = stored.find(&id).await?;
            }
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

/// The items of stored responses, by their IDs.
struct StoredItems<'a> {
    responses: &'a Responses,
    organization: OrganizationId,
    reading: Reading<'a>,
    known: HashMap<ExecutionId, HashMap<String, Box<RawValue>>>,
}

impl<'a> StoredItems<'a> {
    fn new(responses: &'a Responses, organization: OrganizationId, lease: &'a mut Lease) -> Self {
        let reading = Reading { lease, bytes: 0 };
        Self { responses, organization, reading, known: HashMap::new() }
    }

    async fn find(&mut self, id: &str) -> Result<Box<RawValue>, Error> {
        let missing = || Error::NoItem { id: id.to_owned() };
        let response = response_of_item(id).and_then(parse).ok_or_else(missing)?;
        if !self.known.contains_key(&response) {
            if self.known.len() == DEPTH_MAX {
                return Err(Error::TooDeep);
            }
            let stored = self.responses.read(self.organization, response).await?;
            let stored = stored.ok_or_else(missing)?;
            self.reading.take(&stored)?;
            let named = self.responses.items(&stored).await?.into_iter().filter_map(|item| {
                let Named { id } = serde_json::from_str(item.get()).ok()?;
                Some((id, item))
            });
            self.known.insert(response, named.collect());
        }
        let found = self.known.get(&response).and_then(|items| items.get(id));
        let found = found.ok_or_else(missing)?;
        // An item may be referred to any number of times.
        self.reading.take_bytes(found.get().len() as u64)?;
        Ok(found.clone())
    }
}
