//! Downloads from the hub with a progress bar and a timeout.
//!
//! hf-hub has no timeout of its own, and the system's can take minutes behind a firewall. So the
//! download runs on a thread of its own, and the caller gives up when no data has arrived for a
//! while.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};

use crate::data::error::{Error, Result};
use crate::limits;

/// Timeout in seconds, unless `HF_HUB_DOWNLOAD_TIMEOUT` is set.
const PATIENCE: f64 = 20.0;

/// Downloads one file of a data set into a folder and returns its path.
pub(super) fn download(repository: &str, file: &'static str, folder: &Path) -> Result<PathBuf> {
    let api = api(folder).map_err(|error| explain(file, folder, error))?;
    let repository = api.dataset(repository.into());
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        let reports = Reports(sender.clone());
        let outcome = repository.download_with_progress(file, reports);
        // The receiver is gone if the caller gave up.
        let _ = sender.send(Event::End(outcome));
    });
    let patience = patience();
    let (mut bar, mut received) = (None, 0_usize);
    loop {
        match events.recv_timeout(patience) {
            Ok(Event::Size(bytes)) => {
                check_size(file, bytes)?;
                bar = Some(Bar::new(file, bytes));
            }
            Ok(Event::Bytes(count)) => {
                received = received.saturating_add(count);
                check_size(file, received)?;
                if let Some(bar) = &mut bar {
                    bar.advance(count);
                }
            }
            Ok(Event::End(outcome)) => {
                return outcome.map_err(|error| explain(file, folder, error));
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = patience.as_secs_f64();
                return Err(Error::Unavailable(format!(
                    "{file}: no data arrived for {seconds} seconds"
                )));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Unavailable(format!("{file}: the download ended unexpectedly")));
            }
        }
    }
}

/// Refuses a file before it fills the disk.
fn check_size(file: &str, bytes: usize) -> Result<()> {
    if bytes as u64 > limits::DOWNLOAD {
        return Err(Error::Foreign(format!(
            "{file} has {bytes} bytes or more, and may have {}",
            limits::DOWNLOAD
        )));
    }
    Ok(())
}

/// The hub as configured by the user's environment, but with a cache folder of our own. It is
/// removed in the end, so that no partial files stay and the data is not kept twice.
fn api(folder: &Path) -> std::result::Result<Api, ApiError> {
    let builder = match super::cache() {
        Some(_) => ApiBuilder::from_env(),
        None => ApiBuilder::from_cache(hf_hub::Cache::new(folder.into())),
    };
    builder.with_cache_dir(folder.into()).build()
}

fn patience() -> Duration {
    let said = std::env::var("HF_HUB_DOWNLOAD_TIMEOUT").ok();
    let seconds = said.and_then(|text| text.parse().ok()).unwrap_or(PATIENCE);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs_f64(PATIENCE))
}

/// What the downloading thread reports.
enum Event {
    Size(usize),
    Bytes(usize),
    End(std::result::Result<PathBuf, ApiError>),
}

struct Reports(Sender<Event>);

impl Reports {
    fn tell(&self, event: Event) {
        if self.0.send(event).is_err() {
            // The caller gave up. hf-hub cannot be cancelled, so the thread is parked.
            loop {
                std::thread::park();
            }
        }
    }
}

impl hf_hub::api::Progress for Reports {
    fn init(&mut self, size: usize, _: &str) {
        self.tell(Event::Size(size));
    }

    fn update(&mut self, size: usize) {
        self.tell(Event::Bytes(size));
    }

    fn finish(&mut self) {}
}

/// A progress bar that counts megabytes.
struct Bar {
    bar: lab::ProgressBar,
    bytes: usize,
}

impl Bar {
    const UNIT: usize = 1_000_000;

    fn new(file: &str, bytes: usize) -> Self {
        let name = file.rsplit('/').next().unwrap_or(file);
        let total = bytes.div_ceil(Self::UNIT) as u64;
        Self { bar: lab::ProgressBar::new(format!("{name}, MB"), total), bytes: 0 }
    }

    fn advance(&mut self, bytes: usize) {
        let before = self.bytes / Self::UNIT;
        self.bytes += bytes;
        let more = self.bytes / Self::UNIT - before;
        if more > 0 {
            self.bar.advance(more as u64);
        }
    }
}

/// Distinguishes an error of the disk, against which no other source would help, from an error of
/// the hub.
fn explain(file: &str, folder: &Path, error: ApiError) -> Error {
    match error {
        ApiError::IoError(source) if is_of_the_disk(source.kind()) => {
            Error::io("write to", folder)(source)
        }
        ApiError::IoError(source) => Error::Unavailable(format!("{file}: {source}")),
        ApiError::RequestError(source) => Error::Unavailable(format!("{file}: {source}")),
        other => Error::Unavailable(format!("{file}: {other}")),
    }
}

fn is_of_the_disk(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}
