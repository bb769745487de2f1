//! Tests of the validation of model files.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

/// The eleven numbers after the magic number.
const SIZES: [i32; 11] = [51_865, 1500, 64, 1, 1, 448, 64, 1, 1, 80, 1];

fn file(sizes: [i32; 11], more: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut file = MAGIC.to_le_bytes().to_vec();
    let filters = [sizes[9], FREQUENCIES];
    file.extend(sizes.into_iter().chain(filters).flat_map(i32::to_le_bytes));
    file.resize(file.len() + 80 * 201 * 4, 0);
    more(&mut file);
    file
}

fn add(file: &mut Vec<u8>, numbers: &[i32], bytes: &[u8]) {
    file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    file.extend(bytes);
}

/// A file with two tokens and one tensor.
fn good() -> Vec<u8> {
    file(SIZES, |file| {
        add(file, &[2, 1], b" ");
        add(file, &[0], b"");
        add(file, &[2, 4, 1, 3, 2], b"name");
        file.extend([0; 12]);
    })
}

fn read(file: &[u8]) -> Result<Header, String> {
    let read = Header::parse(Cursor::new(file), file.len() as u64);
    read.map_err(|error| error.to_string())
}

#[test]
fn header_describes_model() {
    let file = good();
    let found = read(&file).unwrap();
    assert_eq!((found.quantization, found.is_multilingual), ("F16", true));
    assert_eq!(found.file_bytes, file.len() as u64);
    let english = SIZES.map(|size| if size == 51_865 { 51_864 } else { size });
    let mut file = good();
    file[4..8].copy_from_slice(&english[0].to_le_bytes());
    assert!(!read(&file).unwrap().is_multilingual);
}

#[test]
fn header_rejects_invalid_files_with_a_reason() {
    let none = |_: &mut Vec<u8>| {};
    let changed = |at: usize, size: i32| {
        let mut sizes = SIZES;
        sizes[at] = size;
        file(sizes, none)
    };
    let mut later = good();
    add(&mut later, &[5, 4, 1], b"");
    let mut odd = good();
    add(&mut odd, &[1, 1, 2, 7], b"x");
    let mut long = good();
    add(&mut long, &[1, 1, 0, i32::MAX], b"x");
    for (file, said) in [
        (b"".to_vec(), "is not a Whisper model"),
        (b"GGUF".to_vec(), "is not a Whisper model"),
        (MAGIC.to_le_bytes().to_vec(), "is cut off"),
        (changed(0, 32_000), "claims 32000 tokens; a Whisper model has 51864 to 51866"),
        (changed(1, 0), "claims 0 audio positions"),
        (changed(2, 128), "sizes that contradict each other"),
        (changed(3, 3), "sizes that contradict each other"),
        (changed(5, i32::MAX), "text positions"),
        (changed(9, -1), "claims -1 frequency bands"),
        (changed(10, 99), "the unknown type 99"),
        (changed(10, -1), "the unknown type -1"),
        (file(SIZES, none), "is cut off"),
        (file(SIZES, |file| add(file, &[60_000], b"")), "claims 60000 tokens with a text"),
        (file(SIZES, |file| add(file, &[1, -1], b"")), "has a token of 4294967295 bytes"),
        (file(SIZES, |file| add(file, &[1, 1], b"a")), "has no token for a space"),
        (file(SIZES, |file| add(file, &[1, 1], b" ")), "contains no weights"),
        (later, "claims 5 dimensions of a tensor"),
        (odd, "has a tensor of the unknown type 2"),
        (long, "is cut off"),
    ] {
        let reason = read(&file).unwrap_err();
        assert!(reason.contains(said), "{reason}, not {said}");
    }
}

proptest! {
    #[test]
    fn header_of_damaged_files_never_panics(
        at in 0..200_usize, byte: u8, end in 0..70_000_usize,
    ) {
        let mut file = good();
        // The filters have no structure.
        let at = if at < 60 { at } else { file.len() - at + 60 - 1 };
        file[at] = byte;
        file.truncate(end);
        let _read = read(&file);
    }
}
