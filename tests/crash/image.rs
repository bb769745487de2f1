//! A file system in an image file: an atomic copy of the file is the state of the disk after a
//! power cut.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::eventually;

/// Returns whether this machine lets the test mount file systems. If not, the test reports that it
/// is skipped, or fails if `ORRERY_CRASH_REQUIRE_MOUNT` is set.
pub(crate) fn can_mount() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("probe.img");
    let tried = make(&image, 8).and_then(|()| Mounted::new(&image, &folder.path().join("probe")));
    if let Err(reason) = &tried {
        let is_required = std::env::var_os("ORRERY_CRASH_REQUIRE_MOUNT").is_some();
        assert!(!is_required, "no file system can be mounted here: {reason}");
        println!("SKIPPED: no file system can be mounted here ({reason})");
    }
    tried.is_ok()
}

/// Creates a sparse file of this many MiB that contains an empty ext4 file system.
pub(crate) fn make(image: &Path, mib: u64) -> Result<(), String> {
    let file = fs::File::create(image).map_err(|error| error.to_string())?;
    file.set_len(mib * 1024 * 1024).map_err(|error| error.to_string())?;
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image))
}

/// Copies the image atomically: repeats the copy if the image was written in the meantime.
pub(crate) fn copy_at_one_moment(image: &Path, copy: &Path) {
    let written = || {
        let metadata = fs::metadata(image).unwrap();
        (metadata.mtime(), metadata.mtime_nsec())
    };
    eventually("the image stands still while it is copied", || {
        let before = written();
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(copy)).unwrap();
        (written() == before).then_some(())
    });
}

/// A mounted image; unmounted on drop.
#[derive(Debug)]
pub(crate) struct Mounted {
    point: PathBuf,
}

impl Mounted {
    /// Mounts the image, which replays the file system's journal, as after a power cut.
    pub(crate) fn new(image: &Path, point: &Path) -> Result<Self, String> {
        fs::create_dir_all(point).map_err(|error: io::Error| error.to_string())?;
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(image).arg(point))?;
        Ok(Self { point: point.to_owned() })
    }

    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// Returns the number of free bytes.
    pub(crate) fn free_bytes(&self) -> u64 {
        let mut command = Command::new("df");
        let output = command.args(["--output=avail", "-B1"]).arg(&self.point).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().last().unwrap().trim().parse().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = run(Command::new("umount").arg(&self.point))
            .or_else(|_busy| run(Command::new("umount").arg("--lazy").arg(&self.point)));
        if let Err(reason) = unmounted {
            eprintln!("{} stays mounted: {reason}", self.point.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{:?}: {said}", command.get_program()))
}
