//! `html-to-text`: a web page as readable plain text. It loads nothing that the page names.

use serde_json::{Value, json};

use super::{Builtin, Work, number, refuse, text};
use crate::domain::attempt::Failure;
use crate::domain::model::OutputType;

const DEFAULT_WIDTH: u32 = 80;
/// Deeper pages are refused: rendering recurses.
const DEPTH_MAX: usize = 200;

pub(super) const MODEL: Builtin = Builtin {
    slug: "html-to-text",
    title: "HTML to text",
    description: "Renders HTML as readable plain text, with its links as footnotes.",
    output_type: OutputType::String,
    schema,
    work: Work::Pure(render),
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["html"],
        "additionalProperties": false,
        "properties": {
            "html": {"type": "string", "title": "HTML", "maxLength": 500_000},
            "width": {
                "type": "integer",
                "title": "Characters in a line",
                "minimum": 20,
                "maximum": 1000,
                "default": DEFAULT_WIDTH,
            },
        },
    })
}

fn render(input: &Value) -> Result<Value, Failure> {
    let html = text(input, "html");
    if depth(html) > DEPTH_MAX {
        return Err(refuse(format!("the page nests deeper than {DEPTH_MAX} elements")));
    }
    let width = usize::try_from(number(input, "width", DEFAULT_WIDTH)).unwrap_or(usize::MAX);
    let rendered = html2text::config::plain().string_from_read(html.as_bytes(), width);
    let rendered =
        rendered.map_err(|error| refuse(format!("the page cannot be rendered: {error}")))?;
    Ok(rendered.trim_end().into())
}

/// An upper bound of the depth: every opened element counts until something is closed.
fn depth(html: &str) -> usize {
    let (mut deepest, mut open) = (0_usize, 0_usize);
    let mut rest = html;
    while let Some((_, behind)) = rest.split_once('<') {
        match behind.bytes().next() {
            Some(b'/') => open = open.saturating_sub(1),
            Some(b'a'..=b'z' | b'A'..=b'Z') if !is_void(behind) => open += 1,
            Some(_) | None => {}
        }
        deepest = deepest.max(open);
        rest = behind;
    }
    deepest
}

/// Elements that have no end tag, and those whose end tag people leave out.
fn is_void(tag: &str) -> bool {
    const NAMES: [&str; 20] = [
        "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link",
        "meta", "option", "p", "source", "td", "th", "tr", "wbr",
    ];
    let name: String = tag.chars().take_while(char::is_ascii_alphanumeric).collect();
    NAMES.iter().any(|void| name.eq_ignore_ascii_case(void))
}
