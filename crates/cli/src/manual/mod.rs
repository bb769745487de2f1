//! Generates the manual pages: one page for each command, from its help and the tables in
//! [`pages`], and `orrery.toml(5)`, from `config.example.toml`.

mod configuration;
mod pages;

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

#[cfg(test)]
pub(super) use self::configuration::{Block, blocks};
use self::pages::FILES;
pub(super) use self::pages::{ENVIRONMENT, EXAMPLES, EXIT_STATUS, FAILURES};
use super::{Arguments, LONG_VERSION};
use crate::groups::GROUPS;

/// The name of the page about the configuration.
const CONFIGURATION: &str = "orrery.toml";

/// Writes a page for each visible command, and the page about the configuration.
pub(super) fn write(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("{shown} cannot be created"))?;
    for (name, text) in all()? {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

/// Returns all pages by file name.
fn all() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    let mut pages = vec![(format!("{CONFIGURATION}.5"), configuration_page().into_bytes())];
    let mut waiting = vec![root];
    while let Some(command) = waiting.pop() {
        waiting.extend(visible(&command).cloned());
        pages.push((format!("{}.1", name_of(&command)), page(&command)?));
    }
    Ok(pages)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set())
}

/// Returns the name of a command's page, such as `orrery-key-create`.
fn name_of(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Returns the words of a command after `orrery`, such as `key create`.
fn words_of(command: &Command) -> &str {
    let line = command.get_bin_name().unwrap_or_default();
    line.strip_prefix("orrery").unwrap_or_default().trim()
}

/// Returns the date of the commit from which this binary was built; empty if unknown.
fn date() -> &'static str {
    let is_date = |word: &&str| word.len() == 10 && word.as_bytes().get(4) == Some(&b'-');
    LONG_VERSION.split([' ', ',', '(', ')']).find(is_date).unwrap_or_default()
}

/// Returns the title line of a page. The title functions of clap and roff leave out an empty date,
/// so the version would appear in its place.
fn title(name: &str, section: &str) -> String {
    let (name, date, version) = (name.to_uppercase(), date(), env!("CARGO_PKG_VERSION"));
    format!(".TH \"{name}\" \"{section}\" \"{date}\" \"orrery {version}\" \"Orrery manual\"\n")
}

fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let name = name_of(command);
    let man = Man::new(command.clone());
    let mut page = title(&name, "1").into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut own = Roff::new();
    if let Some(help) = command.get_after_help().filter(|_| is_root(command)) {
        own.control("PP", []);
        own.text([roman(help.to_string())]);
    }
    own.to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut own = Roff::new();
    commands(&mut own, command);
    files(&mut own, command);
    environment(&mut own, command);
    exit_status(&mut own, command);
    examples(&mut own, command);
    see_also(&mut own, command, &name);
    own.to_writer(&mut page)?;
    Ok(page)
}

/// Returns whether the command is `orrery` itself.
fn is_root(command: &Command) -> bool {
    words_of(command).is_empty()
}

/// Adds the subcommands. The subcommands of `orrery` are grouped as in its help.
fn commands(roff: &mut Roff, command: &Command) {
    if visible(command).next().is_none() {
        return;
    }
    roff.control("SH", ["COMMANDS"]);
    if is_root(command) {
        for (heading, names) in GROUPS {
            roff.control("SS", [heading]);
            for one in names.iter().filter_map(|name| command.find_subcommand(name)) {
                subcommand(roff, one);
            }
        }
    } else {
        visible(command).for_each(|one| subcommand(roff, one));
    }
}

fn subcommand(roff: &mut Roff, command: &Command) {
    roff.control("TP", []);
    roff.text([bold(name_of(command)), roman("(1)")]);
    roff.text([roman(command.get_about().map(ToString::to_string).unwrap_or_default())]);
}

/// Adds one entry of a list: its term and its explanation.
fn entry(roff: &mut Roff, term: &str, text: &str) {
    roff.control("TP", []);
    roff.text([bold(term)]);
    roff.text([roman(text)]);
}

fn files(roff: &mut Roff, command: &Command) {
    let of_command = FILES.iter().filter(|file| file.is_of(words_of(command)));
    roff.control("SH", ["FILES"]);
    of_command.for_each(|file| entry(roff, file.path, file.text));
}

fn environment(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["ENVIRONMENT"]);
    for variable in ENVIRONMENT.iter().filter(|variable| variable.is_of(words_of(command))) {
        entry(roff, variable.path, variable.text);
    }
}

fn exit_status(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["EXIT STATUS"]);
    let words = words_of(command);
    let failure = FAILURES.iter().find(|(of, _)| *of == words).map(|(_, text)| *text);
    for (code, text) in EXIT_STATUS {
        let text = if code == "1" { failure.unwrap_or(text) } else { text };
        entry(roff, code, text);
    }
}

fn examples(roff: &mut Roff, command: &Command) {
    let words = words_of(command);
    let is_of = |line: &str| {
        let rest = line.strip_prefix("orrery ").and_then(|rest| rest.strip_prefix(words));
        is_root(command) || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let mut of_command = EXAMPLES.iter().filter(|(_, line)| is_of(line)).peekable();
    if of_command.peek().is_none() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    // The page of `orrery` shows only the examples for the first day of use.
    let most = if is_root(command) { pages::FIRST_DAY } else { usize::MAX };
    for (text, line) in of_command.take(most) {
        roff.control("PP", []);
        roff.text([roman(format!("{text}:"))]);
        roff.control("RS", ["4"]);
        roff.control("EX", []);
        roff.text([roman(*line)]);
        roff.control("EE", []);
        roff.control("RE", []);
    }
}

fn see_also(roff: &mut Roff, command: &Command, name: &str) {
    let mut others: Vec<String> = Vec::new();
    if !is_root(command) {
        let parent = name.strip_suffix(&format!("-{}", command.get_name())).unwrap_or("orrery");
        others.push(format!("{parent}(1)"));
    }
    others.push(format!("{CONFIGURATION}(5)"));
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (place, other) in others.iter().enumerate() {
        if place > 0 {
            line.push(roman(", "));
        }
        let (page, section) = other.split_at(other.len() - "(1)".len());
        line.extend([bold(page), roman(section)]);
    }
    roff.text(line);
    let repository = env!("CARGO_PKG_REPOSITORY");
    if is_root(command) && !repository.is_empty() {
        roff.control("PP", []);
        roff.text([roman("The documentation: "), italic(repository)]);
    }
}

fn configuration_page() -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{CONFIGURATION} - the configuration of the service orrery"))]);
    configuration::sections(&mut roff);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("orrery"), roman("(1), "), bold("orrery-check"), roman("(1)")]);
    title(CONFIGURATION, "5") + &roff.render()
}

#[cfg(test)]
mod tests;
