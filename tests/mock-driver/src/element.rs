//! Numbers in device memory, as cuBLAS and cuDNN read and write them.

use crate::device;
use half::{bf16, f16};

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Single,
    Half,
    Bfloat,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        if self == Element::Single { 4 } else { 2 }
    }

    pub(crate) fn decode(self, bytes: &[u8]) -> f64 {
        match self {
            Element::Single => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
            Element::Half => f16::from_le_bytes([bytes[0], bytes[1]]).into(),
            Element::Bfloat => bf16::from_le_bytes([bytes[0], bytes[1]]).into(),
        }
    }

    /// The number as it is stored.
    pub(crate) fn encode(self, value: f64) -> Vec<u8> {
        match self {
            Element::Single => (value as f32).to_le_bytes().into(),
            Element::Half => f16::from_f64(value).to_le_bytes().into(),
            Element::Bfloat => bf16::from_f64(value).to_le_bytes().into(),
        }
    }

    pub(crate) fn read(self, address: u64, count: usize) -> Result<Vec<f64>, String> {
        let bytes = device::read(address, count * self.bytes())?;
        Ok(bytes.chunks_exact(self.bytes()).map(|bytes| self.decode(bytes)).collect())
    }

    pub(crate) fn write(self, address: u64, values: &[f64]) -> Result<(), String> {
        let bytes: Vec<u8> = values.iter().flat_map(|&value| self.encode(value)).collect();
        device::write(address, &bytes)
    }
}
