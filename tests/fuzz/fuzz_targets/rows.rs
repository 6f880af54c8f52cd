//! Parquet files from anywhere are decoded, or refused with an error.
#![no_main]

use cifar::data::fetch::hub::rows;
use libfuzzer_sys::fuzz_target;

/// Rows of the seed.
const ROWS: usize = 2;

fuzz_target!(
    init: {
        // The Parquet library asserts what a damaged file violates. Its thread may panic, and
        // `records` makes an error of that; any other panic is a finding.
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() != Some(rows::THREAD) {
                report(panic);
            }
        }));
    },
    |bytes: &[u8]| {
        if let Ok(records) = rows::records(fuzz::file(bytes), ROWS) {
            assert_eq!(records.len(), ROWS * 3073);
        }
    }
);
