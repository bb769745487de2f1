//! Opens files at paths that other users may control. Opening a named pipe blocks until another
//! process opens its other end, perhaps forever, and reading a device may never end, so pipes and
//! devices are rejected before any byte is read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Paths of descriptors inherited from the caller, such as a shell's `<(command)`. These
/// descriptors are already open, so opening the paths never blocks.
const INHERITED: [&str; 3] = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"];

/// Opens a regular file for reading. This function never blocks.
///
/// # Errors
/// If the file cannot be opened, or is a folder, a named pipe, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file with `options`. This function never blocks.
///
/// # Errors
/// The same errors as [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    if path.to_str().is_some_and(|path| INHERITED.iter().any(|start| path.starts_with(start))) {
        return options.open(path);
    }
    let refused = || {
        let message = "it is not a regular file but a folder, a named pipe, a socket or a device";
        io::Error::new(io::ErrorKind::InvalidInput, message)
    };
    let opened = options.custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        // The file is a socket, or a named pipe without a reader.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Err(refused()),
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

/// Reads a regular file as text.
///
/// # Errors
/// The same errors as [`open`], or if the file cannot be read or is not valid UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn regular_file_is_opened_and_special_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        std::fs::write(of("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", of("link")).unwrap();
        mknodat(CWD, of("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::os::unix::fs::symlink("pipe", of("link to pipe")).unwrap();
        let _listener = UnixListener::bind(of("socket")).unwrap();
        assert_eq!(read_to_string(&of("file")).unwrap(), "text");
        assert_eq!(read_to_string(&of("link")).unwrap(), "text");
        for special in ["pipe", "link to pipe", "socket", "."] {
            let error = open(&of(special)).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{special}: {error}");
        }
        let append =
            |name: &str| open_with(&of(name), OpenOptions::new().append(true).create(true));
        append("file").unwrap();
        append("new").unwrap();
        let _reader = OpenOptions::new().read(true).write(true).open(of("pipe")).unwrap();
        for special in ["pipe", "link to pipe", "socket"] {
            let error = append(special).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{special}: {error}");
        }
        for device in ["/dev/zero", "/dev/null"] {
            assert!(open(Path::new(device)).is_err(), "{device}");
        }
        assert_eq!(open(&of("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
