//! Random numbers as a function of their purpose.
//!
//! The order of the images in an epoch, the crop of an image and the label noise of the synthetic
//! set are drawn from a counter-based generator, whose counter is made of purpose, epoch and index.
//! Hence a resumed run needs no saved generator, and neither threads nor the order of work can
//! change a result.

use vmf_candle::posterior::stream_of;
use vmf_kernels::noise::philox4x32_10;

/// The random numbers for one purpose in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    seed: u64,
    purpose: u32,
    epoch: u32,
}

impl Draws {
    /// The numbers for `purpose`, which must be unique among the uses of the seed.
    pub fn new(seed: u64, purpose: &str, epoch: u32) -> Self {
        let purpose = stream_of(purpose);
        Self { seed, purpose, epoch }
    }

    /// Four random words for `index`; `part` distinguishes several draws for the same index.
    pub fn words(&self, index: u32, part: u32) -> [u32; 4] {
        let counter = [index, self.purpose, self.epoch, part];
        philox4x32_10(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// A random permutation of `0..count`.
    pub fn permutation(&self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for place in (1..count).rev() {
            let other = below(self.words(place as u32, 0)[0], place as u32 + 1);
            order.swap(place, other as usize);
        }
        order
    }
}

/// Maps a random word to `0..limit`. The probabilities of the values differ by at most `2^-32`.
pub fn below(word: u32, limit: u32) -> u32 {
    ((u64::from(word) * u64::from(limit)) >> 32) as u32
}

/// Maps a random word to [0, 1).
pub fn unit(word: u32) -> f64 {
    f64::from(word) * 2f64.powi(-32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_holds_every_index_once_and_differs_between_epochs_and_seeds() {
        let order = |seed, epoch| Draws::new(seed, "test", epoch).permutation(1000);
        let mut sorted = order(1, 0);
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert!(Draws::new(0, "test", 0).permutation(0).is_empty());
    }

    #[test]
    fn every_position_is_equally_likely() {
        // 24 orders of four things, 24,000 draws: each about 1,000 times. Five standard deviations
        // are 155.
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..24_000 {
            let order = Draws::new(7, "test", epoch).permutation(4);
            *counts.entry(order).or_insert(0_i32) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|count| (count - 1000).abs() < 155));
    }
}
