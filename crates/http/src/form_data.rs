//! The parts of a `multipart/form-data` body (RFC 7578).

/// Returns the start of a part's head: its boundary, and the name of its field. The caller adds a
/// file name and a content type, or ends the head.
#[must_use]
pub fn part_head(boundary: &str, name: &str) -> String {
    let name = quoted(name);
    format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"")
}

/// Returns the rest of the head of a part that contains a file. It follows [`part_head`].
#[must_use]
pub fn file_head(filename: &str, content_type: &str) -> String {
    let filename = quoted(filename);
    format!("; filename=\"{filename}\"\r\nContent-Type: {content_type}\r\n\r\n")
}

/// Escapes a name as browsers do.
fn quoted(name: &str) -> String {
    name.replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22")
}
