//! A test for growth along a sweep.

use crate::diagnostics::mean_and_variance;

/// The trend of groups of measurements, which are ordered by the variable of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Whether the mean grows at each step.
    pub monotone: bool,
    /// The Jonckheere-Terpstra statistic, in standard deviations: how far the number of pairs that
    /// are in order lies above half of them.
    pub z: f64,
    /// The largest possible `z` with this number of measurements.
    pub z_largest: f64,
}

/// Beyond this, the probability of such an order by chance is below one in a hundred.
const SIGNIFICANT: f64 = 2.33;

impl Trend {
    /// The trend of these groups.
    ///
    /// The statistic counts the pairs of measurements from different groups of which the later is
    /// the larger (a tie is a half): `J = sum over i < j of #(x in i, y in j: x < y)`, with
    /// mean `(n^2 - sum n_i^2) / 4` and variance `(n^2 (2n+3) - sum n_i^2 (2 n_i + 3)) / 72` if
    /// there is no trend (Jonckheere 1954).
    pub fn of(groups: &[Vec<f64>]) -> Self {
        let means: Vec<f64> = groups.iter().map(|g| mean_and_variance(g).0).collect();
        let (mut in_order, mut pairs) = (0.0, 0.0);
        for (j, later) in groups.iter().enumerate() {
            for earlier in &groups[..j] {
                pairs += (earlier.len() * later.len()) as f64;
                for x in earlier {
                    for y in later {
                        in_order += if x < y {
                            1.0
                        } else if x == y {
                            0.5
                        } else {
                            0.0
                        };
                    }
                }
            }
        }
        let term = |n: f64| n * n * (2.0 * n + 3.0);
        let all: f64 = groups.iter().map(|g| g.len() as f64).sum();
        let within: f64 = groups.iter().map(|g| term(g.len() as f64)).sum();
        let deviation = ((term(all) - within) / 72.0).sqrt();
        Self {
            monotone: means.windows(2).all(|pair| pair[0] < pair[1]),
            z: (in_order - 0.5 * pairs) / deviation,
            z_largest: 0.5 * pairs / deviation,
        }
    }

    /// Whether the means grow and the order is significant. With so few measurements that even a
    /// perfect order would not be significant, the means alone decide.
    pub fn holds(&self) -> bool {
        self.monotone && (self.z > SIGNIFICANT || self.z_largest <= SIGNIFICANT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_found_and_disorder_is_not() {
        let groups = |rows: &[[f64; 3]]| rows.iter().map(|r| r.to_vec()).collect::<Vec<_>>();
        let growing = Trend::of(&groups(&[[1.0, 1.1, 0.9], [2.0, 2.2, 1.8], [3.0, 2.9, 3.3]]));
        assert!(growing.holds() && growing.z == growing.z_largest);
        let falling = Trend::of(&groups(&[[3.0, 2.9, 3.3], [2.0, 2.2, 1.8], [1.0, 1.1, 0.9]]));
        assert!(!falling.holds() && falling.z == -falling.z_largest);
        // The means grow, but not significantly.
        let noise = Trend::of(&groups(&[[1.0, 5.0, 2.0], [2.0, 4.0, 2.1], [1.5, 4.5, 2.2]]));
        assert!(noise.monotone && !noise.holds(), "{noise:?}");
    }

    /// Counted by hand: 8, 9 and 8 pairs in order; mean (81 - 27) / 4, variance (81 * 21 - 3 * 9 *
    /// 9) / 72.
    #[test]
    fn the_statistic_is_the_textbook_one() {
        let trend = Trend::of(&[vec![1.0, 3.0, 2.0], vec![4.0, 2.5, 5.0], vec![6.0, 4.5, 7.0]]);
        assert!((trend.z - (25.0 - 13.5) / 20.25f64.sqrt()).abs() < 1e-12);
    }
}
