//! Pictures from anywhere are decoded to the shape of the network, or refused with an error.
#![no_main]

use cifar::data::{Interface, Normalization, Shape, Source};
use cifar::prediction::picture::Frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = fuzz::file(bytes);
    for (channels, source) in [(3, Source::Cifar10), (1, Source::FashionMnist)] {
        let interface = Interface {
            shape: Shape { channels, size: 32 },
            classes: vec!["one".into(), "two".into()],
            normalization: Normalization {
                mean: vec![0.5; channels],
                deviation: vec![0.25; channels],
            },
        };
        let frame = Frame::new(&interface, source).expect("a valid frame");
        if let Ok(picture) = frame.read(path) {
            assert_eq!(picture.pixels.len(), channels * 32 * 32);
        }
    }
});
