//! Python programs from PyPI used by tests, in a virtual environment below the build folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Locked by the test that installs; the other tests wait, and then find the programs installed.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Returns the folder of the programs listed in `tests/<name>/requirements.txt` and, if present,
/// `requirements-alone.txt`, which is installed without dependencies. Installs them once; without
/// access to PyPI, the installation and the test fail.
pub(crate) fn installed(name: &str) -> PathBuf {
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let alone = wanted.join("requirements-alone.txt");
    let wanted = wanted.join("requirements.txt");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let programs = place.join("bin");
    let done = place.join("requirements.txt");
    let text = std::fs::read_to_string(&wanted).unwrap();
    if std::fs::read_to_string(&done).is_ok_and(|there| there == text) {
        return programs;
    }
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{name} cannot be installed with python3 and its venv from PyPI: {said}"
        );
    };
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run(Command::new(programs.join("python")).args(pip).arg(&wanted));
    if alone.exists() {
        run(Command::new(programs.join("python")).args(pip).arg(&alone).arg("--no-deps"));
    }
    std::fs::write(done, text).unwrap();
    programs
}
