//! Faults at system calls.
//!
//! A program is run under `ptrace`. A seccomp filter stops it at each call that changes files, and
//! calls that concern a given folder are counted. At one of them the tracer does what disks and
//! power supplies do: the program is killed before the call, in the middle of a write, the call
//! fails, or the power is cut, which also loses what was not synced.
//!
//! Unlike a library that is preloaded, this sees the calls that some packages make without the C
//! library.

mod disk;
mod tracee;

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use disk::Disk;
use tracee::{Call, Stop, Tracee};

/// What happens at a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The program is killed before the call.
    Kill,
    /// The program is killed in the middle of a write. Before any other call it is killed as by
    /// [`Fault::Kill`].
    Torn,
    /// The call fails with this number.
    Error(i32),
    /// The power is cut before the call, and data that was not synced is gone: the files are there,
    /// and empty.
    LostData,
    /// The power is cut before the call. Data that was not synced is gone, and so is every name that
    /// was made, changed or removed in a folder that has not been synced since.
    LostNames,
}

/// How a program ended.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// How many calls concerned the folder.
    pub calls: usize,
    /// The call at which the fault was.
    pub at: Option<String>,
    /// What it printed, to both of its outputs.
    pub said: String,
}

/// Runs a command. If a fault is given, it comes at the call with its number, from 0 on, among the
/// calls that concern the folder. Temporary files of the tracer go to `scratch`, which must be on the
/// same file system and outside the folder.
///
/// # Panics
/// If the command cannot be traced.
pub fn run(
    mut command: Command,
    folder: &Path,
    scratch: &Path,
    fault: Option<(usize, Fault)>,
) -> Outcome {
    let folder = folder.canonicalize().unwrap();
    let output = scratch.join("output");
    let file = File::create(&output).unwrap();
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let mut tracee = Tracee::start(&mut command);
    let mut disk = Disk::new(scratch);
    let (mut calls, mut at) = (0, None);
    let mut lost = None;
    let status = loop {
        let (thread, stop) = tracee.next();
        let call = match stop {
            Stop::Ended(status) => break ExitStatus::from_raw(status),
            Stop::Call(call) => call,
            // The torn write has been made.
            Stop::AfterCall => {
                tracee.kill();
                continue;
            }
        };
        if !call.paths().iter().any(|path| path.starts_with(&folder)) {
            tracee.proceed(thread);
            continue;
        }
        let is_due = at.is_none() && fault.is_some_and(|(number, _)| number == calls);
        calls += 1;
        let Some((_, fault)) = fault.filter(|_| is_due) else {
            disk.before(&call);
            tracee.proceed(thread);
            continue;
        };
        at = Some(call.to_string());
        match fault {
            Fault::Torn if matches!(call, Call::Write { .. }) => tracee.write_half(thread),
            Fault::Kill | Fault::Torn => tracee.kill(),
            Fault::Error(number) => {
                tracee.fail(thread, number);
                tracee.proceed(thread);
            }
            Fault::LostData | Fault::LostNames => {
                tracee.kill();
                lost = Some(fault);
            }
        }
    };
    if let Some(fault) = lost {
        disk.lose(fault == Fault::LostNames);
    }
    let said = std::fs::read(&output).unwrap();
    Outcome { status, calls, at, said: String::from_utf8_lossy(&said).into_owned() }
}
