//! The header of a safetensors file: which tensors the file holds, and where.
//!
//! Every number in it is checked against the size of the file, and names that occur twice are
//! refused.

use crate::error::{Error, Result};
use candle_core::DType;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use std::collections::BTreeMap;
use std::fmt;

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

/// The name of a dtype in the format.
pub(super) fn dtype_name(dtype: DType) -> Result<&'static str> {
    match DTYPES.iter().find(|(_, known)| *known == dtype) {
        Some((name, _)) => Ok(name),
        None => Err(Error::DType { what: "a checkpoint", dtype }),
    }
}

/// The header as it is written.
pub(super) struct Header {
    pub(super) metadata: Metadata,
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
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

impl Header {
    /// The tensors in the order of the file, which they must fill without gap or overlap.
    pub(super) fn locate(&self, data_length: u64) -> std::result::Result<Vec<Entry>, String> {
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
pub(super) struct Metadata(pub(super) BTreeMap<String, String>);

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
