//! The progress of a task: a bar on a terminal, an occasional line elsewhere.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressDrawTarget, ProgressStyle};

use crate::note;
use crate::terminal::printable;

/// Log files get a line this often.
const LINE_EVERY: Duration = Duration::from_secs(15);

const TEMPLATE: &str =
    "{prefix:.bold} {bar:32.cyan/dim} {pos}/{len}  {elapsed} elapsed, {eta} left  {msg}";

/// Shows the progress of a task with a known number of steps. Threads share it by reference.
///
/// A terminal shows a bar with the time left. A log file or a pipe, where a bar would leave
/// thousands of lines, gets a line every fifteen seconds. Both go to standard error.
#[derive(Debug)]
pub struct ProgressBar {
    bar: indicatif::ProgressBar,
    lines: Option<Lines>,
}

#[derive(Debug)]
struct Lines {
    task: String,
    total: u64,
    done: AtomicU64,
    start: Instant,
    last: Mutex<Instant>,
}

impl ProgressBar {
    /// Shows the progress of `task`, which has `total` steps.
    pub fn new(task: impl AsRef<str>, total: u64) -> Self {
        let task = printable(task.as_ref()).into_owned();
        if !console::user_attended_stderr() {
            return Self {
                bar: indicatif::ProgressBar::hidden(),
                lines: Some(Lines::new(task, total, Instant::now())),
            };
        }
        let target = ProgressDrawTarget::stderr();
        let bar = indicatif::ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_prefix(task);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, lines: None }
    }

    /// Counts steps that were done.
    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        let line = self.lines.as_ref().and_then(|lines| lines.advance(steps, Instant::now()));
        if let Some(line) = line {
            note!("{line}");
        }
    }

    /// Shows a message beside the bar.
    pub fn message(&self, message: impl AsRef<str>) {
        self.bar.set_message(printable(message.as_ref()).into_owned());
    }

    /// Removes the bar, as dropping it does.
    pub fn finish(self) {}
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Lines {
    fn new(task: String, total: u64, start: Instant) -> Self {
        Self { task, total, done: AtomicU64::new(0), start, last: Mutex::new(start) }
    }

    /// The line to print after these steps, if one is due.
    fn advance(&self, steps: u64, now: Instant) -> Option<String> {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        // If another thread holds the lock, that thread prints.
        let mut last = self.last.try_lock().ok()?;
        if now.duration_since(*last) < LINE_EVERY {
            return None;
        }
        *last = now;
        let share = done as f64 / self.total.max(1) as f64;
        let elapsed = now.duration_since(self.start);
        let left = elapsed.mul_f64((1.0 / share.max(1e-9) - 1.0).clamp(0.0, 1e6));
        Some(format!(
            "{}: {:.0} % ({done} of {}), about {} left",
            self.task,
            100.0 * share,
            self.total,
            HumanDuration(left)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_rarely_and_say_what_is_left() {
        let start = Instant::now();
        let lines = Lines::new("draws".into(), 100, start);
        assert_eq!(lines.advance(10, start + Duration::from_secs(1)), None);
        let line = lines.advance(15, start + Duration::from_secs(20)).unwrap();
        assert_eq!(line, "draws: 25 % (25 of 100), about 60 seconds left");
        assert_eq!(lines.advance(1, start + Duration::from_secs(21)), None);
    }

    #[test]
    fn the_template_is_valid_and_threads_share_the_bar() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
        let bar = ProgressBar::new("task", 4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| bar.advance(1));
            }
        });
        bar.finish();
    }
}
