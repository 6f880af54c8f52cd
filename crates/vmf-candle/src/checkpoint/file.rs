//! Reading and writing safetensors files.
//!
//! A file is an eight-byte length, that many bytes of JSON which say where each tensor is, and the
//! tensors. A file that is read is not trusted: every number in its header is checked against the
//! size of the file before memory is allocated.
//!
//! The crate `safetensors` reads from a slice that holds the whole file, beside the tensors that
//! are made of it. This module reads and writes one tensor at a time, which takes half the memory,
//! and syncs what it writes before it renames. The tests compare it with that crate.

use crate::error::{Error, Result};
use candle_core::{DType, Device, Tensor};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest header that is read: the limit of the `safetensors` crate.
const MAX_HEADER: u64 = 100_000_000;

/// The dtypes of a checkpoint, with their names in the format.
const DTYPES: [(&str, DType); 7] = [
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("I64", DType::I64),
    ("U32", DType::U32),
    ("U8", DType::U8),
];

/// What a file holds.
pub(super) struct Contents {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, Tensor>,
}

/// Reads a whole file onto the CPU.
pub(super) fn read(path: &Path) -> Result<Contents> {
    let malformed = |reason: String| Error::Malformed { path: path.to_path_buf(), reason };
    let io = |source| Error::Io { path: path.to_path_buf(), source };
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
    let mut header = vec![0; header_length as usize];
    file.read_exact(&mut header).map_err(io)?;
    let header: Header = serde_json::from_slice(&header)
        .map_err(|error| malformed(format!("its header: {error}")))?;
    let entries = header.locate(after_prefix - header_length).map_err(malformed)?;

    let mut tensors = BTreeMap::new();
    for entry in entries {
        let mut bytes = vec![0; entry.bytes];
        file.read_exact(&mut bytes).map_err(io)?;
        let tensor = Tensor::from_raw_buffer(&bytes, entry.dtype, &entry.shape, &Device::Cpu)?;
        tensors.insert(entry.name, tensor);
    }
    Ok(Contents { metadata: header.metadata.0, tensors })
}

/// The header as it is written.
struct Header {
    metadata: Metadata,
    tensors: BTreeMap<String, RawEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// A tensor whose place in the file has been checked.
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
}

impl Header {
    /// The tensors in the order of the file, which they must fill without gap or overlap.
    fn locate(&self, data_length: u64) -> std::result::Result<Vec<Entry>, String> {
        let mut ordered: Vec<(&String, &RawEntry)> = self.tensors.iter().collect();
        ordered.sort_by_key(|(_, entry)| entry.data_offsets);
        let mut expected_start = 0;
        let mut entries = Vec::with_capacity(ordered.len());
        for (name, entry) in ordered {
            let (start, end) = entry.data_offsets;
            if start != expected_start || end < start || end > data_length {
                return Err(format!(
                    "the header puts {name:?} at {start}..{end}, which overlaps another tensor, leaves a gap or goes past the end"
                ));
            }
            let Some((_, dtype)) = DTYPES.iter().find(|(known, _)| *known == entry.dtype) else {
                return Err(format!("{name:?} has the unknown dtype {:?}", entry.dtype));
            };
            // Each dimension counts as at least one, so that dimensions whose product overflows are
            // refused in an empty tensor too.
            let capacity = entry
                .shape
                .iter()
                .try_fold(dtype.size_in_bytes(), |bytes, &dim| bytes.checked_mul(dim.max(1)));
            let bytes = if entry.shape.contains(&0) { Some(0) } else { capacity };
            match bytes {
                Some(bytes) if capacity.is_some() && bytes as u64 == end - start => {
                    entries.push(Entry {
                        name: name.clone(),
                        dtype: *dtype,
                        shape: entry.shape.clone(),
                        bytes,
                    });
                }
                _ => {
                    return Err(format!(
                        "the header says that {name:?} is {} {:?}, in {} bytes",
                        entry.dtype,
                        entry.shape,
                        end - start
                    ));
                }
            }
            expected_start = end;
        }
        if expected_start != data_length {
            return Err(format!(
                "{} bytes at its end belong to no tensor",
                data_length - expected_start
            ));
        }
        Ok(entries)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let mut metadata: Option<Metadata> = None;
                let mut tensors = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let repeated = if name == "__metadata__" {
                        metadata.replace(map.next_value()?).is_some()
                    } else {
                        tensors.insert(name.clone(), map.next_value()?).is_some()
                    };
                    if repeated {
                        return Err(de::Error::custom(format!("{name:?} occurs twice")));
                    }
                }
                Ok(Header { metadata: metadata.unwrap_or_default(), tensors })
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// A map that refuses a name that occurs twice. Serde's own map would keep the last.
#[derive(Default)]
struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Metadata, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if entries.insert(name.clone(), map.next_value()?).is_some() {
                        return Err(de::Error::custom(format!("{name:?} occurs twice")));
                    }
                }
                Ok(Metadata(entries))
            }
        }
        deserializer.deserialize_map(MetadataVisitor)
    }
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
    header.insert("__metadata__".into(), json!({ key: document }));
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

    let mut file = BufWriter::new(File::create_new(path).map_err(io)?);
    let length = (header.len() as u64).to_le_bytes();
    file.write_all(&length).map_err(io)?;
    file.write_all(&header).map_err(io)?;
    for (_, tensor) in &ordered {
        file.write_all(&little_endian(tensor)?).map_err(io)?;
    }
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)
}

fn dtype_name(dtype: DType) -> Result<&'static str> {
    match DTYPES.iter().find(|(_, known)| *known == dtype) {
        Some((name, _)) => Ok(name),
        None => Err(Error::DType { what: "a checkpoint", dtype }),
    }
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
