//! Reads many rows in key order: single pages, and scans of all rows under a prefix.

use std::ops::Bound::{Excluded, Included};

use super::error::Error;
use super::key::Key;
use super::record::{Record, decode};
use super::store::Store;
use super::view::Moment;
use orrery_domain::ids::{Id, OrganizationId};

/// Maximum rows per page.
pub(crate) const PAGE_MAX: usize = 10_000;
/// Rows per page of a scan, unless the caller chooses a limit.
const SCAN_ROWS: usize = 1_000;
/// A page of a scan ends with the row at which the page reaches this many bytes.
const SCAN_BYTES: usize = 1024 * 1024;
/// Exceeds the length of every run of 0xff bytes in a key.
const SUFFIX_MAX: usize = 64;

/// A range of rows to read, in key order. All rows under a prefix are `Page::from(prefix)`.
#[derive(Debug, Clone)]
pub struct Page {
    /// The prefix of the keys.
    pub prefix: Key,
    /// Include only rows after this key.
    pub after: Option<Key>,
    /// Include only rows before this key.
    pub before: Option<Key>,
    /// The maximum number of rows, capped at [`PAGE_MAX`]. For a scan, the maximum per page.
    pub limit: usize,
}

impl Page {
    /// The first `limit` rows under `prefix`.
    #[must_use]
    pub const fn of(prefix: Key, limit: usize) -> Self {
        Self { prefix, after: None, before: None, limit }
    }
}

impl From<Key> for Page {
    fn from(prefix: Key) -> Self {
        Self::of(prefix, SCAN_ROWS)
    }
}

/// A key and its value.
pub type Row = (Key, Vec<u8>);

impl Store {
    /// Returns a consistent page of rows. Rows written later may appear in the next page.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn page(&self, page: Page) -> Result<Vec<Row>, Error> {
        self.reading(move |moment| read_page(moment, &page)).await
    }

    /// Returns several pages, in order, in one consistent read.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn pages(&self, pages: Vec<Page>) -> Result<Vec<Vec<Row>>, Error> {
        self.reading(move |moment| pages.iter().map(|page| read_page(moment, page)).collect()).await
    }

    /// Returns the records of a page.
    ///
    /// # Errors
    /// The same errors as [`Store::get`]; [`Error::Malformed`] if a row is not a `T`.
    pub async fn records<T: Record>(&self, page: Page) -> Result<Vec<T>, Error> {
        self.page(page).await?.iter().map(|(_, bytes)| decode(bytes)).collect()
    }

    /// Returns whether any row has this prefix.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn has_any(&self, prefix: Key) -> Result<bool, Error> {
        Ok(!self.page(Page::of(prefix, 1)).await?.is_empty())
    }

    /// Returns the rows under `prefix` whose keys end with an id and whose values are organizations,
    /// in the order of their keys. Other rows are skipped.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn owners<T: Id>(&self, prefix: Key) -> Result<Vec<(OrganizationId, T)>, Error> {
        let mut found = Vec::new();
        let mut scan = self.scan(prefix);
        while let Some((key, value)) = scan.next().await? {
            let organization: Option<[u8; 16]> = value.try_into().ok();
            if let (Some(organization), Some(id)) = (organization, key.last_id()) {
                found.push((organization.into(), id));
            }
        }
        Ok(found)
    }

    /// Reads all rows of a range, page by page.
    #[must_use]
    pub fn scan(&self, range: impl Into<Page>) -> Scan {
        let mut page = range.into();
        page.limit = page.limit.max(1);
        Scan { store: self.clone(), page, rows: Vec::new().into_iter(), is_complete: false }
    }
}

/// A read of all rows of a range in key order, with one page in memory.
///
/// Each page is consistent, and is read only when it is needed. So the scan reflects writes and
/// deletions of rows that follow the current page, until the next page is read.
#[derive(Debug)]
pub struct Scan {
    store: Store,
    /// The next page to read.
    page: Page,
    /// The rest of the current page.
    rows: std::vec::IntoIter<Row>,
    /// Whether the current page is the last one.
    is_complete: bool,
}

impl Scan {
    /// Returns the next row; `None` at the end.
    ///
    /// # Errors
    /// The same errors as [`Store::get`]. The next call tries again.
    pub async fn next(&mut self) -> Result<Option<Row>, Error> {
        self.fill().await?;
        Ok(self.rows.next())
    }

    /// Returns the next rows, at least one and at most a page; `None` at the end.
    ///
    /// # Errors
    /// The same errors as [`Scan::next`].
    pub async fn next_page(&mut self) -> Result<Option<Vec<Row>>, Error> {
        self.fill().await?;
        let rows: Vec<Row> = std::mem::take(&mut self.rows).collect();
        Ok((!rows.is_empty()).then_some(rows))
    }

    /// Skips the rows up to and including `key`.
    pub fn skip_past(&mut self, key: Key) {
        while self.rows.as_slice().first().is_some_and(|(next, _)| *next <= key) {
            self.rows.next();
        }
        self.page.after = self.page.after.take().max(Some(key));
    }

    /// Skips the rows under `prefix`.
    pub fn skip_prefix(&mut self, prefix: &Key) {
        self.skip_past(prefix.clone().raw(&[u8::MAX; SUFFIX_MAX]));
    }

    /// Reads a page if all rows of the current one have been returned.
    async fn fill(&mut self) -> Result<(), Error> {
        if self.is_complete || !self.rows.as_slice().is_empty() {
            return Ok(());
        }
        let page = self.page.clone();
        let (rows, is_complete) =
            self.store.reading(move |moment| read_rows(moment, &page, SCAN_BYTES)).await?;
        if let Some((last, _)) = rows.last() {
            self.page.after = Some(last.clone());
        }
        (self.rows, self.is_complete) = (rows.into_iter(), is_complete);
        Ok(())
    }
}

pub(super) fn read_page(moment: &Moment, page: &Page) -> Result<Vec<Row>, Error> {
    Ok(read_rows(moment, page, usize::MAX)?.0)
}

/// Reads rows up to the page's limit or `bytes_max`. Returns the rows, and whether they reach the
/// end of the range.
pub(super) fn read_rows(
    moment: &Moment,
    page: &Page,
    bytes_max: usize,
) -> Result<(Vec<Row>, bool), Error> {
    let prefix = page.prefix.as_bytes();
    let from = match &page.after {
        Some(after) if after.as_bytes() >= prefix => Excluded(after.as_bytes()),
        Some(_) | None => Included(prefix),
    };
    let limit = page.limit.min(PAGE_MAX);
    let mut rows = Vec::with_capacity(limit.min(256));
    let mut bytes = 0_usize;
    let mut range = moment.range(from);
    while rows.len() < limit && bytes < bytes_max {
        let Some((key, value)) = range.next().transpose()? else { return Ok((rows, true)) };
        let is_behind = page.before.as_ref().is_some_and(|before| key >= *before);
        if is_behind || !key.as_bytes().starts_with(prefix) {
            return Ok((rows, true));
        }
        bytes = bytes.saturating_add(key.as_bytes().len()).saturating_add(value.len());
        rows.push((key, value));
    }
    Ok((rows, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Commit, Options, Table};

    fn key(number: u8) -> Key {
        Key::table(Table::Lane).raw(&[number])
    }

    /// Opens a store with a row under each number. Adds rows in neighboring tables, which a scan
    /// must not return.
    async fn store_of(numbers: impl IntoIterator<Item = u8>) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 100 };
        let store = Store::open(&options).unwrap();
        let mut commit = Commit::new();
        for number in numbers {
            commit.put_bytes(key(number), vec![number]);
        }
        for other in [Table::Lane as u8 - 1, Table::Lane as u8 + 1] {
            commit.put_bytes(Key::from_bytes(&[other, 5]), Vec::new());
        }
        store.commit(commit).await.unwrap();
        (folder, store)
    }

    fn pages_of_two() -> Page {
        Page::of(Key::table(Table::Lane), 2)
    }

    async fn rest(mut scan: Scan) -> Vec<u8> {
        let mut found = Vec::new();
        while let Some((row, value)) = scan.next().await.unwrap() {
            assert_eq!(row, key(value[0]));
            found.extend(value);
        }
        assert_eq!(scan.next().await.unwrap(), None);
        found
    }

    #[tokio::test]
    async fn scan_returns_each_row_once_for_every_page_size() {
        let (_folder, store) = store_of(0..7).await;
        for limit in [0, 1, 2, 6, 7, 8, usize::MAX] {
            let page = Page::of(Key::table(Table::Lane), limit);
            assert_eq!(rest(store.scan(page)).await, [0, 1, 2, 3, 4, 5, 6], "limit {limit}");
        }
        assert!(rest(store.scan(Key::table(Table::Workflow))).await.is_empty());
    }

    #[tokio::test]
    async fn scan_stays_between_after_and_before() {
        let (_folder, store) = store_of(0..7).await;
        let page = Page { after: Some(key(1)), before: Some(key(5)), ..pages_of_two() };
        assert_eq!(rest(store.scan(page)).await, [2, 3, 4]);
        // `after` may come before the prefix.
        let page = Page { after: Some(Key::from_bytes(&[0])), ..pages_of_two() };
        assert_eq!(rest(store.scan(page)).await.len(), 7);
    }

    #[tokio::test]
    async fn scan_page_returns_rest_of_page_and_then_none() {
        let (_folder, store) = store_of(0..5).await;
        let mut scan = store.scan(pages_of_two());
        assert_eq!(scan.next().await.unwrap(), Some((key(0), vec![0])));
        let mut pages = Vec::new();
        while let Some(page) = scan.next_page().await.unwrap() {
            pages.push(page.into_iter().map(|(_, value)| value[0]).collect::<Vec<_>>());
        }
        assert_eq!(pages, [vec![1], vec![2, 3], vec![4]]);
        assert_eq!(scan.next_page().await.unwrap(), None);
    }

    #[tokio::test]
    async fn scan_resumes_after_last_row_while_rows_change() {
        let (_folder, store) = store_of([0, 2, 4, 6, 8]).await;
        let mut scan = store.scan(pages_of_two());
        assert_eq!(scan.next_page().await.unwrap().unwrap().len(), 2);
        // The last row of the page is deleted, as are a row before and a row after it.
        let mut commit = Commit::new();
        commit.delete(key(0)).delete(key(2)).delete(key(6));
        for number in [1, 3, 7] {
            commit.put_bytes(key(number), vec![number]);
        }
        store.commit(commit).await.unwrap();
        assert_eq!(rest(scan).await, [3, 4, 7, 8]);
    }

    #[tokio::test]
    async fn scan_page_ends_at_byte_limit() {
        let (_folder, store) = store_of([]).await;
        let mut commit = Commit::new();
        for number in 0..5 {
            commit.put_bytes(key(number), vec![number; SCAN_BYTES / 2]);
        }
        store.commit(commit).await.unwrap();
        let mut scan = store.scan(Key::table(Table::Lane));
        let mut lengths = Vec::new();
        while let Some(page) = scan.next_page().await.unwrap() {
            lengths.push(page.len());
        }
        assert_eq!(lengths, [2, 2, 1]);
    }

    #[tokio::test]
    async fn scan_skips_past_keys_in_page_and_beyond() {
        let (_folder, store) = store_of(0..9).await;
        let mut scan = store.scan(Page { limit: 4, ..pages_of_two() });
        assert_eq!(scan.next().await.unwrap(), Some((key(0), vec![0])));
        scan.skip_past(key(1));
        assert_eq!(scan.next().await.unwrap(), Some((key(2), vec![2])));
        scan.skip_past(key(0));
        assert_eq!(scan.next().await.unwrap(), Some((key(3), vec![3])));
        scan.skip_past(key(6));
        assert_eq!(scan.next().await.unwrap(), Some((key(7), vec![7])));
        scan.skip_prefix(&Key::table(Table::Lane));
        assert_eq!(scan.next().await.unwrap(), None);
    }
}
