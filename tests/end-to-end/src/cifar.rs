//! Runs `cifar`, and looks at the files it leaves.

use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::program;

/// A network and a data set that train in a second or two: 323 images to train on and 17 held out.
pub const TINY: [&str; 19] = [
    "--data",
    "synthetic",
    "--train-images",
    "340",
    "--test-images",
    "100",
    "--model",
    "vgg11",
    "--width",
    "0.0625",
    "--batch",
    "32",
    "--epochs",
    "3",
    "--statistics-images",
    "64",
    "--warmup=1",
    "--device",
    "cpu",
];

/// `cifar` with these arguments, in a folder.
pub fn cifar(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program("cifar");
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // The tests may themselves run under `nohup`, whose children ignore a hang-up.
    // SAFETY: `signal` may be called between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
    command
}

/// Runs `cifar`, which must succeed, and returns what it printed to standard output.
///
/// # Panics
/// If it fails.
pub fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = cifar(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", both(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `cifar`, which must fail with exit code 1 and these words.
///
/// # Panics
/// If it does not.
pub fn fails(folder: &Path, arguments: &[&str], words: &[&str]) {
    let output = cifar(folder, arguments).output().unwrap();
    failed(&output, words);
}

/// Checks that a program failed with exit code 1 and these words.
///
/// # Panics
/// If it did not.
pub fn failed(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}", both(output));
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// `cifar train` with two threads, in a folder.
pub fn train(folder: &Path, arguments: &[&str]) -> Command {
    cifar(folder, &[&["train"], arguments, &["--threads", "2"]].concat())
}

/// Trains the small network to its end.
///
/// # Panics
/// If that fails.
pub fn tiny(folder: &Path, out: &str, more: &[&str]) -> Output {
    let output = train(folder, &[&TINY[..], &["--out", out], more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    output
}

/// What a program printed, to both of its outputs.
pub fn both(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The names of the files in a folder, sorted.
///
/// # Panics
/// If the folder cannot be read.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Copies a folder with everything in it.
///
/// # Panics
/// If that fails.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// A JSON file.
///
/// # Panics
/// If it cannot be read.
pub fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The lines of metrics.jsonl without the seconds, which differ between any two runs.
///
/// # Panics
/// If the file does not hold such lines.
pub fn metrics(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let without_time = |line: &str| {
        let (numbers, seconds) = line.rsplit_once(",\"seconds\":").unwrap();
        assert!(seconds.trim_end_matches('}').parse::<f64>().unwrap() > 0.0);
        numbers.to_owned()
    };
    text.lines().map(without_time).collect()
}

/// A number in a line of metrics.jsonl, by the keys that lead to it.
///
/// # Panics
/// If there is none.
pub fn number(line: &str, keys: &[&str]) -> f64 {
    let mut rest = line;
    for key in keys {
        rest = rest.split_once(&format!("\"{key}\":")).unwrap().1;
    }
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap()
}

/// Checks that two runs have computed the same, bit for bit.
///
/// # Panics
/// If they have not.
pub fn assert_same(a: &Path, b: &Path) {
    assert_eq!(metrics(a), metrics(b));
    for name in ["last.safetensors", "best.safetensors"] {
        let read = |run: &Path| fs::read(run.join(name)).unwrap();
        assert!(read(a) == read(b), "{name} differs");
    }
}

/// A `cifar` that runs while the test watches its steps of training.
///
/// What a test does to it depends on the number of its steps, never on time. The program logs each
/// step to a pipe of one page, and waits when the pipe is full. So it is at most [`Running::AHEAD`]
/// steps ahead of what the test has seen, however slow the test is.
///
/// Dropping it kills the program.
pub struct Running {
    child: Child,
    stderr: BufReader<PipeReader>,
    said: String,
}

impl Running {
    /// An upper bound for the number of steps that the program can be ahead of the test. A line of
    /// the log has more than 80 bytes, and the pipe and the reader hold one page together.
    pub const AHEAD: usize = 60;

    /// Starts `cifar` with these arguments in a folder.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::start_command(cifar(folder, arguments))
    }

    /// Starts a command of `cifar`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_command(mut command: Command) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        crate::shrink(&reader);
        command.arg("-vv").env("NO_COLOR", "1").stderr(writer);
        let child = command.spawn().unwrap();
        // The command holds the writing end too, and the pipe would never end.
        drop(command);
        let stderr = BufReader::with_capacity(256, reader);
        Self { child, stderr, said: String::new() }
    }

    /// Waits for this many steps of training. Returns whether they were taken before the end.
    ///
    /// # Panics
    /// If the log cannot be read.
    pub fn steps(&mut self, count: usize) -> bool {
        let mut seen = 0;
        while seen < count {
            let mut line = String::new();
            if self.stderr.read_line(&mut line).unwrap() == 0 {
                return false;
            }
            seen += usize::from(line.contains(" step="));
            self.said += &line;
        }
        true
    }

    /// Waits for a condition that the program brings about.
    ///
    /// # Panics
    /// If the program ends first.
    pub fn wait_until(&mut self, condition: impl Fn() -> bool) {
        while !condition() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() || condition(), "the program ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `-INT`.
    ///
    /// # Panics
    /// If the program has ended.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Closes the reading ends of both outputs, as a terminal that is closed does, and waits for
    /// the program to end.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn close_outputs_and(mut self, act: impl FnOnce(&Self)) -> ExitStatus {
        drop(self.child.stdout.take());
        let (reader, _) = std::io::pipe().unwrap();
        drop(std::mem::replace(&mut self.stderr, BufReader::new(reader)));
        act(&self);
        self.child.wait().unwrap()
    }

    /// Waits for the end, and returns how the program ended and what it printed.
    ///
    /// # Panics
    /// If its outputs cannot be read.
    pub fn finish(mut self) -> (ExitStatus, String) {
        self.stderr.read_to_string(&mut self.said).unwrap();
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_string(&mut self.said).unwrap();
        }
        (self.child.wait().unwrap(), std::mem::take(&mut self.said))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
