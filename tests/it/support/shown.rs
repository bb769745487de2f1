//! A visible element of a page. The element is located again at each use, because rendering may
//! replace elements, even between locating and using one.

use fantoccini::elements::Element;
use fantoccini::error::{CmdError, ErrorStatus};
use fantoccini::{Client, Locator};

use super::until;

/// Ctrl and A, followed by the release of the keys: selects everything in a field.
const ALL: &str = "\u{E009}a\u{E000}";

/// The first visible element that matches an XPath.
pub(crate) struct Shown<'a> {
    client: &'a Client,
    xpath: String,
}

/// Returns whether the error is temporary: the element was replaced, or cannot be used yet.
fn passes(error: &CmdError) -> bool {
    let CmdError::Standard(error) = error else { return false };
    matches!(
        error.error,
        ErrorStatus::StaleElementReference
            | ErrorStatus::ElementNotInteractable
            | ErrorStatus::ElementClickIntercepted
    )
}

impl<'a> Shown<'a> {
    /// Waits for the element.
    pub(crate) async fn once(client: &'a Client, xpath: String) -> Self {
        let shown = Self { client, xpath };
        shown.with(async |_| Ok(())).await;
        shown
    }

    async fn with<T>(&self, act: impl AsyncFn(Element) -> Result<T, CmdError>) -> T {
        until(&self.xpath, async || {
            let found = self.client.find(Locator::XPath(&self.xpath)).await.ok()?;
            found.is_displayed().await.ok()?.then_some(())?;
            match act(found).await {
                Err(error) if passes(&error) => None,
                done => Some(done.unwrap()),
            }
        })
        .await
    }

    pub(crate) async fn click(&self) {
        self.with(async |element| element.click().await).await;
    }

    pub(crate) async fn send_keys(&self, keys: &str) {
        self.with(async |element| element.send_keys(keys).await).await;
    }

    /// Replaces the content of a field by typing.
    pub(crate) async fn replace(&self, text: &str) {
        self.send_keys(ALL).await;
        self.send_keys(text).await;
    }

    pub(crate) async fn select_by_label(&self, label: &str) {
        self.with(async |element| element.select_by_label(label).await).await;
    }

    pub(crate) async fn text(&self) -> String {
        self.with(async |element| element.text().await).await
    }

    pub(crate) async fn attribute(&self, name: &str) -> Option<String> {
        self.with(async |element| element.attr(name).await).await
    }

    /// Returns the value of a field.
    pub(crate) async fn value(&self) -> String {
        self.with(async |element| element.prop("value").await).await.unwrap_or_default()
    }

    pub(crate) async fn is_enabled(&self) -> bool {
        self.with(async |element| element.is_enabled().await).await
    }
}
