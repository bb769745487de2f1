//! Checks that blocks in documents can be pasted into an interactive shell, whether bash or zsh.
//!
//! Interactive shells parse a line differently from scripts, so running the blocks is not enough:
//! in zsh `#` does not start a comment and an unmatched `?` is an error; both expand `!` as
//! history, except in single quotes. Before a closing `"`, bash keeps `!`, but zsh removes both.

use std::fs;
use std::path::Path;

use super::tree::files_below;

/// Files at the root with shell blocks.
const FILES: [&str; 2] = ["README.md", "CONTRIBUTING.md"];

/// Returns what an interactive shell would parse differently in the commands `text`, each with its
/// line.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // The open quotes and command substitutions, by the character that closes them.
    let mut open: Vec<char> = Vec::new();
    let mut end_of_document: Option<String> = None;
    for line in text.lines() {
        if let Some(end) = &end_of_document {
            if line == end {
                end_of_document = None;
            }
            continue;
        }
        let mut before = ' ';
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            let next = letters.peek().copied().unwrap_or(' ');
            let is_history = letter == '!' && !matches!(next, ' ' | '=' | '(');
            let quote = open.last().copied().filter(|close| *close != ')');
            let problem = match (quote, letter) {
                (Some('\''), _) => None,
                (_, '!') if is_history => Some("`!` outside single quotes"),
                (None, '#') if before == ' ' => Some("a remark"),
                (None, '?') if before != '$' => Some("`?` without quotes"),
                _ => None,
            };
            faults.extend(problem.map(|problem| format!("{problem}: {line}")));
            match (quote, letter) {
                (Some('\''), '\\') => {}
                (_, '\\') => drop(letters.next()),
                (Some(close), letter) if close == letter => drop(open.pop()),
                (None, ')') => drop(open.pop()),
                (None, '\'' | '"') => open.push(letter),
                (None, '(') => open.push(')'),
                (Some('"'), '(') if before == '$' => open.push(')'),
                _ => {}
            }
            before = letter;
        }
        if !matches!(open.last(), Some('\'' | '"'))
            && let Some((_, word)) = line.split_once("<<")
        {
            let word = word.trim_start_matches('-').split(' ').next().unwrap_or_default();
            end_of_document = Some(word.trim_matches(['\'', '"']).to_owned());
        }
    }
    faults
}

/// Returns the commands of each shell block, with the line of its fence.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((at, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line);
        let inside: Vec<&str> = inside.take_while(|line| line.trim_start() != "```").collect();
        let mut continues = false;
        let is_command = |line: &&str| {
            let command = continues || line.starts_with("$ ");
            continues = command && line.ends_with('\\');
            command
        };
        let commands: Vec<&str> = match language {
            "sh" => inside,
            "console" => inside.into_iter().filter(is_command).collect(),
            _ => continue,
        };
        let commands = commands.iter().map(|line| line.strip_prefix("$ ").unwrap_or(line));
        blocks.push((at, commands.collect::<Vec<&str>>().join("\n")));
    }
    blocks
}

#[test]
fn blocks_can_be_pasted_into_interactive_shells() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = files_below(&root.join("docs"), &["md"]);
    pages.extend(FILES.map(|file| root.join(file)));
    let mut found = Vec::new();
    for page in pages {
        for (at, text) in blocks(&fs::read_to_string(&page).unwrap()) {
            let shown = page.strip_prefix(root).unwrap().display();
            found.extend(faults(&text).iter().map(|fault| format!("{shown}:{at}: {fault}")));
        }
    }
    assert!(found.is_empty(), "blocks that cannot be pasted:\n{}", found.join("\n"));
}

#[test]
fn paste_check_finds_what_interactive_shells_read_differently() {
    for (text, expect) in [
        ("KEY=$(orrery key create --name me)    # or another", "a remark"),
        ("# systemctl edit orrery", "a remark"),
        ("curl -d \"{\\\"text\\\": \\\"What a night!\\\"}\"", "`!` outside single quotes"),
        ("echo one!two", "`!` outside single quotes"),
        ("echo \"Please hurry!\" >mail.txt", "`!` outside single quotes"),
        ("curl -d \"$(jq -n '{a: 1}')!\"", "`!` outside single quotes"),
        ("echo \"$(date) now!\"", "`!` outside single quotes"),
        ("curl $BASE/v1/x?wait=1", "`?` without quotes"),
        ("cat <<'END'\nit's # fine\nEND\necho # not", "a remark"),
    ] {
        let found = faults(text);
        assert!(found.len() == 1 && found[0].starts_with(expect), "{text}: {found:?}");
    }
    for good in [
        "curl -d '{\"text\": \"What a\nnight!\"}' \"$BASE/x?wait=1\"",
        "echo $# ${#KEY} $? a#b '# no remark' \"# neither\"",
        "if ! true; then [ a != b ]; fi",
        "echo 'Please hurry!' >mail.txt",
        "curl -d \"$(jq -n --arg key $KEY '{text: \"What a night!\"}')\"",
        "cat >f.py <<'END'\n# a remark of Python's\nEND",
    ] {
        assert_eq!(faults(good), [""; 0], "{good}");
    }
    let page = "```sh\na\n```\n```console\n$ b \\\n  c\nd\n```\n```toml\ne # f\n```\n";
    assert_eq!(blocks(page), [(1, "a".to_owned()), (4, "b \\\n  c".to_owned())]);
}
