//! Level 1: the CUDA source executed on the CPU through the shim in shim.h. Linux only: the shim
//! relies on ELF.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use vmf_kernels::bn_noise::launches::{BLOCK, Launch};

use crate::machine::{Machine, Program};

type LaunchFn =
    unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, *mut *mut c_void) -> c_int;
type ErrorFn = unsafe extern "C" fn() -> *const c_char;

/// Bytes before and after every buffer. A kernel that writes there is caught, and one that reads
/// there reads NaN. They are many, so that a kernel that confuses a small buffer with a large one
/// does not reach memory of the test itself.
const GUARD: usize = 32 * 1024;

/// The content of the guards. As `f32` these are signalling NaNs, which arithmetic turns into quiet
/// ones. So a kernel that reads beyond the end and writes the result there changes the guard.
const POISON: u128 = 0xffa5_a5a5_ffa5_a5a5_ffa5_a5a5_ffa5_a5a5;

/// A compiled program. The state of the shim is global, so only one launch runs at a time.
pub struct HostProgram {
    library: Mutex<Library>,
}

impl HostProgram {
    /// Compiles a program with `$CXX`, or `c++`.
    pub fn compile(program: &Program) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cuda-check-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let result = Self::compile_in(&folder, program);
        // A loaded library no longer needs its file. If the folder cannot be removed, no harm is
        // done.
        let _ = std::fs::remove_dir_all(&folder);
        result
    }

    fn compile_in(folder: &std::path::Path, program: &Program) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        std::fs::create_dir_all(folder).map_err(text)?;
        let registrations: String =
            program.kernels.iter().map(|kernel| format!("REGISTER({kernel})\n")).collect();
        // In a namespace of their own, because a static variable in a template would otherwise be
        // the same in all loaded programs, which would then share their shared memory.
        let code =
            [include_str!("shim.h"), "namespace {\n", &program.source, &registrations, "}\n"]
                .concat();
        let (input, output) = (folder.join("kernels.cpp"), folder.join("kernels.so"));
        std::fs::write(&input, code).map_err(text)?;
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let run = Command::new(&compiler)
            .args(["-std=gnu++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w"])
            // The check of longjmp in _FORTIFY_SOURCE rejects jumps from one stack to another.
            .arg("-U_FORTIFY_SOURCE")
            .args([&input, std::path::Path::new("-o"), &output])
            .output()
            .map_err(|error| {
                format!("the check needs a C++ compiler, and `{compiler}` does not start ({error}); install one or set CXX")
            })?;
        if !run.status.success() {
            return Err(String::from_utf8_lossy(&run.stderr).into_owned());
        }
        // SAFETY: the library was compiled just now, and its initializers only fill a table.
        let library = unsafe { Library::new(&output) }.map_err(|error| error.to_string())?;
        Ok(Self { library: Mutex::new(library) })
    }

    fn launch(&self, launch: &Launch, order: u32) -> Result<(), String> {
        let library = self.library.lock().unwrap_or_else(|e| e.into_inner());
        let kernel = CString::new(launch.kernel.as_str()).map_err(|error| error.to_string())?;
        let mut arguments: Vec<*mut c_void> =
            launch.arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
        // SAFETY: the types are those of the functions in shim.h, and every argument outlives the
        // call.
        unsafe {
            let run = library.get::<LaunchFn>(b"shim_launch");
            let error = library.get::<ErrorFn>(b"shim_error");
            let (run, error) = (run.map_err(|e| e.to_string())?, error.map_err(|e| e.to_string())?);
            match run(kernel.as_ptr(), launch.grid, BLOCK, order, arguments.as_mut_ptr()) {
                0 => Ok(()),
                1 => Err(CStr::from_ptr(error()).to_string_lossy().into_owned()),
                _ => Err(format!("no kernel {}", launch.kernel)),
            }
        }
    }
}

/// A program with memory. Buffers are in host memory, so a device pointer is a host address.
pub struct HostMachine<'a> {
    program: &'a HostProgram,
    /// 16-byte words, for the alignment of vector loads. The content starts after the guard.
    buffers: Vec<(Vec<u128>, usize)>,
}

impl<'a> HostMachine<'a> {
    /// A machine with no memory allocated.
    pub fn new(program: &'a HostProgram) -> Self {
        Self { program, buffers: Vec::new() }
    }

    fn check_guards(&self) -> Result<(), String> {
        let guard = GUARD / size_of::<u128>();
        for (words, bytes) in &self.buffers {
            let (before, rest) = words.split_at(guard);
            let (content, after) = rest.split_at(bytes.div_ceil(size_of::<u128>()));
            let beyond = content.iter().flat_map(|word| word.to_ne_bytes());
            let poison = std::iter::repeat(POISON.to_ne_bytes()).flatten();
            if before.iter().chain(after).any(|&word| word != POISON)
                || beyond.zip(poison).skip(*bytes).any(|(a, b)| a != b)
            {
                return Err(format!("wrote outside a buffer of {bytes} bytes"));
            }
        }
        Ok(())
    }
}

impl Machine for HostMachine<'_> {
    fn upload(&mut self, bytes: &[u8]) -> u64 {
        let words = (bytes.len() + 2 * GUARD).div_ceil(size_of::<u128>());
        let mut buffer = vec![POISON; words];
        // SAFETY: the buffer has room for the guard and the bytes.
        let start = unsafe { buffer.as_mut_ptr().cast::<u8>().add(GUARD) };
        // SAFETY: as above, and two different allocations do not overlap.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.buffers.push((buffer, bytes.len()));
        start as u64
    }

    fn download(&self, address: u64, bytes: usize) -> Vec<u8> {
        let start = |(words, _): &&(Vec<u128>, usize)| words.as_ptr() as u64 + GUARD as u64;
        let inside = self.buffers.iter().any(|buffer| {
            start(&buffer) <= address && address + bytes as u64 <= start(&buffer) + buffer.1 as u64
        });
        assert!(inside, "download of memory that was not uploaded");
        // SAFETY: the range lies in one buffer, as was just checked.
        unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
    }

    fn clear(&mut self) {
        self.buffers.clear();
    }

    fn launch(&mut self, launch: &Launch, order: u32) -> Result<(), String> {
        self.program.launch(launch, order)?;
        self.check_guards()
    }
}
