//! A program under `ptrace`, on Linux with 64-bit Intel or AMD processors.

use std::ffi::{CStr, c_long, c_void};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libc::{pid_t, sock_filter, sock_fprog, user_regs_struct};

/// The system calls that change files.
const CALLS: [c_long; 18] = [
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_creat,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rmdir,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
];

/// A system call that is about to be made.
#[derive(Debug)]
pub(super) enum Call {
    Open {
        path: PathBuf,
        creates: bool,
    },
    /// The file as the system shows it to others, with its path.
    Write {
        path: PathBuf,
        file: PathBuf,
    },
    Sync {
        path: PathBuf,
        file: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    CreateFolder {
        path: PathBuf,
    },
}

impl Call {
    pub(super) fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Rename { from, to } | Self::Link { from, to } => vec![from, to],
            Self::Open { path, .. }
            | Self::Write { path, .. }
            | Self::Sync { path, .. }
            | Self::Remove { path }
            | Self::CreateFolder { path } => vec![path],
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::Open { .. } => "open",
            Self::Write { .. } => "write",
            Self::Sync { .. } => "sync",
            Self::Rename { .. } => "rename",
            Self::Link { .. } => "link",
            Self::Remove { .. } => "remove",
            Self::CreateFolder { .. } => "create folder",
        };
        let names = self.paths().into_iter().map(|path| path.display().to_string());
        write!(f, "{what} {}", names.collect::<Vec<_>>().join(" "))
    }
}

/// Why the program has stopped.
pub(super) enum Stop {
    /// Before a system call.
    Call(Call),
    /// After a system call that was to be reported.
    AfterCall,
    /// The program has ended, with this status of `wait`.
    Ended(i32),
}

pub(super) struct Tracee {
    /// The process, which is also its first thread.
    process: pid_t,
    /// The thread whose next stop is after a call.
    awaited: Option<pid_t>,
}

/// Calls `ptrace` from the thread that started the program.
fn ptrace(request: u32, thread: pid_t, address: usize, data: usize) -> io::Result<()> {
    let (address, data) = (address as *mut c_void, data as *mut c_void);
    // SAFETY: the thread is stopped and ours; requests that write memory get a pointer to it.
    match unsafe { libc::ptrace(request, thread, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Tracee {
    /// Starts a command that stops at each of [`CALLS`].
    pub(super) fn start(command: &mut Command) -> Self {
        let mut filter = filter();
        let setup = move || {
            let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            // SAFETY: these calls concern the child alone, and the filter is a valid program.
            let done = unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
            };
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(setup) };
        // The process is waited for in `next`, not by the handle.
        let process = command.spawn().expect("the program can be traced").id() as pid_t;
        let (stopped, _) = wait();
        assert_eq!(stopped, process, "the first stop is that of the program");
        let options = libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, process, 0, options as usize).unwrap();
        ptrace(libc::PTRACE_CONT, process, 0, 0).unwrap();
        Self { process, awaited: None }
    }

    /// Waits for the next stop, and says in which thread it is.
    pub(super) fn next(&mut self) -> (pid_t, Stop) {
        loop {
            let (thread, status) = wait();
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                if thread == self.process {
                    return (thread, Stop::Ended(status));
                }
                continue;
            }
            let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
            if event == libc::PTRACE_EVENT_SECCOMP {
                if let Some(call) = self.call(thread) {
                    return (thread, Stop::Call(call));
                }
                self.proceed(thread);
            } else if self.awaited == Some(thread) && signal == libc::SIGTRAP {
                self.awaited = None;
                return (thread, Stop::AfterCall);
            } else {
                // A new thread begins with a SIGSTOP of the tracer's. Other signals are delivered.
                let is_ours = event != 0 || signal == libc::SIGSTOP || signal == libc::SIGTRAP;
                let deliver = if is_ours { 0 } else { signal };
                // A thread that was killed meanwhile cannot be continued.
                let _ = ptrace(libc::PTRACE_CONT, thread, 0, deliver as usize);
            }
        }
    }

    /// Lets a thread make its call and go on.
    pub(super) fn proceed(&self, thread: pid_t) {
        let _ = ptrace(libc::PTRACE_CONT, thread, 0, 0);
    }

    /// Kills the whole program.
    pub(super) fn kill(&self) {
        // SAFETY: it is a child that has not been waited for.
        unsafe { libc::kill(self.process, libc::SIGKILL) };
    }

    /// Makes the call of a thread fail with this error.
    pub(super) fn fail(&self, thread: pid_t, error: i32) {
        let mut registers = registers(thread);
        // There is no call -1, so that none is made, and this is what the program sees.
        registers.orig_rax = u64::MAX;
        registers.rax = -i64::from(error) as u64;
        set_registers(thread, &registers);
    }

    /// Makes a write of half as many bytes, and stops after it.
    pub(super) fn write_half(&mut self, thread: pid_t) {
        let mut registers = registers(thread);
        registers.rdx /= 2;
        set_registers(thread, &registers);
        self.awaited = Some(thread);
        ptrace(libc::PTRACE_SYSCALL, thread, 0, 0).unwrap();
    }

    /// The call that a thread is about to make.
    fn call(&self, thread: pid_t) -> Option<Call> {
        let user_regs_struct { orig_rax, rdi, rsi, rdx, r10, .. } = registers(thread);
        let number = orig_rax as c_long;
        let here = libc::AT_FDCWD as u64;
        let path = |folder: u64, address: u64| path(thread, folder, address);
        let file = || PathBuf::from(format!("/proc/{thread}/fd/{}", rdi as i32));
        let opened = || std::fs::read_link(file()).ok();
        Some(match number {
            libc::SYS_open => open(path(here, rdi)?, rsi),
            libc::SYS_creat => open(path(here, rdi)?, libc::O_CREAT as u64),
            libc::SYS_openat => open(path(rdi, rsi)?, rdx),
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_ftruncate => {
                Call::Write { path: opened()?, file: file() }
            }
            libc::SYS_fsync | libc::SYS_fdatasync => Call::Sync { path: opened()?, file: file() },
            libc::SYS_rename => Call::Rename { from: path(here, rdi)?, to: path(here, rsi)? },
            libc::SYS_renameat | libc::SYS_renameat2 => {
                Call::Rename { from: path(rdi, rsi)?, to: path(rdx, r10)? }
            }
            libc::SYS_link => Call::Link { from: path(here, rdi)?, to: path(here, rsi)? },
            libc::SYS_linkat => Call::Link { from: path(rdi, rsi)?, to: path(rdx, r10)? },
            libc::SYS_unlink | libc::SYS_rmdir => Call::Remove { path: path(here, rdi)? },
            libc::SYS_unlinkat => Call::Remove { path: path(rdi, rsi)? },
            libc::SYS_mkdir => Call::CreateFolder { path: path(here, rdi)? },
            libc::SYS_mkdirat => Call::CreateFolder { path: path(rdi, rsi)? },
            _ => return None,
        })
    }
}

fn open(path: PathBuf, flags: u64) -> Call {
    let creates = flags & libc::O_CREAT as u64 != 0 && !path.exists();
    Call::Open { path, creates }
}

/// Stops at [`CALLS`] and allows all others.
fn filter() -> Vec<sock_filter> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first word of the data.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in CALLS {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(sock_filter { code: equal as u16, jt: 0, jf: 1, k: call as u32 });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_TRACE));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    filter
}

/// Waits for a child of this thread. Other tests wait for theirs.
fn wait() -> (pid_t, i32) {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a local variable.
        let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        match thread {
            -1 => {
                let error = io::Error::last_os_error();
                assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
            }
            thread => return (thread, status),
        }
    }
}

fn registers(thread: pid_t) -> user_regs_struct {
    // SAFETY: all bits of the structure may be zero.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    // A thread that was killed meanwhile has none.
    let _ = ptrace(libc::PTRACE_GETREGS, thread, 0, &raw mut registers as usize);
    registers
}

fn set_registers(thread: pid_t, registers: &user_regs_struct) {
    ptrace(libc::PTRACE_SETREGS, thread, 0, std::ptr::from_ref(registers) as usize).unwrap();
}

/// The path at an address of a thread's memory, made absolute.
fn path(thread: pid_t, folder: u64, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    let mut bytes = Vec::new();
    // Byte by byte over the boundary of a page would be slow, and a page at once may not be there.
    while !bytes.contains(&0) && bytes.len() < libc::PATH_MAX as usize {
        let mut part = [0; 64];
        let start = address + bytes.len() as u64;
        let count = (64 - start % 64) as usize;
        memory.read_exact_at(&mut part[..count], start).ok()?;
        bytes.extend_from_slice(&part[..count]);
    }
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    let folder = match folder as i32 {
        libc::AT_FDCWD => format!("/proc/{thread}/cwd"),
        folder => format!("/proc/{thread}/fd/{folder}"),
    };
    let path = std::fs::read_link(folder).ok()?.join(text);
    // Without links and dots, if the folder it is in exists.
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    Some(match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    })
}
