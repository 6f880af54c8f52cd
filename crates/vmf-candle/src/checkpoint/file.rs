//! Reading and writing safetensors files.
//!
//! A file is an eight-byte length, that many bytes of JSON which say where each tensor is, and the
//! tensors. A file that is read is not trusted: every number in its header is checked against the
//! size of the file before memory is allocated.
//!
//! The crate `safetensors` reads from a slice that holds the whole file, beside the tensors that
//! are made of it. This module reads and writes one tensor at a time, which takes half the memory,
//! and syncs what it writes before it renames. The tests compare it with that crate.

use super::checksum::{self, Checksum, Hash};
use super::header::{Header, dtype_name};
use crate::error::{Error, Result};
use candle_core::{DType, Device, Tensor};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest header that is read: the limit of the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// What a file holds.
pub(super) struct Contents {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) checksum: Checksum,
}

/// Reads a whole file onto the CPU, and compares its checksum if there is one and `verify` is set.
pub(super) fn read(path: &Path, verify: bool) -> Result<Contents> {
    let malformed = |reason: String| Error::Malformed { path: path.to_path_buf(), reason };
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    // Opening a pipe would wait for someone to write to it.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(malformed("it is not a regular file".into()));
    }
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let Some(after_prefix) = length.checked_sub(8) else {
        return Err(malformed(format!("it has only {length} bytes")));
    };
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(io)?;
    let header_length = u64::from_le_bytes(prefix);
    if header_length > after_prefix.min(MAX_HEADER) {
        return Err(malformed(format!(
            "its header claims {header_length} bytes, in a file of {length}"
        )));
    }
    let mut text = vec![0; header_length as usize];
    file.read_exact(&mut text).map_err(io)?;
    let mut header: Header =
        serde_json::from_slice(&text).map_err(|error| malformed(format!("its header: {error}")))?;
    let entries = header.locate(after_prefix - header_length).map_err(&malformed)?;
    let digits = header.metadata.0.remove(checksum::KEY);
    let mut hash = match &digits {
        Some(digits) if verify => {
            let place = checksum::place(&text, digits).map_err(&malformed)?;
            Some(Hash::of_header(&prefix, &text, place))
        }
        _ => None,
    };
    drop(text);

    let mut tensors = BTreeMap::new();
    for entry in entries {
        let mut bytes = vec![0; entry.bytes];
        file.read_exact(&mut bytes).map_err(io)?;
        if let Some(hash) = &mut hash {
            hash.add(&bytes);
        }
        let tensor = Tensor::from_raw_buffer(&bytes, entry.dtype, &entry.shape, &Device::Cpu)?;
        tensors.insert(entry.name, tensor);
    }
    let checksum = match (hash.map(Hash::finish), digits) {
        (_, None) => Checksum::Absent,
        (None, Some(_)) => Checksum::Skipped,
        (Some(found), Some(digits)) if found == digits => Checksum::Right,
        _ => return Err(Error::Damaged { path: path.to_path_buf() }),
    };
    Ok(Contents { metadata: header.metadata.0, tensors, checksum })
}

/// Writes tensors and one metadata entry: to a temporary file beside the target, synced, then
/// renamed over it.
pub(super) fn write(
    path: &Path,
    key: &str,
    document: String,
    tensors: &[(String, &Tensor)],
) -> Result<()> {
    let temporary = temporary_beside(path)?;
    let written = write_to(&temporary, key, document, tensors).and_then(|()| {
        fs::rename(&temporary, path)
            .map_err(|source| Error::Io { path: path.to_path_buf(), source })
    });
    if written.is_err() {
        // The first error is the one to report. Removing fails if the file was never created.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    sync_directory(path)
}

fn write_to(path: &Path, key: &str, document: String, tensors: &[(String, &Tensor)]) -> Result<()> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    // Wide elements first, so that each tensor begins at a multiple of its element's size.
    let mut ordered: Vec<&(String, &Tensor)> = tensors.iter().collect();
    ordered.sort_by_key(|(name, tensor)| (Reverse(tensor.dtype().size_in_bytes()), name.clone()));
    let mut header = serde_json::Map::new();
    let metadata = json!({ key: document, checksum::KEY: checksum::unknown() });
    header.insert("__metadata__".into(), metadata);
    let mut offset = 0;
    for (name, tensor) in &ordered {
        let end = offset + tensor.elem_count() * tensor.dtype().size_in_bytes();
        let entry = json!({
            "dtype": dtype_name(tensor.dtype())?,
            "shape": tensor.dims(),
            "data_offsets": [offset, end],
        });
        header.insert(name.clone(), entry);
        offset = end;
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');

    let malformed = |reason| Error::Malformed { path: path.to_path_buf(), reason };
    let digits = checksum::place(&header, checksum::unknown()).map_err(malformed)?;
    let length = (header.len() as u64).to_le_bytes();
    let mut hash = Hash::of_header(&length, &header, digits.clone());

    let mut file = BufWriter::new(File::create_new(path).map_err(io)?);
    file.write_all(&length).map_err(io)?;
    file.write_all(&header).map_err(io)?;
    for (_, tensor) in &ordered {
        let bytes = little_endian(tensor)?;
        hash.add(&bytes);
        file.write_all(&bytes).map_err(io)?;
    }
    let mut file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.seek(SeekFrom::Start((length.len() + digits.start) as u64)).map_err(io)?;
    file.write_all(hash.finish().as_bytes()).map_err(io)?;
    file.sync_all().map_err(io)
}

/// The elements of a tensor as the bytes of the format.
fn little_endian(tensor: &Tensor) -> Result<Vec<u8>> {
    let flat = tensor.flatten_all()?;
    macro_rules! bytes {
        ($type:ty) => {{
            let values = flat.to_vec1::<$type>()?;
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        }};
    }
    Ok(match tensor.dtype() {
        DType::F64 => bytes!(f64),
        DType::F32 => bytes!(f32),
        DType::F16 => bytes!(half::f16),
        DType::BF16 => bytes!(half::bf16),
        DType::I64 => bytes!(i64),
        DType::U32 => bytes!(u32),
        _ => flat.to_vec1::<u8>()?,
    })
}

fn temporary_beside(path: &Path) -> Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        let reason = "a checkpoint needs a file name";
        return Err(Error::Io {
            path: path.to_path_buf(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidInput, reason),
        });
    };
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{process}-{number}.tmp"));
    Ok(path.with_file_name(temporary))
}

/// A rename survives a power cut only once the directory is on disk too.
fn sync_directory(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Only Unix opens a directory as a file.
    if cfg!(unix) {
        let synced = File::open(parent).and_then(|directory| directory.sync_all());
        synced.map_err(|source| Error::Io { path: parent.to_path_buf(), source })?;
    }
    Ok(())
}
