//! Random numbers that are a function of what they are for.
//!
//! The order of the images in an epoch, the crop of one image, the label noise of a synthetic set:
//! each is drawn from a counter-based generator by seed, purpose, epoch and index. So nothing has
//! to be saved to continue a run, and neither threads nor the order of work can change a result.

use vmf_candle::posterior::stream_of;
use vmf_kernels::noise::philox4x32_10;

/// The random numbers of one purpose in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    seed: u64,
    purpose: u32,
    epoch: u32,
}

impl Draws {
    /// The numbers for `purpose`, a name that no other use of the seed has.
    pub fn new(seed: u64, purpose: &str, epoch: u32) -> Self {
        let purpose = stream_of(purpose);
        Self { seed, purpose, epoch }
    }

    /// Four random words that belong to `index`; `part` tells several draws for one index apart.
    pub fn words(&self, index: u32, part: u32) -> [u32; 4] {
        let counter = [index, self.purpose, self.epoch, part];
        philox4x32_10(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// A random order of `0..count`.
    pub fn permutation(&self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for place in (1..count).rev() {
            let other = below(self.words(place as u32, 0)[0], place as u32 + 1);
            order.swap(place, other as usize);
        }
        order
    }
}

/// A random word as a number in `0..limit`. Some values are likelier than others, by less than
/// `limit / 2^32`.
pub fn below(word: u32, limit: u32) -> u32 {
    ((u64::from(word) * u64::from(limit)) >> 32) as u32
}

/// A random word as a number in [0, 1).
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
