//! Unix sockets at paths of any length.
//!
//! The kernel accepts at most 107 bytes for the path of a socket. For a longer path, this module
//! opens the folder and uses `/proc/self/fd/N/NAME`.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};

/// Bytes of `sun_path` in `sockaddr_un`, without the trailing NUL (unix(7)).
const PATH_MAX: usize = 107;

/// Connects to the socket at `path`.
///
/// # Errors
/// Errors of connect(2), and of opening the folder of a long path.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (short, _folder) = shortened(path)?;
    UnixStream::connect(short).await
}

/// Returns whether a process listens on the socket at `path`; blocks for a local connect(2).
#[must_use]
pub fn is_listening(path: &Path) -> bool {
    shortened(path)
        .and_then(|(short, _folder)| std::os::unix::net::UnixStream::connect(short))
        .is_ok()
}

/// Listens on a new socket at `path`.
///
/// # Errors
/// Errors of bind(2), and of opening the folder of a long path.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    let (short, _folder) = shortened(path)?;
    UnixListener::bind(short)
}

/// Returns a path of the same socket that is short enough for the kernel. The path is valid while
/// the returned descriptor is open.
fn shortened(path: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok((path.to_path_buf(), None));
    };
    if path.as_os_str().len() <= PATH_MAX {
        return Ok((path.to_path_buf(), None));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((short, Some(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_at_path_of_any_length_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        for path in [folder.path().join("s"), deep.join("s"), deep.join("n".repeat(60))] {
            let missing = connect(&path).await.unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound, "{}", path.display());
            let listener = bind(&path).unwrap();
            let (stream, accepted) = tokio::join!(connect(&path), listener.accept());
            assert!(
                stream.is_ok() && accepted.is_ok() && is_listening(&path),
                "{}",
                path.display()
            );
        }
        let nowhere = folder.path().join("x".repeat(120)).join("s");
        assert_eq!(connect(&nowhere).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
