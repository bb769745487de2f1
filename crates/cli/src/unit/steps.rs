//! The steps of an installation. Each step describes itself, and is skipped if it is already done.
//!
//! Files are replaced atomically, so that an interrupted step leaves the old file intact.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::owner;

/// One step of an installation.
#[derive(Debug)]
pub(super) enum Step {
    /// Runs a program; a failure aborts the installation.
    Run(Vec<String>),
    /// Creates a folder that root owns and the service's group may read.
    Folder(PathBuf),
    /// Copies this binary.
    Binary(PathBuf),
    /// Writes a file.
    File(File),
    /// Removes a file, or a folder with all its contents.
    Remove(PathBuf),
}

/// A file to write.
#[derive(Debug)]
pub(super) struct File {
    pub path: PathBuf,
    pub mode: u32,
    pub content: String,
    /// Whether an existing file is left unchanged.
    pub is_kept: bool,
    /// Whether the file belongs to the service's group.
    pub is_of_group: bool,
}

impl Step {
    /// Creates a step that runs a program with its arguments.
    pub(super) fn run(line: &[&str]) -> Self {
        Self::Run(line.iter().map(|&word| word.to_owned()).collect())
    }

    /// Returns whether the step is already done.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Run(_) => false,
            Self::Folder(path) => path.is_dir(),
            Self::Binary(path) => is_this_binary(path),
            Self::File(file) if file.is_kept => file.path.exists(),
            Self::File(file) => fs::read_to_string(&file.path).is_ok_and(|old| old == file.content),
            Self::Remove(path) => fs::symlink_metadata(path).is_err(),
        }
    }

    /// Performs the step.
    ///
    /// # Errors
    /// Returns an error that names the file or the program that failed.
    pub(super) fn perform(&self, group: &str) -> anyhow::Result<()> {
        match self {
            Self::Run(line) => run(line),
            Self::Folder(path) => make_folder(path, group),
            Self::Binary(path) => copy_binary(path),
            Self::File(file) => write(file, group),
            Self::Remove(path) => remove(path),
        }
        .with_context(|| format!("this step failed: {self}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(line) => write!(f, "run     {}", line.join(" ")),
            Self::Folder(path) => write!(f, "make    {}", path.display()),
            Self::Binary(path) => write!(f, "copy    this binary to {}", path.display()),
            Self::File(file) => write!(f, "write   {}", file.path.display()),
            Self::Remove(path) => write!(f, "remove  {}", path.display()),
        }
    }
}

fn run(line: &[String]) -> anyhow::Result<()> {
    let Some((program, arguments)) = line.split_first() else { return Ok(()) };
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} cannot be run"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} ended with {}: {}", output.status, said.trim());
    }
    Ok(())
}

/// Returns whether the file is this binary.
fn is_this_binary(path: &Path) -> bool {
    let Ok(own) = std::env::current_exe() else { return false };
    fs::canonicalize(path).is_ok_and(|there| there == own)
        || matches!((fs::read(&own), fs::read(path)), (Ok(own), Ok(there)) if own == there)
}

fn copy_binary(path: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe()?;
    replace(path, 0o755, |file| {
        io::copy(&mut fs::File::open(&own)?, file)?;
        Ok(())
    })
}

fn write(file: &File, group: &str) -> anyhow::Result<()> {
    replace(&file.path, file.mode, |half| half.write_all(file.content.as_bytes()))?;
    if file.is_of_group {
        give_to_group(&file.path, group)?;
    }
    Ok(())
}

/// Writes a temporary file next to the old file, then renames it.
fn replace(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let half = path.with_added_extension("half");
    let mut file = fs::File::create(&half)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    fill(&mut file)?;
    file.sync_all()?;
    fs::rename(&half, path)?;
    Ok(())
}

fn make_folder(path: &Path, group: &str) -> anyhow::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o750))?;
    give_to_group(path, group)
}

fn give_to_group(path: &Path, group: &str) -> anyhow::Result<()> {
    let number = owner::group(group).with_context(|| format!("there is no group {group}"))?;
    Ok(chown(path, Some(0), Some(number))?)
}

fn remove(path: &Path) -> anyhow::Result<()> {
    ensure!(
        path.is_absolute() && path.parent().is_some(),
        "{} must be an absolute path other than /",
        path.display()
    );
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_written_once_and_kept_if_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("units/orrery.service");
        let step = |content: &str, is_kept| {
            let (path, content) = (path.clone(), content.to_owned());
            Step::File(File { path, mode: 0o640, content, is_kept, is_of_group: false })
        };
        assert!(!step("a", true).is_done());
        step("a", true).perform("nobody").unwrap();
        assert!(step("a", false).is_done() && step("b", true).is_done());
        assert!(!step("b", false).is_done());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let removal = Step::Remove(folder.path().join("units"));
        removal.perform("nobody").unwrap();
        assert!(removal.is_done() && !path.exists());
        removal.perform("nobody").unwrap();
    }

    #[test]
    fn failed_program_is_named_with_its_output() {
        let error = Step::run(&["ls", "/no/such/place"]).perform("nobody").unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("run     ls /no/such/place"), "{text}");
        assert!(text.contains("/no/such/place'"), "{text}");
        assert!(Step::run(&["orrery-has-no-such-program"]).perform("nobody").is_err());
    }

    #[test]
    fn binary_is_copied_only_if_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let step = Step::Binary(folder.path().join("bin/orrery"));
        assert!(!step.is_done());
        step.perform("nobody").unwrap();
        assert!(step.is_done());
    }
}
