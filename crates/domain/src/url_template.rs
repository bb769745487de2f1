//! URL templates: the `url` of an `http` step, or of the runner `http`, that contains references.
//!
//! A reference fills the component in which it is written and never changes another component: in
//! the path, it is (part of) one segment; in the query, one name or value; before the `@`, a user
//! name or password. Values are percent-encoded except for unreserved characters (RFC 3986, section
//! 2.3). Encoding does not help against dot segments, so these are rejected. References are not
//! allowed in the scheme, host or port.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use super::json_pointer::JsonPointer;
use super::json_size::fits_in;
use super::mask::MASKED;
use super::reference::{self, ErrorKind, Reference, Scope};
use super::template::{Part, Template};

/// All characters except the unreserved ones.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The problem of a URL template or of the values filled into it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Reference(#[from] reference::Error),
    #[error("must be an absolute http or https URL")]
    Url,
    #[error("must not have the port 0: no server listens there")]
    PortZero,
    #[error("must not have ':' in its user name")]
    User,
    #[error(
        "must not have {0} in its scheme, host or port: write these out, or make the whole url one \
         reference"
    )]
    Target(String),
    #[error("must not get the path segment '{1}' from {0}: it would change the rest of the path")]
    Segment(String, &'static str),
    #[error("must not get an empty path segment from {0}: it would change the rest of the path")]
    Empty(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Component {
    Authority,
    Path,
    Query,
    Fragment,
}

#[derive(Debug)]
enum Piece<'t> {
    Literal(String),
    Reference(&'t Reference),
    /// The end of a path segment.
    Slash,
}

/// A URL that contains at least one reference and other text.
#[derive(Debug)]
pub struct UrlTemplate<'t> {
    /// Scheme and authority.
    before_path: Vec<Piece<'t>>,
    path: Vec<Piece<'t>>,
    /// Query and fragment.
    after_path: Vec<Piece<'t>>,
}

impl<'t> UrlTemplate<'t> {
    /// Parses `template` as a URL template; `None` for a constant or a single reference.
    ///
    /// # Errors
    /// [`Error::Target`] and [`Error::Url`].
    pub fn of(template: &'t Template) -> Option<Result<Self, Error>> {
        template.text_parts().map(Self::parse)
    }

    fn parse(parts: &'t [Part]) -> Result<Self, Error> {
        let mut pieces = Pieces::default();
        let mut rest = parts.iter();
        pieces.start(match rest.next() {
            Some(Part::Literal(text)) => text,
            Some(Part::Reference(reference)) => return Err(Error::Target(reference.to_string())),
            None => return Err(Error::Url),
        })?;
        for part in rest {
            match part {
                Part::Literal(text) => pieces.literal(text),
                Part::Reference(reference) => pieces.reference(reference),
            }
        }
        // URL parsers ignore trailing spaces, which would hide a dot segment from the check.
        if let Some(Piece::Literal(text)) = pieces.pieces().last_mut() {
            text.truncate(text.trim_end_matches(|c: char| c <= ' ').len());
        }
        pieces.finish()
    }

    /// Fills in the values, which may take at most `limit_bytes` bytes of JSON.
    ///
    /// # Errors
    /// [`Error`] names the reference.
    pub fn resolve(&self, scope: &dyn Scope, limit_bytes: usize) -> Result<Url, Error> {
        let mut left = limit_bytes;
        let text = self.write(&mut |reference| {
            let fault =
                |kind| reference::Error::new(&JsonPointer::Root, reference.to_string(), kind);
            let value = reference.look_up(scope).ok_or_else(|| fault(ErrorKind::Nothing))?;
            if !fits_in(&value, left) {
                return Err(fault(ErrorKind::TooLarge(limit_bytes)).into());
            }
            let text = match value.as_str() {
                Some(text) => Cow::Borrowed(text),
                None => Cow::Owned(value.to_string()),
            };
            left = left.saturating_sub(text.len());
            Ok(utf8_percent_encode(&text, ENCODED).to_string())
        })?;
        let url = Url::parse(&text).ok().filter(|url| self.is_target_of(url));
        url.ok_or(Error::Url)
    }

    /// Resolves the URL for display, with secrets masked.
    ///
    /// # Errors
    /// The same errors as [`UrlTemplate::resolve`].
    pub fn masked(&self, scope: &dyn Scope) -> Result<String, Error> {
        self.write(&mut |reference| {
            if reference.secret().is_some() {
                return Ok(MASKED.to_owned());
            }
            let value = reference.look_up(scope).unwrap_or_default();
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            Ok(utf8_percent_encode(&text, ENCODED).to_string())
        })
    }

    /// Returns whether the scheme, host, port and number of path segments match those of the
    /// template.
    fn is_target_of(&self, url: &Url) -> bool {
        let Ok(text) = self.write(&mut |_| Ok("x".to_owned())) else { return false };
        Url::parse(&text).is_ok_and(|own| {
            let segments = |url: &Url| url.path_segments().map(Iterator::count);
            url.scheme() == own.scheme()
                && url.host() == own.host()
                && url.port() == own.port()
                && segments(url) == segments(&own)
        })
    }

    fn write(
        &self,
        value: &mut dyn FnMut(&Reference) -> Result<String, Error>,
    ) -> Result<String, Error> {
        let mut text = String::new();
        for piece in &self.before_path {
            piece.write(&mut text, value)?;
        }
        let mut segment = String::new();
        let mut filled_by = None;
        for piece in self.path.iter().chain([&Piece::Slash]) {
            match piece {
                Piece::Slash => {
                    if let Some(reference) = filled_by.take() {
                        check_segment(&segment, reference)?;
                    }
                    text.push_str(&segment);
                    text.push('/');
                    segment.clear();
                    continue;
                }
                Piece::Reference(reference) => filled_by = Some(*reference),
                Piece::Literal(_) => {}
            }
            piece.write(&mut segment, value)?;
        }
        text.pop();
        for piece in &self.after_path {
            piece.write(&mut text, value)?;
        }
        Ok(text)
    }
}

impl Piece<'_> {
    fn write(
        &self,
        text: &mut String,
        value: &mut dyn FnMut(&Reference) -> Result<String, Error>,
    ) -> Result<(), Error> {
        match self {
            Self::Literal(literal) => text.push_str(literal),
            Self::Reference(reference) => text.push_str(&value(reference)?),
            Self::Slash => text.push('/'),
        }
        Ok(())
    }
}

fn check_segment(segment: &str, reference: &Reference) -> Result<(), Error> {
    match segment.to_ascii_lowercase().replace("%2e", ".").as_str() {
        "" => Err(Error::Empty(reference.to_string())),
        "." => Err(Error::Segment(reference.to_string(), ".")),
        ".." => Err(Error::Segment(reference.to_string(), "..")),
        _ => Ok(()),
    }
}

/// A template being split into components. Only literal text can end a component.
#[derive(Default)]
struct Pieces<'t> {
    component: Option<Component>,
    before_path: Vec<Piece<'t>>,
    path: Vec<Piece<'t>>,
    after_path: Vec<Piece<'t>>,
    /// A reference that is in the host or port unless an `@` follows.
    in_host: Option<&'t Reference>,
}

impl<'t> Pieces<'t> {
    /// Parses the literal that begins with the scheme. Like URL parsers, accepts any number of
    /// slashes after the scheme.
    fn start(&mut self, literal: &str) -> Result<(), Error> {
        let literal = without_breaks(literal);
        let (scheme, rest) = literal.split_once("://").ok_or(Error::Url)?;
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return Err(Error::Url);
        }
        self.component = Some(Component::Authority);
        self.before_path.push(Piece::Literal(format!("{scheme}://")));
        self.literal(rest.trim_start_matches(['/', '\\']));
        Ok(())
    }

    fn literal(&mut self, literal: &str) {
        for c in without_breaks(literal).chars() {
            match (self.component, c) {
                (Some(Component::Authority), '/' | '\\') => self.component = Some(Component::Path),
                (Some(Component::Authority | Component::Path), '?') => {
                    self.component = Some(Component::Query);
                }
                (Some(Component::Authority | Component::Path | Component::Query), '#') => {
                    self.component = Some(Component::Fragment);
                }
                (Some(Component::Authority), '@') => self.in_host = None,
                _ => {}
            }
            let is_slash = matches!(c, '/' | '\\') && self.component == Some(Component::Path);
            match (is_slash, self.pieces().last_mut()) {
                (true, _) => self.pieces().push(Piece::Slash),
                (false, Some(Piece::Literal(text))) => text.push(c),
                (false, _) => self.pieces().push(Piece::Literal(c.into())),
            }
        }
    }

    fn reference(&mut self, reference: &'t Reference) {
        if self.component == Some(Component::Authority) {
            self.in_host.get_or_insert(reference);
        }
        let pieces = self.pieces();
        // A value must not complete an escape sequence begun in the literal text.
        if let Some(Piece::Literal(text)) = pieces.last_mut()
            && let Some((before, digits)) = text.rsplit_once('%')
            && digits.len() < 2
            && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            *text = format!("{before}%25{digits}");
        }
        pieces.push(Piece::Reference(reference));
    }

    const fn pieces(&mut self) -> &mut Vec<Piece<'t>> {
        match self.component {
            None | Some(Component::Authority) => &mut self.before_path,
            Some(Component::Path) => &mut self.path,
            Some(Component::Query | Component::Fragment) => &mut self.after_path,
        }
    }

    fn finish(self) -> Result<UrlTemplate<'t>, Error> {
        if let Some(reference) = self.in_host {
            return Err(Error::Target(reference.to_string()));
        }
        let Self { before_path, path, after_path, .. } = self;
        let template = UrlTemplate { before_path, path, after_path };
        let example = template.write(&mut |_| Ok("x".to_owned()))?;
        let url = Url::parse(&example).map_err(|_invalid| Error::Url)?;
        check_target(&url).map(|()| template)
    }
}

/// Rejects a URL to which no HTTP request can be sent.
///
/// # Errors
/// [`Error::Url`], [`Error::PortZero`], [`Error::User`].
pub fn check_target(url: &Url) -> Result<(), Error> {
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(Error::Url);
    }
    match url.port() {
        Some(0) => Err(Error::PortZero),
        _ if percent_decode_str(url.username()).any(|byte| byte == b':') => Err(Error::User),
        _ => Ok(()),
    }
}

/// Removes tabs and line breaks, which URL parsers ignore.
fn without_breaks(text: &str) -> Cow<'_, str> {
    if text.contains(['\t', '\n', '\r']) {
        text.replace(['\t', '\n', '\r'], "").into()
    } else {
        text.into()
    }
}

#[cfg(test)]
#[path = "url_template_tests.rs"]
mod tests;
