//! The list of an organization's workflows: filtered, sorted and paged.
//!
//! Every call reads all workflows, whose number is limited.

use super::{Error, Workflows, rows};
use orrery_domain::ids::{OrganizationId, WorkflowId};
use orrery_domain::spelling::{self, COMPARED_MAX};
use orrery_domain::workflow::{Status, Workflow};
use orrery_storage::Page;
use orrery_storage::record::decode;

/// The filter and sort order of a list.
#[derive(Debug, Clone)]
pub struct Filter {
    pub category: Option<String>,
    /// Matches workflows with any of these tags; an empty list matches all workflows.
    pub tags: Vec<String>,
    /// Matches workflows whose name, description or slug contains this text, ignoring case.
    pub keyword: Option<String>,
    /// Matches workflows with this status; `None` matches all workflows except deleted workflows.
    pub status: Option<Status>,
    pub sort_key: SortKey,
    pub ascending: bool,
    pub offset: usize,
    pub limit: usize,
}

impl Filter {
    /// Creates a filter for all workflows except deleted ones, newest first, without the first
    /// `offset` workflows.
    #[must_use]
    pub const fn newest(offset: usize, limit: usize) -> Self {
        Self {
            category: None,
            tags: Vec::new(),
            keyword: None,
            status: None,
            sort_key: SortKey::CreatedAt,
            ascending: false,
            offset,
            limit,
        }
    }
}

/// The sort key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortKey {
    CreatedAt,
    UpdatedAt,
    Name,
    TriggerCount,
}

impl SortKey {
    /// All sort keys.
    pub const ALL: [Self; 4] = [Self::CreatedAt, Self::UpdatedAt, Self::Name, Self::TriggerCount];

    /// Returns the key's spelling in queries.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CreatedAt => "created_at",
            Self::UpdatedAt => "updated_at",
            Self::Name => "name",
            Self::TriggerCount => "trigger_count",
        }
    }
}

impl Filter {
    fn takes(&self, workflow: &Workflow) -> bool {
        let has = |list: &[String], wanted: &Option<String>| {
            wanted.as_ref().is_none_or(|wanted| list.contains(wanted))
        };
        let says = |keyword: &String| {
            let keyword = keyword.to_lowercase();
            [&workflow.name, &workflow.description, &workflow.slug]
                .into_iter()
                .any(|text| text.to_lowercase().contains(&keyword))
        };
        has(&workflow.categories, &self.category)
            && (self.tags.is_empty() || self.tags.iter().any(|tag| workflow.tags.contains(tag)))
            && self.keyword.as_ref().is_none_or(says)
            && self.status.map_or(workflow.status != Status::Deleted, |s| s == workflow.status)
    }
}

impl Workflows {
    /// Returns a page of the organization's workflows, and the total number of matches.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(
        &self,
        organization: OrganizationId,
        filter: &Filter,
    ) -> Result<(Vec<Workflow>, usize), Error> {
        let mut found = self.matching(organization, filter).await?;
        match filter.sort_key {
            // The store returns the newest first.
            SortKey::CreatedAt => found.reverse(),
            SortKey::UpdatedAt => found.sort_by_key(|workflow| workflow.updated_at),
            SortKey::Name => found.sort_by_cached_key(|workflow| workflow.name.to_lowercase()),
            SortKey::TriggerCount => {
                let keys: Vec<_> = found.iter().map(|one| rows::triggers(one.id)).collect();
                let counts = self.store.counters(&keys).await?;
                let mut counted: Vec<_> = counts.into_iter().zip(found).collect();
                counted.sort_by_key(|(count, _)| *count);
                found = counted.into_iter().map(|(_, workflow)| workflow).collect();
            }
        }
        if !filter.ascending {
            found.reverse();
        }
        let total = found.len();
        Ok((found.into_iter().skip(filter.offset).take(filter.limit).collect(), total))
    }

    /// Returns the organization's slug that is most similar to an unknown one.
    pub(super) async fn nearest(
        &self,
        organization: OrganizationId,
        unknown: &str,
    ) -> Result<Option<String>, Error> {
        let page = Page::of(rows::slugs(organization), COMPARED_MAX);
        let found = self.store.page(page).await?;
        let slugs: Vec<&str> =
            found.iter().filter_map(|(key, _)| rows::slug_of(organization, key)).collect();
        Ok(spelling::nearest(unknown, &slugs).map(str::to_owned))
    }

    async fn matching(
        &self,
        organization: OrganizationId,
        filter: &Filter,
    ) -> Result<Vec<Workflow>, Error> {
        let prefix = rows::of_organization(organization);
        // The counter's key is the prefix itself.
        let after = Some(prefix.clone());
        let mut found = Vec::new();
        let mut scan = self.store.scan(Page { after, ..prefix.into() });
        while let Some(listed) = scan.next_page().await? {
            let ids = listed.iter().filter_map(|(key, _)| key.last_id_inverted::<WorkflowId>());
            let keys: Vec<_> = ids.map(rows::workflow).collect();
            for row in self.store.get_many(&keys).await?.into_iter().flatten() {
                let workflow: Workflow = decode(&row)?;
                if filter.takes(&workflow) {
                    found.push(workflow);
                }
            }
        }
        Ok(found)
    }
}
