//! Chooses files of a repository by their names: a quantization, all parts of a split model, and
//! the image encoder of a model that has one.

use super::source::RepositoryFile;

/// The quantization that is taken if none is asked for: small, with little loss.
const DEFAULT: &str = "Q4_K_M";
const GGUF: &str = ".gguf";
/// Maximum number of names in an error message.
const NAMES_MAX: usize = 40;
/// Quantizations of image encoders, best first, because encoders are small.
const ENCODERS: [&str; 4] = ["F16", "BF16", "Q8_0", "F32"];

/// The chosen files.
#[derive(Debug)]
pub(super) struct Choice {
    /// The model file, or its parts in order.
    pub model: Vec<RepositoryFile>,
    /// The name of the model without the extension and the part number.
    pub stem: String,
    pub quantization: Option<String>,
    /// The image encoder.
    pub encoder: Option<RepositoryFile>,
    /// A sentence about the choice; it follows the name of the repository.
    pub note: Option<String>,
}

/// A model: one file, or the parts of a split file.
#[derive(Debug)]
struct Group {
    stem: String,
    quantization: Option<String>,
    files: Vec<RepositoryFile>,
    /// The number of parts that the names state.
    parts: usize,
}

impl Group {
    fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.size).fold(0, u64::saturating_add)
    }

    fn rank(&self) -> u32 {
        self.quantization.as_deref().map_or(0, rank)
    }

    /// Returns whether this is the quantization. Variants such as `UD-Q4_K_XL` also have their full
    /// name.
    fn has(&self, quantization: &str) -> bool {
        let Some(own) = &self.quantization else { return false };
        let stem = self.stem.to_ascii_uppercase();
        let before = stem.strip_suffix(&quantization.to_ascii_uppercase());
        own.eq_ignore_ascii_case(quantization)
            || before.is_some_and(|before| before.is_empty() || before.ends_with(is_separator))
    }
}

/// Chooses the files for `wanted`, a quantization or a file; without `wanted`, chooses the default
/// quantization or the next larger quantization.
///
/// # Errors
/// Returns a sentence that follows the name of the repository.
pub(super) fn choose(files: &[RepositoryFile], wanted: Option<&str>) -> Result<Choice, String> {
    let groups = groups(files);
    let Some(wanted) = wanted else {
        let (group, note) = by_default(&groups, files)?;
        return choice(group, files, note);
    };
    let is_file = |file: &&RepositoryFile| {
        let last = file.path.rsplit('/').next();
        file.path == wanted || last == Some(wanted)
    };
    if let Some(file) = files.iter().find(|file| file.path == wanted).or_else(|| {
        let mut named = files.iter().filter(is_file);
        named.next().filter(|_| named.next().is_none())
    }) {
        let has_it = |group: &&Group| group.files.iter().any(|own| own.path == file.path);
        return match groups.iter().find(has_it) {
            Some(group) => choice(group, files, None),
            None => Ok(Choice {
                stem: stem_of(&file.path).0.to_owned(),
                model: vec![file.clone()],
                quantization: None,
                encoder: None,
                note: None,
            }),
        };
    }
    let mut fitting = groups.iter().filter(|group| group.has(wanted));
    match (fitting.next(), fitting.next()) {
        (Some(group), None) => choice(group, files, None),
        (Some(_), Some(_)) => Err(ambiguous(&groups, wanted)),
        (None, _) if is_quantization(&wanted.to_ascii_uppercase()) => {
            let mut known: Vec<&str> =
                groups.iter().filter_map(|group| group.quantization.as_deref()).collect();
            known.sort_unstable_by_key(|known| (rank(known), *known));
            known.dedup();
            Err(format!("has no quantization {wanted}; it has {}", list(&known)))
        }
        (None, _) => {
            let known: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
            Err(format!("has no file {wanted}; it has {}", list(&known)))
        }
    }
}

/// Chooses the default quantization, or the smallest model with a larger quantization, or else the
/// largest model.
fn by_default<'g>(
    groups: &'g [Group],
    files: &[RepositoryFile],
) -> Result<(&'g Group, Option<String>), String> {
    if let [only] = groups {
        return Ok((only, None));
    }
    let mut fitting = groups.iter().filter(|group| group.has(DEFAULT));
    match (fitting.next(), fitting.next()) {
        (Some(group), None) => return Ok((group, None)),
        (Some(_), Some(_)) => return Err(ambiguous(groups, DEFAULT)),
        (None, _) => {}
    }
    let named = |group: &Group| match &group.quantization {
        Some(quantization) => quantization.clone(),
        None => group.stem.clone(),
    };
    let above = groups.iter().filter(|group| group.rank() > rank(DEFAULT));
    if let Some(group) = above.min_by_key(|group| (group.bytes(), group.rank())) {
        let note = format!("has no {DEFAULT}: taking {}, the smallest above it", named(group));
        return Ok((group, Some(note)));
    }
    if let Some(group) = groups.iter().max_by_key(|group| (group.rank(), group.bytes())) {
        let note = format!("has no {DEFAULT}: taking {}, the largest that it has", named(group));
        return Ok((group, Some(note)));
    }
    let known: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    Err(format!("has no GGUF file; name one of its files after a colon: {}", list(&known)))
}

fn choice(group: &Group, files: &[RepositoryFile], note: Option<String>) -> Result<Choice, String> {
    if group.files.len() != group.parts {
        let (found, parts) = (group.files.len(), group.parts);
        return Err(format!("has only {found} of the {parts} parts of {}", group.stem));
    }
    Ok(Choice {
        model: group.files.clone(),
        stem: group.stem.clone(),
        quantization: group.quantization.clone(),
        encoder: encoder(files).cloned(),
        note,
    })
}

fn ambiguous(groups: &[Group], quantization: &str) -> String {
    let fitting = groups.iter().filter(|group| group.has(quantization));
    let names: Vec<&str> = fitting.flat_map(|group| &group.files).map(|file| &*file.path).collect();
    format!("has several files with {quantization}; name one after a colon: {}", list(&names))
}

fn list(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMES_MAX);
    let shown = names.get(..names.len().min(NAMES_MAX)).unwrap_or_default();
    match (shown.is_empty(), more) {
        (true, _) => "no files".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(GGUF)
}

fn is_encoder(file: &RepositoryFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    is_gguf(&name) && name.contains("mmproj")
}

/// Returns the image encoder of a repository.
fn encoder(files: &[RepositoryFile]) -> Option<&RepositoryFile> {
    let preference = |file: &&RepositoryFile| {
        let own = quantization_of(stem_of(&file.path).0);
        let place = ENCODERS.iter().position(|known| own.as_deref() == Some(*known));
        (place.unwrap_or(ENCODERS.len()), file.size)
    };
    files.iter().filter(|file| is_encoder(file)).min_by_key(preference)
}

/// Returns the models of a repository: its GGUF files, with the parts of a split file together.
fn groups(files: &[RepositoryFile]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for file in files.iter().filter(|file| is_gguf(&file.path) && !is_encoder(file)) {
        let (stem, parts) = stem_of(&file.path);
        let known = groups.iter_mut().find(|group| group.stem == stem && group.parts == parts);
        match known.filter(|_| parts > 1) {
            Some(group) => group.files.push(file.clone()),
            None => groups.push(Group {
                stem: stem.to_owned(),
                quantization: quantization_of(stem),
                files: vec![file.clone()],
                parts,
            }),
        }
    }
    for group in &mut groups {
        group.files.sort_by(|one, other| one.path.cmp(&other.path));
    }
    groups
}

/// Returns a path without its extension and part, and the number of parts:
/// `a/b-00001-of-00003.gguf` is part of `a/b`.
fn stem_of(path: &str) -> (&str, usize) {
    let name = path.rsplit('/').next().unwrap_or_default();
    let cut = name.rfind('.').filter(|at| *at > 0).map_or(0, |at| name.len() - at);
    let stem = path.get(..path.len() - cut).unwrap_or(path);
    let part = || {
        let (before, parts) = stem.rsplit_once("-of-")?;
        let (before, part) = before.rsplit_once('-')?;
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|c| c.is_ascii_digit());
        (is_number(part) && is_number(parts)).then_some((before, parts.parse().ok()?))
    };
    part().filter(|(_, parts)| *parts > 0).unwrap_or((stem, 1))
}

/// Returns the quantization in a path, in upper case. A folder's name may contain it: `a/Q4_K_M/b`.
fn quantization_of(stem: &str) -> Option<String> {
    let stem = stem.to_ascii_uppercase();
    let starts = stem.char_indices().rev().filter(|(at, _)| {
        *at == 0 || stem.get(..*at).is_some_and(|before| before.ends_with(is_separator))
    });
    let mut words = starts.filter_map(|(at, _)| stem.get(at..)?.split(['-', '.', '/']).next());
    words.find(|word| is_quantization(word)).map(str::to_owned)
}

const fn is_separator(c: char) -> bool {
    matches!(c, '-' | '.' | '_' | '/')
}

/// Returns whether a word in upper case is the name of a quantization.
fn is_quantization(word: &str) -> bool {
    if matches!(word, "F16" | "BF16" | "FP16" | "F32" | "FP32") {
        return true;
    }
    if word.starts_with("MXFP4") || word.starts_with("NVFP4") {
        return true;
    }
    let rest = ["IQ", "TQ", "Q"].iter().find_map(|start| word.strip_prefix(start));
    let mut letters = rest.unwrap_or_default().chars();
    let has_bits = letters.next().is_some_and(|c| ('1'..='8').contains(&c));
    has_bits && matches!(letters.next(), None | Some('_'))
}

/// Returns a number that grows with the precision of a quantization: ten times its bits, and its
/// variant.
fn rank(quantization: &str) -> u32 {
    let bits = match quantization {
        "F16" | "BF16" | "FP16" => 16,
        "F32" | "FP32" => 32,
        other => other.chars().find_map(|c| c.to_digit(10)).unwrap_or(0),
    };
    let variant = match quantization.rsplit('_').next() {
        Some("XXS") => 0,
        Some("XS") => 1,
        Some("S" | "NL" | "0") => 2,
        Some("1") => 5,
        Some("L") => 6,
        Some("XL") => 7,
        Some(_) | None => 4,
    };
    bits * 10 + variant
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::source::From;
    use super::*;

    fn files(names: &[(&str, u64)]) -> Vec<RepositoryFile> {
        let file = |(path, size): &(&str, u64)| RepositoryFile {
            path: (*path).to_owned(),
            size: Some(*size),
            sha256: None,
            from: From::Disk(PathBuf::new()),
        };
        names.iter().map(file).collect()
    }

    /// Returns the paths of the chosen files, and the note.
    fn chosen(
        names: &[(&str, u64)],
        wanted: Option<&str>,
    ) -> Result<(Vec<String>, String), String> {
        let Choice { model, encoder, note, .. } = choose(&files(names), wanted)?;
        let paths = model.into_iter().chain(encoder).map(|file| file.path).collect();
        Ok((paths, note.unwrap_or_default()))
    }

    #[test]
    fn quantization_is_read_from_names() {
        for (stem, expect) in [
            ("Qwen2.5-3B-Instruct-Q4_K_M", Some("Q4_K_M")),
            ("qwen2.5-3b-instruct-q4_k_m", Some("Q4_K_M")),
            ("model.Q8_0", Some("Q8_0")),
            ("model_IQ4_XS", Some("IQ4_XS")),
            ("Qwen3-30B-A3B-UD-Q4_K_XL", Some("Q4_K_XL")),
            ("BF16/gemma-3-BF16", Some("BF16")),
            ("Q4_K_M/gemma", Some("Q4_K_M")),
            ("gpt-oss-20b-mxfp4", Some("MXFP4")),
            ("mmproj-model-f16", Some("F16")),
            ("Qwen3-0.6B", None),
            ("q9_0", None),
            ("", None),
        ] {
            assert_eq!(quantization_of(stem).as_deref(), expect, "{stem}");
        }
        let sorted = ["IQ3_XXS", "Q3_K_M", "IQ4_XS", "Q4_K_S", "Q4_K_M", "Q4_K_L", "Q5_0", "Q8_0"];
        assert!(sorted.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert!(rank("Q8_0") < rank("BF16") && rank("F16") < rank("F32"));
    }

    #[test]
    fn stems_have_no_parts() {
        for (path, stem, parts) in [
            ("a/b-00001-of-00003.gguf", "a/b", 3),
            ("b.gguf", "b", 1),
            ("b-1-of-3.gguf", "b-1-of-3", 1),
            ("b-00001-of-00000.gguf", "b-00001-of-00000", 1),
            ("v1.5/b", "v1.5/b", 1),
            (".gguf", ".gguf", 1),
        ] {
            assert_eq!(stem_of(path), (stem, parts), "{path}");
        }
    }

    #[test]
    fn default_is_q4_k_m_or_the_smallest_above_it() {
        let has = |names: &[(&str, u64)]| chosen(names, None);
        let (paths, note) = has(&[("m-Q8_0.gguf", 8), ("m-Q4_K_M.gguf", 4)]).unwrap();
        assert_eq!((paths, note.as_str()), (vec!["m-Q4_K_M.gguf".to_owned()], ""));
        let all = [("m-Q3_K_M.gguf", 3), ("m-Q8_0.gguf", 8), ("m-Q5_K_M.gguf", 5)];
        let (paths, note) = has(&all).unwrap();
        assert_eq!(paths, ["m-Q5_K_M.gguf"]);
        assert_eq!(note, "has no Q4_K_M: taking Q5_K_M, the smallest above it");
        let (paths, note) = has(&[("m-Q2_K.gguf", 2), ("m-Q3_K_M.gguf", 3)]).unwrap();
        assert_eq!(paths, ["m-Q3_K_M.gguf"]);
        assert!(note.contains("the largest that it has"), "{note}");
        assert_eq!(has(&[("README.md", 1), ("any.gguf", 1)]).unwrap().0, ["any.gguf"]);
        let twice = has(&[("a-Q4_K_M.gguf", 1), ("b-q4_k_m.gguf", 1)]).unwrap_err();
        assert!(twice.contains("several files with Q4_K_M") && twice.contains("b-q4"), "{twice}");
        let none = has(&[("model.safetensors", 1)]).unwrap_err();
        assert!(none.contains("no GGUF file") && none.contains("model.safetensors"), "{none}");
    }

    #[test]
    fn wanted_names_a_quantization_or_a_file() {
        let all = [
            ("m-Q4_K_M.gguf", 4),
            ("big/m-Q8_0-00002-of-00002.gguf", 4),
            ("big/m-Q8_0-00001-of-00002.gguf", 4),
            ("torn-Q6_K-00001-of-00002.gguf", 4),
            ("ggml-tiny.bin", 1),
            ("mmproj-Q8_0.gguf", 1),
            ("mmproj-F16.gguf", 2),
        ];
        let parts = ["big/m-Q8_0-00001-of-00002.gguf", "big/m-Q8_0-00002-of-00002.gguf"];
        for wanted in ["q8_0", parts[1], "m-Q8_0-00001-of-00002.gguf"] {
            let (paths, _) = chosen(&all, Some(wanted)).unwrap();
            assert_eq!(paths, [parts[0], parts[1], "mmproj-F16.gguf"], "{wanted}");
        }
        let variants = [("m-UD-Q4_K_XL.gguf", 4), ("m-Q5_K_XL.gguf", 5)];
        for wanted in ["UD-Q4_K_XL", "ud-q4_k_xl", "Q4_K_XL"] {
            assert_eq!(chosen(&variants, Some(wanted)).unwrap().0, ["m-UD-Q4_K_XL.gguf"]);
        }
        for wanted in ["ggml-tiny.bin", "mmproj-Q8_0.gguf"] {
            assert_eq!(chosen(&all, Some(wanted)).unwrap().0, [wanted]);
        }
        let none = chosen(&all, Some("Q5_K_M")).unwrap_err();
        assert_eq!(none, "has no quantization Q5_K_M; it has Q4_K_M, Q6_K, Q8_0");
        let none = chosen(&all, Some("m.gguf")).unwrap_err();
        assert!(none.starts_with("has no file m.gguf; it has m-Q4_K_M.gguf, big/"), "{none}");
        let torn = chosen(&all, Some("Q6_K")).unwrap_err();
        assert!(torn.contains("only 1 of the 2 parts"), "{torn}");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..50).map(|number| format!("{number}.bin")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(list(&names).ends_with("39.bin and 10 more"));
    }
}
