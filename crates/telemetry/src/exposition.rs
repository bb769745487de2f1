//! Parses the part of Prometheus' text format that this process writes: one sample per line.
//! Unreadable lines are skipped.

/// One series and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'t> {
    pub name: &'t str,
    /// The text between the braces.
    labels: &'t str,
    pub value: f64,
}

/// Returns the samples in a text.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.strip_suffix('}').unwrap_or(labels);
        Some(Sample { name, labels, value: value.parse().ok()? })
    })
}

impl<'t> Sample<'t> {
    /// Returns the value of a label, in its escaped form; `None` if the series has no such label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&'t str> {
        let mut rest = self.labels;
        loop {
            let (own, behind) = rest.split_once("=\"")?;
            let end = end_of_value(behind)?;
            if own == name {
                return behind.get(..end);
            }
            rest = behind.get(end + 1..)?.trim_start_matches(',');
        }
    }

    /// Returns the value of a counter.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counters are whole numbers; other values saturate"
    )]
    pub fn count(&self) -> u64 {
        self.value as u64
    }

    /// Returns the upper bound of a histogram bucket, and its cumulative count.
    #[must_use]
    pub fn bucket(&self) -> Option<(f64, u64)> {
        let end = match self.label("le")? {
            "+Inf" => f64::INFINITY,
            end => end.parse().ok()?,
        };
        Some((end, self.count()))
    }
}

/// Returns the end of a value: the first quote that is not escaped.
fn end_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, letter) in text.bytes().enumerate() {
        match letter {
            b'"' if !is_escaped => return Some(at),
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_is_parsed_line_by_line() {
        let text =
            "# HELP a b\n\na 1\nb{x=\"1\",y=\"a \\\"{\\\\\",le=\"+Inf\"} 2.5\nbroken\nc{x=\"1} 3\n";
        let read: Vec<Sample<'_>> = samples(text).collect();
        assert_eq!(read.iter().map(|one| one.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((read[0].value, read[0].label("x"), read[0].bucket()), (1.0, None, None));
        assert_eq!(read[1].label("x"), Some("1"));
        assert_eq!(read[1].label("y"), Some("a \\\"{\\\\"));
        assert_eq!(read[1].bucket(), Some((f64::INFINITY, 2)));
        assert_eq!(read[2].label("x"), None, "an unterminated value");
    }
}
