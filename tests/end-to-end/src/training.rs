//! Small trainings with `cifar`, and what they leave.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::program;

/// A network and a set that train in a second or two.
pub const TINY: [&str; 19] = [
    "--data",
    "synthetic",
    "--train-images",
    "320",
    "--test-images",
    "100",
    "--depth",
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

/// `cifar train` in a folder.
pub fn train(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program("cifar");
    command
        .arg("train")
        .args(arguments)
        .args(["--threads", "2"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Trains the small network to its end.
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
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The lines of metrics.jsonl without the time they took, which no two runs share.
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
pub fn number(line: &str, keys: &[&str]) -> f64 {
    let mut rest = line;
    for key in keys {
        rest = rest.split_once(&format!("\"{key}\":")).unwrap().1;
    }
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap()
}

/// Two runs that must have computed the same, bit for bit.
pub fn assert_same(a: &Path, b: &Path) {
    assert_eq!(metrics(a), metrics(b));
    for name in ["last.safetensors", "best.safetensors"] {
        let read = |run: &Path| fs::read(run.join(name)).unwrap();
        assert!(read(a) == read(b), "{name} differs");
    }
}

/// A training that goes on beside the test, which sees every step. It ends with the test at the
/// latest.
///
/// What happens to it happens after a number of steps, never after a time: machines differ in
/// speed.
pub struct Training {
    child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Training {
    /// Starts `cifar train`.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        // So that it says a plain line after every step.
        let mut child =
            train(folder, &[arguments, &["-vv"]].concat()).env("NO_COLOR", "1").spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr, said: String::new() }
    }

    /// Waits for this many steps. Says whether they were taken before training ended.
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

    /// Waits until a file is there.
    pub fn wait_for(&mut self, path: &Path) {
        while !path.exists() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "training ended without {}", path.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a signal, such as `-INT`.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for its end, and returns how it ended and what it printed.
    pub fn finish(mut self) -> (ExitStatus, String) {
        self.stderr.read_to_string(&mut self.said).unwrap();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut self.said).unwrap();
        (self.child.wait().unwrap(), std::mem::take(&mut self.said))
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
