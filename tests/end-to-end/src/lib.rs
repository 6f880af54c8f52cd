//! End-to-end tests: the programs as a person runs them.

pub mod cifar;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod fault;

use std::io::PipeReader;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

/// A command that runs one of the workspace's programs.
///
/// `cargo test --workspace` has built all programs by the time a test runs, because each of their
/// packages has an integration test. If this package is tested alone, a program that has never been
/// built is built here, and one that exists is taken as it is.
///
/// # Panics
/// If the program cannot be built.
pub fn program(name: &str) -> Command {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    let test = std::env::current_exe().expect("a test knows its own path");
    let folder =
        test.parent().and_then(|deps| deps.parent()).expect("tests are in target/<profile>/deps");
    let path: PathBuf = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !path.exists() {
        let profile = if folder.ends_with("release") { "release" } else { "dev" };
        let target = folder.parent().expect("a profile's folder is in the target folder");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", name, "--profile", profile, "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo can be started");
        assert!(status.success(), "{name} cannot be built");
    }
    Command::new(path)
}

/// Makes a pipe as small as the system can, which is one page on Linux. Elsewhere it is left alone.
pub fn shrink(pipe: &PipeReader) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: this changes the size of a pipe that is open.
        let size = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, 1) };
        assert!(size > 0, "{}", std::io::Error::last_os_error());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pipe;
}
