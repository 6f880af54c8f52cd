//! An interpreter of PTX, the assembly language that NVRTC compiles CUDA to, on the CPU. It is for
//! tests.
//!
//! It knows the instructions that the kernels of this workspace compile to, on one-dimensional
//! grids. Any other instruction is an error, which names its line, when its kernel is launched.
//! Integer instructions and those of IEEE arithmetic (`.rn`) are exact. The `.approx` and `.full`
//! ones are computed in double precision and rounded; a GPU may differ from that in the last two
//! bits.
//!
//! Device memory is a set of allocations with unmapped gaps between them. An access outside of
//! them, or one that is not aligned, is an error. Shared memory starts as NaN. A thread runs until
//! it waits at a barrier or a shuffle. The caller chooses the [order](launch) of the threads: if
//! two orders give different results, the kernel lacks a barrier. A barrier that some threads never
//! reach, and a shuffle whose mask names absent lanes, are errors.
//!
//! ```
//! use ptx_machine::{Memory, Module, launch};
//!
//! let module = Module::parse(
//!     ".visible .entry double(.param .u64 out) {
//!          .reg .b32 %r<3>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
//!          ld.param.u64 %rd1, [out];
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %rd2, %r1, 4;
//!          add.s64 %rd3, %rd1, %rd2;
//!          ld.global.f32 %f1, [%rd3];
//!          add.f32 %f2, %f1, %f1;
//!          st.global.f32 [%rd3], %f2;
//!          ret;
//!      }",
//! )?;
//! let mut memory = Memory::default();
//! let address = memory.allocate(&1.5f32.to_le_bytes());
//! launch(&module, "double", 1, 1, &[&address.to_le_bytes()], &mut memory, 0)?;
//! assert_eq!(memory.read(address, 4)?, 3.0f32.to_le_bytes());
//! # Ok::<(), String>(())
//! ```

mod arithmetic;
mod decode;
mod memory;
mod parse;
mod run;
mod types;

pub use memory::Memory;
pub use parse::{Kernel, Module};
pub use run::launch;
