//! The checksum of a checkpoint.
//!
//! The metadata entry `sha256` is the SHA-256 of all bytes of the file, with the 64 hexadecimal
//! digits of the entry itself read as zeros. So every bit of the file counts, and the checksum can
//! be computed while tensors are written or read one by one.
//!
//! It is there to notice damage: a disk that returns other bits, a copy that was cut short and
//! padded, a page that was never written. It is no signature, because whoever can change the file
//! can also compute the checksum again.

use sha2::{Digest, Sha256};
use std::ops::Range;

/// The metadata entry.
pub(super) const KEY: &str = "sha256";

/// What the digits count as in the checksum.
const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What is known about the checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// The file is what was written.
    Right,
    /// The file has one, and it was not compared.
    Skipped,
    /// The file has none.
    Absent,
}

/// The value of the entry before the checksum is known.
pub(super) fn unknown() -> &'static str {
    ZEROS
}

/// A checksum in the making.
pub(super) struct Hash(Sha256);

impl Hash {
    /// Begins with what comes before the tensors. The digits count as zeros, whatever they are.
    pub(super) fn of_header(prefix: &[u8; 8], header: &[u8], digits: Range<usize>) -> Self {
        let mut hash = Sha256::new();
        hash.update(prefix);
        hash.update(&header[..digits.start]);
        hash.update(ZEROS);
        hash.update(&header[digits.end..]);
        Self(hash)
    }

    /// Adds the bytes of the next tensor.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digits.
    pub(super) fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Where the digits are in the text of a header. A string in JSON cannot hold a plain quotation
/// mark, so that `"digits"` is always a whole string.
pub(super) fn place(header: &[u8], digits: &str) -> Result<Range<usize>, String> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != ZEROS.len() || !digits.bytes().all(is_digit) {
        return Err(format!("its checksum {digits:?} is not 64 hexadecimal digits"));
    }
    let quoted = format!("\"{digits}\"").into_bytes();
    let mut places = (0..header.len()).filter(|&at| header[at..].starts_with(&quoted));
    match (places.next(), places.next()) {
        (Some(at), None) => Ok(at + 1..at + 1 + digits.len()),
        _ => Err("its header does not hold its checksum exactly once".into()),
    }
}
