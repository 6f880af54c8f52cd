//! Progress: a bar on a terminal, an occasional line elsewhere.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Log files get a line this often.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// The progress of a task with a known number of steps; shared between threads by reference.
///
/// On a terminal it is a bar with the time left. In a log file or a pipe, where a bar would leave
/// thousands of lines, it is a line every fifteen seconds. Both go to standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
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

impl Progress {
    /// Starts to show the progress of `task`, which has `total` steps.
    pub fn new(task: impl Into<String>, total: u64) -> Self {
        let task = task.into();
        if console::user_attended_stderr() {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            bar.set_style(style());
            bar.set_prefix(task);
            bar.enable_steady_tick(Duration::from_millis(200));
            return Self { bar, lines: None };
        }
        let now = Instant::now();
        Self {
            bar: ProgressBar::hidden(),
            lines: Some(Lines {
                task,
                total,
                done: AtomicU64::new(0),
                start: now,
                last: Mutex::new(now),
            }),
        }
    }

    /// Some steps were done.
    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        if let Some(line) =
            self.lines.as_ref().and_then(|lines| lines.advance(steps, Instant::now()))
        {
            print(&line);
        }
    }

    /// Says what is being done, beside the bar.
    pub fn message(&self, message: impl Into<String>) {
        self.bar.set_message(message.into());
    }

    /// Prints a line above the bar without disturbing it.
    pub fn line(&self, line: impl AsRef<str>) {
        if self.lines.is_some() {
            print(line.as_ref());
        } else {
            self.bar.println(line);
        }
    }

    /// Removes the bar. Dropping does the same.
    pub fn finish(self) {}
}

/// Prints a line to standard error. If that is gone, the work goes on without it.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Lines {
    /// The line to print after these steps, if one is due.
    fn advance(&self, steps: u64, now: Instant) -> Option<String> {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        // If another thread is at it, that thread prints.
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

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{prefix:.bold} {bar:32.cyan/dim} {pos}/{len}  {elapsed} elapsed, {eta} left  {msg}",
    )
    .map(|style| style.progress_chars("━╸─"))
    // The template is fixed, and a test builds it.
    .unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_rarely_and_say_what_is_left() {
        let start = Instant::now();
        let lines = Lines {
            task: "draws".into(),
            total: 100,
            done: AtomicU64::new(0),
            start,
            last: Mutex::new(start),
        };
        assert_eq!(lines.advance(10, start + Duration::from_secs(1)), None);
        let line = lines.advance(15, start + Duration::from_secs(20)).unwrap();
        assert_eq!(line, "draws: 25 % (25 of 100), about 60 seconds left");
        assert_eq!(lines.advance(1, start + Duration::from_secs(21)), None);
    }

    #[test]
    fn the_bar_s_template_is_valid() {
        assert!(
            ProgressStyle::with_template(
                "{prefix:.bold} {bar:32.cyan/dim} {pos}/{len}  {elapsed} elapsed, {eta} left  {msg}"
            )
            .is_ok()
        );
        // Used from several threads and dropped without fuss.
        let progress = Progress::new("task", 4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| progress.advance(1));
            }
        });
        progress.finish();
    }
}
