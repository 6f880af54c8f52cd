//! How beta and learning rates change during training.

use std::f64::consts::PI;

/// A number as a function of time. Time may be counted in epochs or in steps, and need not be
/// whole.
///
/// ```
/// use vmf_candle::prelude::*;
/// let beta = Schedule::warmup(0.1, 20.0);
/// assert_eq!((beta.at(0.0), beta.at(10.0), beta.at(100.0)), (0.0, 0.05, 0.1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The same value at all times.
    Constant {
        /// The value.
        value: f64,
    },
    /// Linear from `from` to `to`, then constant.
    Linear {
        /// The value at time 0.
        from: f64,
        /// The value from time `over` on.
        to: f64,
        /// How long it takes.
        over: f64,
    },
    /// From `from` to `to` along half a cosine, level at both ends, then constant.
    Cosine {
        /// The value at time 0.
        from: f64,
        /// The value from time `over` on.
        to: f64,
        /// How long it takes.
        over: f64,
    },
    /// Cycles (Fu et al. 2019), each a linear rise from 0 to `peak` followed by a constant.
    Cyclical {
        /// The value at the top.
        peak: f64,
        /// The length of one cycle.
        period: f64,
        /// The share of a cycle that the rise takes.
        rise: f64,
    },
}

impl Schedule {
    /// Always `value`.
    pub fn constant(value: f64) -> Self {
        Self::Constant { value }
    }

    /// Linear from 0 to `value`: the paper's KL warm-up.
    pub fn warmup(value: f64, over: f64) -> Self {
        Self::Linear { from: 0.0, to: value, over }
    }

    /// From `from` to `to` along half a cosine.
    pub fn cosine(from: f64, to: f64, over: f64) -> Self {
        Self::Cosine { from, to, over }
    }

    /// Cycles of length `period`, each rising from 0 to `peak` in its first half.
    pub fn cyclical(peak: f64, period: f64) -> Self {
        Self::Cyclical { peak, period, rise: 0.5 }
    }

    /// The value at `time`.
    pub fn at(&self, time: f64) -> f64 {
        // A schedule of no length is at its end from the start.
        let progress = |over: f64| {
            if over > 0.0 { (time / over).clamp(0.0, 1.0) } else { 1.0 }
        };
        match *self {
            Self::Constant { value } => value,
            Self::Linear { from, to, over } => from + (to - from) * progress(over),
            Self::Cosine { from, to, over } => {
                to + (from - to) * 0.5 * (1.0 + (PI * progress(over)).cos())
            }
            Self::Cyclical { peak, period, rise } => {
                let within = if period > 0.0 { time.rem_euclid(period) / period } else { 1.0 };
                let share = if rise > 0.0 { (within / rise).min(1.0) } else { 1.0 };
                peak * share
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_through_the_values_it_names() {
        assert_eq!(Schedule::constant(0.3).at(1e9), 0.3);
        let cosine = Schedule::cosine(1.0, 0.0, 10.0);
        for (time, value) in [(0.0, 1.0), (5.0, 0.5), (10.0, 0.0), (99.0, 0.0)] {
            assert!((cosine.at(time) - value).abs() < 1e-15);
        }
        let cycle = Schedule::cyclical(2.0, 8.0);
        for (time, value) in [(0.0, 0.0), (2.0, 1.0), (4.0, 2.0), (7.9, 2.0), (8.0, 0.0)] {
            assert_eq!(cycle.at(time), value);
        }
        assert_eq!(Schedule::warmup(0.1, 0.0).at(0.0), 0.1);
    }
}
