//! Checkpoints from anywhere are opened, or refused with an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmf_candle::Checkpoint;

fuzz_target!(|bytes: &[u8]| {
    let path = fuzz::file(bytes);
    // Hardly any input has a right checksum, so the rest is reached without it.
    if let Ok(checkpoint) = Checkpoint::open_unverified(path) {
        let _ = checkpoint.summary();
    }
    // What opens must be usable: it can be saved, and what is saved opens with the same contents.
    if let Ok(checkpoint) = Checkpoint::open(path) {
        checkpoint.save(path).expect("an open checkpoint can be saved");
        let again = Checkpoint::open(path).expect("a saved checkpoint opens");
        assert_eq!(again.progress(), checkpoint.progress());
        assert_eq!(again.variables().len(), checkpoint.variables().len());
    }
});
