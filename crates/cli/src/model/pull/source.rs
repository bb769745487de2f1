//! What a pull downloads: the file at a URL, or files of a repository on a hub or in a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use url::Url;

use super::Digest;
use super::download::Pulled;
use super::quant::{self, Choice};
use super::web::{Web, shown};

/// The hub, unless `--endpoint` names a mirror.
pub(super) const HUB: &str = "https://huggingface.co";
/// Maximum size of a repository's list of files, in bytes.
const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of files to list in a folder, and maximum depth of its subfolders.
const FOLDER_FILES_MAX: usize = 20_000;
const FOLDER_DEPTH_MAX: usize = 5;
/// Maximum length of a file name, in bytes, which leaves room for the endings of partial files.
const NAME_BYTES_MAX: usize = 200;
/// Characters of a path that need no escape in a URL.
const IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The argument of `orrery model pull`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// `hf:OWNER/REPO`, with a quantization or a file.
    Repository { id: String, wanted: Option<String> },
    /// The URL of a file.
    File(String),
}

/// Where a file comes from.
#[derive(Debug, Clone)]
pub(super) enum From {
    Web(Url),
    Disk(PathBuf),
}

/// A file of a repository.
#[derive(Debug, Clone)]
pub(super) struct RepositoryFile {
    /// The path inside the repository.
    pub path: String,
    pub size: Option<u64>,
    pub sha256: Option<Digest>,
    pub from: From,
}

/// A file to pull.
#[derive(Debug)]
pub(super) struct Item {
    pub from: From,
    /// The path inside the target folder.
    pub name: PathBuf,
    pub size: Option<u64>,
    pub sha256: Option<Digest>,
}

/// The files to pull.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The model file or its parts, then its image encoder.
    pub files: Vec<Item>,
    pub quantization: Option<String>,
    pub notes: Vec<String>,
    /// The web page of the repository.
    pub page: Option<String>,
    parts: usize,
}

impl Plan {
    /// Returns whether the model consists of several parts.
    pub(super) const fn is_split(&self) -> bool {
        self.parts > 1
    }

    /// Returns a note about how to use the model. With `is_served`, the files are in the models
    /// folder.
    pub(super) fn next_step(&self, is_served: bool, first: Option<&Pulled>) -> Option<String> {
        let file = &first?.file;
        let is_model = file.extension().is_some_and(|extension| extension == "gguf");
        if is_model && (self.is_split() || !is_served) {
            let why = if self.is_split() {
                "The built-in runner does not load models of several parts; llama-server does"
            } else {
                "To run the model with llama-server"
            };
            let file = file.display();
            return Some(format!("{why}: orrery model add llama-server --model {file}"));
        }
        (is_model && is_served)
            .then(|| "`orrery model list` shows the model within two seconds.".to_owned())
    }
}

/// The hub's answer about a repository.
#[derive(Deserialize)]
struct Listing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl Source {
    /// Parses the argument.
    ///
    /// # Errors
    /// Returns what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("hf:") {
            let (id, wanted) = rest.split_once(':').unwrap_or((rest, ""));
            let is_name = |name: &str| {
                let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
                !name.is_empty() && !name.starts_with('.') && name.chars().all(is_good)
            };
            if !id.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name)) {
                return Err("write hf:OWNER/REPO, such as hf:Qwen/Qwen2.5-3B-Instruct-GGUF".into());
            }
            let wanted = Some(wanted.to_owned()).filter(|wanted| !wanted.is_empty());
            return Ok(Self::Repository { id: id.to_owned(), wanted });
        }
        let is_web = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        match Url::parse(text) {
            Ok(url) if is_web(&url) => Ok(Self::File(url.into())),
            _ => Err("write hf:OWNER/REPO, or the http or https URL of a file".into()),
        }
    }

    /// Decides which files to pull; asks the hub what the repository has.
    pub(super) async fn plan(&self, endpoint: &str, web: &Web) -> anyhow::Result<Plan> {
        match self {
            Self::File(url) => {
                let url = Url::parse(url)?;
                let name = safe_name(&decoded(url.path()));
                let name = name.with_context(|| {
                    format!("{} has no file name: it is not the URL of a file", shown(&url))
                })?;
                let from = From::Web(url);
                let item = Item { from, name: name.into(), size: None, sha256: None };
                Ok(Plan { files: vec![item], parts: 1, ..Plan::default() })
            }
            Self::Repository { id, wanted } => {
                let endpoint = endpoint.trim_end_matches('/');
                let mut page = None;
                let files = match folder_of(endpoint) {
                    Some(folder) => in_folder(&folder, id)?,
                    None => {
                        on_hub(endpoint, id, page.insert(format!("{endpoint}/{id}")), web).await?
                    }
                };
                let choice = quant::choose(&files, wanted.as_deref());
                let choice = choice.map_err(|error| anyhow::anyhow!("{id} {error}"))?;
                Ok(Plan { page, ..choice.plan(id)? })
            }
        }
    }
}

impl Choice {
    /// Returns the names of the chosen files in the target folder. The parts of a split model have
    /// a folder of their own, because the catalog takes each GGUF file in the models folder as a
    /// model.
    fn plan(self, id: &str) -> anyhow::Result<Plan> {
        let parts = self.model.len();
        let unnamed = || format!("{id} has a file whose name cannot be used here");
        let stem = safe_name(&self.stem).with_context(unnamed)?;
        let folder = if parts > 1 { PathBuf::from(&stem) } else { PathBuf::new() };
        let item = |file: RepositoryFile, name: String| Item {
            name: folder.join(name),
            from: file.from,
            size: file.size,
            sha256: file.sha256,
        };
        let mut files = Vec::new();
        for file in self.model {
            let name = safe_name(&file.path).with_context(unnamed)?;
            files.push(item(file, name));
        }
        if let Some(file) = self.encoder {
            files.push(item(file, format!("{stem}.mmproj.gguf")));
        }
        let notes = self.note.map(|note| format!("{id} {note}")).into_iter().collect();
        Ok(Plan { files, quantization: self.quantization, notes, page: None, parts })
    }
}

/// Returns the folder that an endpoint names; `None` for a URL of a hub.
fn folder_of(endpoint: &str) -> Option<PathBuf> {
    match Url::parse(endpoint) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        Ok(url) if url.has_host() => None,
        _ => Some(PathBuf::from(endpoint)),
    }
}

/// Lists the files of a repository in a folder.
fn in_folder(folder: &Path, id: &str) -> anyhow::Result<Vec<RepositoryFile>> {
    let root = folder.join(id);
    if !root.is_dir() {
        bail!("{} does not exist: --endpoint names a folder with OWNER/REPO", root.display());
    }
    let mut files = Vec::new();
    let mut folders = vec![(root.clone(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let shown = || format!("{} cannot be read", folder.display());
        for entry in fs::read_dir(&folder).with_context(shown)? {
            let path = entry.with_context(shown)?.path();
            // Follows links, because the hub's own tools store links to files.
            let metadata = fs::metadata(&path).with_context(shown)?;
            if metadata.is_dir() && depth < FOLDER_DEPTH_MAX {
                folders.push((path, depth + 1));
                continue;
            }
            let Ok(inside) = path.strip_prefix(&root) else { continue };
            let Some(inside) = inside.to_str().filter(|_| metadata.is_file()) else { continue };
            if files.len() >= FOLDER_FILES_MAX {
                bail!("{} has more than {FOLDER_FILES_MAX} files", root.display());
            }
            let (path, from) = (inside.to_owned(), From::Disk(path.clone()));
            files.push(RepositoryFile { path, size: Some(metadata.len()), sha256: None, from });
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

/// Lists the files of a repository on a hub; `page` is the web page of the repository.
async fn on_hub(
    endpoint: &str,
    id: &str,
    page: &str,
    web: &Web,
) -> anyhow::Result<Vec<RepositoryFile>> {
    let url = Url::parse(&format!("{endpoint}/api/models/{id}/revision/main?blobs=true"));
    let url = url.with_context(|| format!("--endpoint is not a URL: {endpoint}"))?;
    let text = web.read(&url, page, LIST_BYTES_MAX).await?;
    let listing: Listing = serde_json::from_slice(&text)
        .with_context(|| format!("{endpoint} is not a hub: its answer about {id} is no list"))?;
    // All files come from the commit that was listed, even if the repository changes in the
    // meantime.
    let is_commit = |sha: &String| sha.len() == 40 && sha.bytes().all(|c| c.is_ascii_hexdigit());
    if listing.siblings.len() > FOLDER_FILES_MAX {
        bail!("{page} has more than {FOLDER_FILES_MAX} files");
    }
    let revision = listing.sha.filter(is_commit).unwrap_or_else(|| "main".to_owned());
    let file = |sibling: Sibling| {
        let path = utf8_percent_encode(&sibling.rfilename, IN_PATH);
        let url = Url::parse(&format!("{page}/resolve/{revision}/{path}")).ok()?;
        let lfs = sibling.lfs.as_ref();
        Some(RepositoryFile {
            size: lfs.and_then(|lfs| lfs.size).or(sibling.size),
            sha256: lfs.and_then(|lfs| lfs.sha256.as_deref()?.parse().ok()),
            path: sibling.rfilename,
            from: From::Web(url),
        })
    };
    Ok(listing.siblings.into_iter().filter_map(file).collect())
}

fn decoded(path: &str) -> String {
    percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// Returns the last part of a path as a file name that has no effect on a shell or a terminal, and
/// does not hide the file.
fn safe_name(path: &str) -> Option<String> {
    let last = path.rsplit(['/', '\\']).next()?;
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = last.chars().map(|c| if is_good(c) { c } else { '-' }).collect();
    let name = name.trim_start_matches(['.', '-']);
    let long = name.len().saturating_sub(NAME_BYTES_MAX);
    // The end is kept, because it contains the extension.
    let name = name.get(long..)?.trim_start_matches(['.', '-']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_a_repository_or_a_url() {
        let repository = |id: &str, wanted: Option<&str>| Source::Repository {
            id: id.to_owned(),
            wanted: wanted.map(str::to_owned),
        };
        for (text, expect) in [
            ("hf:a/b", repository("a/b", None)),
            ("hf:a-1/b_2.0:", repository("a-1/b_2.0", None)),
            ("hf:a/b:Q8_0", repository("a/b", Some("Q8_0"))),
            ("hf:a/b:sub/c.gguf", repository("a/b", Some("sub/c.gguf"))),
            ("https://h/a.gguf", Source::File("https://h/a.gguf".to_owned())),
        ] {
            assert_eq!(Source::parse(text), Ok(expect), "{text}");
        }
        let wrong =
            ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b?c", "a/b", "ftp://h/a"];
        for text in wrong {
            assert!(Source::parse(text).unwrap_err().contains("hf:OWNER/REPO"), "{text}");
        }
    }

    #[test]
    fn file_names_are_safe() {
        let long = "x".repeat(300) + ".gguf";
        for (path, name) in [
            ("/a/b/model-Q4_K_M.gguf", Some("model-Q4_K_M.gguf")),
            ("sub/../../etc/passwd", Some("passwd")),
            ("a\\..\\b.gguf", Some("b.gguf")),
            (".hidden", Some("hidden")),
            ("--force", Some("force")),
            ("a b;c\u{1b}[2J\u{202e}.gguf", Some("a-b-c--2J-.gguf")),
            ("/a/", None),
            ("..", None),
            ("", None),
            (&long, Some(&long[long.len() - NAME_BYTES_MAX..])),
        ] {
            assert_eq!(safe_name(path).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn endpoint_is_a_hub_or_a_folder() {
        for (endpoint, folder) in [
            (HUB, None),
            ("http://127.0.0.1:8000/hf", None),
            ("file:///mnt/hub", Some("/mnt/hub")),
            ("/mnt/hub", Some("/mnt/hub")),
            ("./hub", Some("./hub")),
        ] {
            assert_eq!(folder_of(endpoint).as_deref(), folder.map(Path::new), "{endpoint}");
        }
    }
}
