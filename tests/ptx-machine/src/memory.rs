//! Memory that notices accesses outside of what was allocated.

use std::collections::BTreeMap;

/// Unmapped bytes between two allocations, so that running over the end of one does not reach the
/// next.
const GAP: u64 = 1 << 20;

/// The default first address. Small addresses stay unmapped, so that a null pointer with an offset
/// is an error.
const FIRST: u64 = 0x7f00_0000_0000;

/// The global memory of a device.
#[derive(Debug)]
pub struct Memory {
    allocations: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::starting_at(FIRST)
    }
}

impl Memory {
    /// Memory whose first allocation is at the given multiple of 256.
    pub fn starting_at(address: u64) -> Self {
        Self { allocations: BTreeMap::new(), next: address }
    }

    /// Copies bytes into new memory and returns its address, a multiple of 256.
    pub fn allocate(&mut self, bytes: &[u8]) -> u64 {
        let address = self.next;
        self.next += (bytes.len() as u64 + GAP).next_multiple_of(256);
        self.allocations.insert(address, bytes.to_vec());
        address
    }

    /// Frees an allocation, and returns its size.
    pub fn free(&mut self, address: u64) -> Result<usize, String> {
        let freed = self.allocations.remove(&address).map(|memory| memory.len());
        freed.ok_or_else(|| format!("{address:#x} is not the start of an allocation"))
    }

    /// The bytes at an address.
    pub fn read(&self, address: u64, bytes: usize) -> Result<&[u8], String> {
        let found = self.allocations.range(..=address).next_back();
        found
            .and_then(|(start, memory)| memory.get((address - start) as usize..)?.get(..bytes))
            .ok_or_else(|| outside(address, bytes))
    }

    /// The bytes at an address, to be written.
    pub fn write(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        let found = self.allocations.range_mut(..=address).next_back();
        found
            .and_then(|(start, memory)| {
                memory.get_mut((address - start) as usize..)?.get_mut(..bytes)
            })
            .ok_or_else(|| outside(address, bytes))
    }
}

fn outside(address: u64, bytes: usize) -> String {
    format!("access to {bytes} bytes at {address:#x}, outside of any allocation")
}
