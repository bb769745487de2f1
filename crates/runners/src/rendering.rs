//! Renders untrusted Jinja templates into text of limited length. Fuel limits the instructions; the
//! rendering process limits memory and time.

use std::io;

use minijinja::Template;
use minijinja::value::Serde;
use serde::Serialize;

/// A rendering error.
#[derive(Debug)]
pub enum Error {
    /// The text is longer than this number of bytes.
    TooLong(usize),
    Template(minijinja::Error),
}

/// Renders a template with these values into a text of at most `most` bytes.
///
/// # Errors
/// [`Error`]
pub fn render(
    template: &Template<'_, '_>,
    values: &impl Serialize,
    most: usize,
) -> Result<String, Error> {
    let mut output = Bounded { bytes: Vec::new(), most };
    match template.render_captured_to(Serde(values), &mut output) {
        Ok(_state) => Ok(String::from_utf8_lossy(&output.bytes).into_owned()),
        Err(_) if output.bytes.len() >= most => Err(Error::TooLong(most)),
        Err(error) => Err(Error::Template(error)),
    }
}

/// A writer that accepts a limited number of bytes.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.most.saturating_sub(self.bytes.len()).min(bytes.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or_default());
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
