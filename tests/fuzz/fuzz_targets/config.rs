//! A config.json from anywhere is accepted or refused with an error, and what is accepted describes
//! a network.
#![no_main]

use cifar::run::read_config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = read_config(fuzz::file(bytes)) {
        let weights = config.network().weights().expect("an accepted network has weights");
        assert!(weights.iter().all(|(_, shape)| shape.iter().all(|&dim| dim > 0)));
    }
});
