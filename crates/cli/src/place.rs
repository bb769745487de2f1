//! Finds the service that a command uses: the service of the given configuration, or the first
//! service that is found.
//!
//! Only `serve` creates a store. Every other command searches for a store and prints which one it
//! uses.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::output;
use orrery_config::Config;

/// The configuration of an installed service.
pub(super) const INSTALLED: &str = "/etc/orrery/config.toml";

/// The location where a command without `--config` finds its service.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// `./orrery-data`: the data folder of a service that is started without `--config`, or its
    /// configuration.
    Here,
    /// The configuration of the installed service.
    Installed(PathBuf),
    /// The data folder of an installed service whose configuration is in another location.
    Data,
}

/// Returns the configuration of the service that a command uses.
///
/// # Errors
/// Returns an error when the configuration is invalid, or no service is found.
pub(super) fn of_service(file: Option<&Path>) -> anyhow::Result<Config> {
    if file.is_some() {
        return super::configuration(file);
    }
    let here = Config::defaults().data_dir;
    let data = Config::for_installed().data_dir;
    let Some(place) = find(&here, Path::new(INSTALLED), &data) else {
        anyhow::bail!(
            "no service was found: there is no store in {}, and no {INSTALLED}. Run this in the folder \
             in which the service was started, or name its configuration with --config FILE or \
             ORRERY_CONFIG",
            absolute(&here).display()
        );
    };
    let config = configuration(&place)?;
    let data = absolute(&config.data_dir);
    match &place {
        // The folder in which the user has started the service is no surprise.
        Place::Here => {}
        Place::Installed(file) => {
            output::note(&format!(
                "Using {}, with the data in {}.",
                file.display(),
                data.display()
            ));
        }
        Place::Data => output::note(&format!("Using the data in {}.", data.display())),
    }
    Ok(config)
}

/// Like [`of_service`], for a command that also works without a service: falls back to the
/// defaults.
///
/// # Errors
/// Returns an error when the configuration is invalid.
pub(super) fn of_service_or_defaults(file: Option<&Path>) -> anyhow::Result<Config> {
    super::configuration(file_or_found(file).as_deref())
}

/// Returns the configuration of the service, which a command needs unless it works on a file.
///
/// # Errors
/// As [`of_service`] and [`of_service_or_defaults`].
pub(super) fn of_service_unless(is_of_file: bool, file: Option<&Path>) -> anyhow::Result<Config> {
    if is_of_file { of_service_or_defaults(file) } else { of_service(file) }
}

/// Returns the given configuration file. Without one, returns the configuration file of the
/// installed service, unless the current folder has a store.
pub(super) fn file_or_found(file: Option<&Path>) -> Option<PathBuf> {
    if let Some(file) = file {
        return Some(file.to_path_buf());
    }
    let data = Config::for_installed().data_dir;
    match find(&Config::defaults().data_dir, Path::new(INSTALLED), &data) {
        Some(Place::Installed(file)) => Some(file),
        Some(Place::Here | Place::Data) | None => None,
    }
}

fn configuration(place: &Place) -> anyhow::Result<Config> {
    match place {
        Place::Here => super::configuration(None),
        Place::Installed(file) => super::configuration(Some(file)),
        Place::Data => Ok(Config::for_installed()),
    }
}

/// Returns the first of these that exists: a store or a configuration in `here`, the configuration
/// `installed`, a store in `data`.
fn find(here: &Path, installed: &Path, data: &Path) -> Option<Place> {
    if holds_store(here) || here.join("config.toml").is_file() {
        return Some(Place::Here);
    }
    // A file that this user may not stat counts as present; reading it then reports the error.
    if may_exist(installed) {
        return Some(Place::Installed(installed.to_path_buf()));
    }
    holds_store(data).then_some(Place::Data)
}

/// Returns whether the folder has a service's store, as far as this user can see.
fn holds_store(folder: &Path) -> bool {
    folder.is_dir() && may_exist(&folder.join("store"))
}

fn may_exist(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path)
        .or_else(|_missing| std::path::absolute(path))
        .unwrap_or_else(|_unknown| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_without_config_finds_nearest_service() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().join("orrery-data");
        let installed = folder.path().join("config.toml");
        let data = folder.path().join("var");
        let found = || find(&here, &installed, &data);
        assert_eq!(found(), None);
        fs::create_dir_all(data.join("store")).unwrap();
        assert_eq!(found(), Some(Place::Data));
        fs::write(&installed, "").unwrap();
        assert_eq!(found(), Some(Place::Installed(installed.clone())));
        fs::create_dir_all(&here).unwrap();
        assert_eq!(
            found(),
            Some(Place::Installed(installed.clone())),
            "an empty folder does not count"
        );
        fs::create_dir_all(here.join("store")).unwrap();
        assert_eq!(found(), Some(Place::Here));
        fs::remove_dir(here.join("store")).unwrap();
        fs::write(here.join("config.toml"), "").unwrap();
        assert_eq!(found(), Some(Place::Here), "its data may be elsewhere");
    }
}
