//! `html-to-text`: renders a web page as readable plain text. The model loads no external
//! resources.

use std::time::Duration;

use html2text::{Handle, RcDom};
use html5ever::ParseOpts;
use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::tree_builder::TreeBuilderOpts;
use serde_json::{Value, json};

use super::{Builtin, Work, number, refuse, text, weight};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;
use orrery_guard::sandbox::processor_time;

const DEFAULT_WIDTH: u32 = 80;
/// Deeper pages are rejected, because rendering is recursive.
const DEPTH_MAX: usize = 200;
/// Bytes parsed between two checks of depth and elapsed time.
const PART: usize = 4 * 1024;
/// CPU time limit for parsing, because the parser compares each attribute of an element with all
/// the others. CPU time is measured rather than wall-clock time, so that a harmless page does not
/// fail on a busy machine.
const PARSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of memory budgeted per byte of HTML: about twice what the parsed and rendered page takes,
/// so that a burst of large pages stays below half of the service's budget.
const BYTES_EACH: u64 = 400;
/// Maximum output length, in bytes.
const OUTPUT_MAX: usize = 4 * 1024 * 1024;

pub(super) const MODEL: Builtin = Builtin {
    slug: "html-to-text",
    title: "HTML to text",
    description: "Renders HTML as readable plain text, with its links as footnotes.",
    output_type: OutputType::String,
    schema,
    work: Work::Pure {
        weigh: |input| weight::of_text(input, "html", BYTES_EACH).min(weight::MEMORY_MAX / 2),
        run: render,
    },
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
                "maximum": 200,
                "default": DEFAULT_WIDTH,
            },
        },
    })
}

fn render(input: &Value) -> Result<Value, Failure> {
    let started = processor_time();
    let is_late = || processor_time().saturating_sub(started) > PARSE_TIME_MAX;
    let page = parse(text(input, "html"), &is_late)?;
    let config = html2text::config::plain();
    let fault = |error| refuse(format!("the page cannot be rendered: {error}"));
    let width = usize::try_from(number(input, "width", DEFAULT_WIDTH)).unwrap_or(usize::MAX);
    let tree = config.dom_to_render_tree(&page).map_err(fault)?;
    let rendered = config.render_to_string(tree, width).map_err(fault)?;
    if rendered.len() > OUTPUT_MAX {
        return Err(refuse(format!("the text is longer than {OUTPUT_MAX} bytes")));
    }
    Ok(rendered.trim_end().into())
}

/// Parses the page. The depth is checked repeatedly during parsing, because the time per element
/// grows with the number of open elements.
fn parse(html: &str, is_late: &dyn Fn() -> bool) -> Result<RcDom, Failure> {
    let builder = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let options = ParseOpts { tree_builder: builder, ..ParseOpts::default() };
    let mut parser = html5ever::parse_document(RcDom::default(), options);
    let mut rest = html;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.floor_char_boundary(PART));
        parser.process(StrTendril::from_slice(part));
        check_depth(&parser.tokenizer.sink.sink.document)?;
        if is_late() {
            return Err(refuse(
                "the page takes too long to read: an element has too many attributes",
            ));
        }
        rest = behind;
    }
    let page = parser.finish();
    check_depth(&page.document)?;
    Ok(page)
}

/// Checks the depth of the parsed page rather than of the source, because a parser opens and closes
/// implied elements. Iterates level by level instead of recursing.
fn check_depth(document: &Handle) -> Result<(), Failure> {
    let mut level = vec![Handle::clone(document)];
    for _ in 0..=DEPTH_MAX {
        if level.is_empty() {
            return Ok(());
        }
        level = level.iter().flat_map(|node| node.children.borrow().clone()).collect();
    }
    Err(refuse(format!("the page nests deeper than {DEPTH_MAX} elements")))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// 100,000 attributes of one element cause 5,000,000,000 comparisons.
    #[test]
    fn html_to_text_stops_between_chunks_when_out_of_time() {
        let attributes: String = (0..100_000).map(|number| format!(" a{number}")).collect();
        let parts = Cell::new(0);
        let is_late = || parts.replace(parts.get() + 1) >= 2;
        let refused = parse(&format!("<p{attributes}>"), &is_late).err().unwrap();
        assert!(refused.message.contains("too many attributes"), "{}", refused.message);
        assert_eq!(parts.get(), 3);
    }
}
