//! A tokenizer of Rust code without comments and literals: enough to find a file's imports without
//! compiling it. Keeps line numbers.

/// One word (`crate`, `storage`) or sign (`::`, `{`), and its line, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    line: usize,
    text: String,
}

/// A file's code.
#[derive(Debug)]
pub struct Code {
    tokens: Vec<Token>,
}

/// Whether `word` occurs in `line` as a whole word.
pub fn has_word(line: &str, word: &str) -> bool {
    let is_part = |neighbour: Option<char>, edge: Option<char>| {
        neighbour.is_some_and(is_word) && edge.is_some_and(is_word)
    };
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + word.len()..].chars().next();
        !is_part(before, word.chars().next()) && !is_part(behind, word.chars().next_back())
    })
}

fn is_word(one: char) -> bool {
    one.is_alphanumeric() || one == '_'
}

impl Code {
    /// Tokenizes a file's text.
    pub fn of(text: &str) -> Self {
        let mut tokens: Vec<Token> = Vec::new();
        for (number, line) in (1..).zip(without_comments_and_literals(text).lines()) {
            let mut rest = line.trim_start();
            while let Some(first) = rest.chars().next() {
                let length = if is_word(first) {
                    rest.find(|one| !is_word(one)).unwrap_or(rest.len())
                } else if rest.starts_with("::") {
                    2
                } else {
                    first.len_utf8()
                };
                tokens.push(Token { line: number, text: rest[..length].to_owned() });
                rest = rest[length..].trim_start();
            }
        }
        Self { tokens }
    }

    /// The top-level modules that this code names, each with its line. `depth` is the file's module
    /// depth: in `src/domain/money.rs` it takes two `super` to reach the root.
    pub fn imports(&self, depth: usize) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        // The current depth of braces, and the depths at which module blocks were opened.
        let mut braces = 0_usize;
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let before = at.checked_sub(1).map_or("", |at| self.text(at));
            match self.text(at) {
                "{" => {
                    braces += 1;
                    if at >= 2 && self.text(at - 2) == "mod" {
                        blocks.push(braces);
                    }
                }
                "}" => {
                    blocks.pop_if(|opened| *opened == braces);
                    braces = braces.saturating_sub(1);
                }
                "crate" | "orrery" if before != "::" => {
                    if self.text(at + 1) == "::" {
                        self.name_modules(at + 2, &mut found);
                    } else if self.text(at + 1) == "as" {
                        found.push((self.tokens[at].line, "the whole crate".to_owned()));
                    }
                }
                "super" if before != "::" => {
                    let mut steps = 1;
                    while self.text(at + 1) == "::" && self.text(at + 2) == "super" {
                        (steps, at) = (steps + 1, at + 2);
                    }
                    if steps >= depth + blocks.len() && self.text(at + 1) == "::" {
                        self.name_modules(at + 2, &mut found);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        found
    }

    /// The lines that contain a path such as `tokio::spawn`, also as part of a longer path, or
    /// split by a group as in `use tokio::{spawn, select}`.
    pub fn lines_with(&self, path: &str) -> Vec<usize> {
        let words: Vec<&str> = path.split("::").collect();
        let mut lines = Vec::new();
        for at in 0..self.tokens.len() {
            if self.text(at) == words[0] && self.goes_on(at, &words[1..]) {
                lines.push(self.tokens[at].line);
            }
        }
        lines
    }

    /// Whether the path with the word at `at` continues with `words`.
    fn goes_on(&self, at: usize, words: &[&str]) -> bool {
        let Some(next) = words.first() else { return true };
        if self.text(at + 1) != "::" {
            return false;
        }
        let starts = self.starts_of_names(at + 2);
        starts.iter().any(|at| self.text(*at) == *next && self.goes_on(*at, &words[1..]))
    }

    fn name_modules(&self, at: usize, found: &mut Vec<(usize, String)>) {
        for at in self.starts_of_names(at) {
            found.push((self.tokens[at].line, self.text(at).to_owned()));
        }
    }

    /// The starts of the names after a `::`: one, or those of a group in braces.
    fn starts_of_names(&self, at: usize) -> Vec<usize> {
        if self.text(at) != "{" {
            return if at < self.tokens.len() { vec![at] } else { Vec::new() };
        }
        let mut starts = Vec::new();
        let mut braces = 0_usize;
        for at in at..self.tokens.len() {
            match self.text(at) {
                "{" => braces += 1,
                "}" => braces -= 1,
                _ if braces == 1 && matches!(self.text(at - 1), "{" | ",") => starts.push(at),
                _ => {}
            }
            if braces == 0 {
                break;
            }
        }
        starts
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text.as_str())
    }
}

/// The text with all comments, strings and characters blanked; keeps line breaks.
fn without_comments_and_literals(text: &str) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_inside_word = blanked.chars().next_back().is_some_and(is_word);
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            length_of_block_comment(rest)
        } else if first == '"' {
            length_of_string(rest)
        } else if !is_inside_word && let Some(length) = length_of_raw_string(rest) {
            length
        } else if first == '\'' {
            length_of_character(rest)
        } else {
            0
        };
        if length == 0 {
            blanked.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let breaks = rest[..length].matches('\n').count();
            blanked.push(' ');
            blanked.extend(std::iter::repeat_n('\n', breaks));
            rest = &rest[length..];
        }
    }
    blanked
}

/// Length of a block comment, which may contain others.
fn length_of_block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn length_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, one) in text.char_indices().skip(1) {
        match one {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Length of a raw string such as `r"…"`, `r#"…"#` or `br"…"`; `None` if none starts here.
fn length_of_raw_string(text: &str) -> Option<usize> {
    let behind = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    let inside = behind[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// Length of a character literal; 0 for a lifetime, which also begins with `'`.
fn length_of_character(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let behind = at + escaped.len_utf8();
            text[behind..].find('\'').map_or(0, |end| behind + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[test]
fn code_scan_blanks_comments_and_literals_and_keeps_lines() {
    for (text, blanked) in [
        ("a // b\nc", "a  \nc"),
        ("a /* b\n/* c */ d */ e", "a  \n e"),
        ("f(\"a\\\"b\", c)", "f( , c)"),
        ("f(r#\"a\"b\"#, c)", "f( , c)"),
        ("f(br\"a\\\", c)", "f( , c)"),
        ("f(b\"a\", c)", "f(b , c)"),
        ("f('a', '\\'', '\\u{41}', 'é', '\"')", "f( ,  ,  ,  ,  )"),
        ("fn f<'a>(b: &'a str)", "fn f<'a>(b: &'a str)"),
        ("bar\"x\"", "bar "),
        ("r#type", "r#type"),
    ] {
        assert_eq!(without_comments_and_literals(text), blanked, "{text}");
    }
}
