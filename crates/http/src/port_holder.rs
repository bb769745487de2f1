//! Finds the process that listens on a port. The result is `None` if `/proc` does not show that
//! process to the current user.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A listening process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    /// The process name, without control characters.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Returns the process that prevents other processes from listening on `address`.
#[must_use]
pub fn of(address: SocketAddr) -> Option<Holder> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, address))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.into_iter().find(|pid| has_open(*pid, &sockets))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name: String = name.trim().chars().filter(|letter| !letter.is_control()).collect();
    Some(Holder { pid, name })
}

fn has_open(pid: u32, sockets: &[String]) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
        target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target))
    })
}

/// Returns the inodes of the sockets in the kernel's table that conflict with `address`.
fn listening(table: &str, address: SocketAddr) -> Vec<u64> {
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (place, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let held = socket_address(place)?;
        let overlaps = held.ip() == address.ip()
            || held.ip().is_unspecified()
            || address.ip().is_unspecified();
        (*state == LISTENING && held.port() == address.port() && overlaps)
            .then(|| inode.parse().ok())?
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// Parses the kernel's notation, in which `0100007F:1F90` is 127.0.0.1:8080: words of four bytes in
/// little-endian order.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for start in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_le_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn port_holder_parses_kernel_addresses() {
        for (text, address) in [
            ("0100007F:1F90", "127.0.0.1:8080"),
            ("00000000:0050", "0.0.0.0:80"),
            ("00000000000000000000000001000000:01BB", "[::1]:443"),
            ("0000000000000000FFFF00000100007F:01BB", "127.0.0.1:443"),
        ] {
            assert_eq!(socket_address(text), Some(address.parse().unwrap()), "{text}");
        }
        for text in ["", "0100007F", "0100007:1F90", "xyz00000:0050", "01:0050"] {
            assert_eq!(socket_address(text), None, "{text}");
        }
    }

    #[test]
    fn port_holder_names_this_process() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = of(taken.local_addr().unwrap()).unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert!(!holder.name.is_empty());
    }
}
