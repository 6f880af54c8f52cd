//! Level 3: PTX executed on the CPU.

use ptx_machine::{Memory, Module};
use vmf_kernels::bn_noise::launches::{Argument, BLOCK, Launch};

use crate::machine::Machine;

/// A module with memory.
pub struct PtxMachine<'a> {
    module: &'a Module,
    memory: Memory,
}

impl<'a> PtxMachine<'a> {
    /// A machine with no memory allocated.
    pub fn new(module: &'a Module) -> Self {
        Self { module, memory: Memory::default() }
    }
}

fn bytes(argument: &Argument) -> &[u8] {
    let size = argument.size();
    // SAFETY: the argument's value, of which no part is uninitialized but the padding at the end,
    // which no kernel reads.
    unsafe { std::slice::from_raw_parts(argument.as_ptr().cast(), size) }
}

impl Machine for PtxMachine<'_> {
    fn upload(&mut self, bytes: &[u8]) -> u64 {
        self.memory.allocate(bytes)
    }

    fn download(&self, address: u64, bytes: usize) -> Vec<u8> {
        let found = self.memory.read(address, bytes);
        found.expect("download of memory that was not uploaded").to_vec()
    }

    fn clear(&mut self) {
        self.memory = Memory::default();
    }

    fn launch(&mut self, launch: &Launch, order: u32) -> Result<(), String> {
        let arguments: Vec<&[u8]> = launch.arguments.iter().map(bytes).collect();
        ptx_machine::launch(
            self.module,
            &launch.kernel,
            launch.grid,
            BLOCK,
            &arguments,
            &mut self.memory,
            order,
        )
    }
}
