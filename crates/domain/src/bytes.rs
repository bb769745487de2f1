//! Formats amounts of disk space for messages.

const GB: u64 = 1_000_000_000;

/// Returns an amount of disk space in gigabytes, rounded to a tenth. All messages use this
/// unit, so that their figures can be compared.
#[must_use]
pub fn gigabytes(bytes: u64) -> String {
    let tenths = bytes.saturating_add(GB / 20) / (GB / 10);
    format!("{}.{} GB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_space_is_shown_in_gigabytes() {
        for (bytes, shown) in [
            (0, "0.0 GB"),
            (256 << 20, "0.3 GB"),
            (2 << 30, "2.1 GB"),
            (1_999_999_999, "2.0 GB"),
            (13_527_658_700, "13.5 GB"),
            (u64::MAX, "18446744073.7 GB"),
        ] {
            assert_eq!(gigabytes(bytes), shown);
        }
    }
}
