//! Sums that do not depend on the number of threads.
//!
//! A tensor is cut into tasks by its shape alone. Each task sums in the working precision over runs
//! that are short enough for it, and passes its result on in double precision. The results are
//! merged in the order of the tasks, whichever threads computed them.

use crate::element::Real;
use crate::simd::Simd;

/// What is gathered for each channel, part by part.
pub(super) trait Accumulator: Copy + Default + Send {
    /// Adds what another part of the channel has gathered.
    fn merge(&mut self, other: Self);
}

/// What a task has gathered, for the channels from `first_channel` on.
pub(super) struct Part<A> {
    pub(super) first_channel: usize,
    pub(super) channels: Vec<A>,
}

/// Merges the parts of all channels in the order of the tasks.
pub(super) fn merge_in_order<A: Accumulator>(channels: usize, parts: Vec<Part<A>>) -> Vec<A> {
    let mut totals = vec![A::default(); channels];
    for part in parts {
        for (total, value) in totals[part.first_channel..].iter_mut().zip(part.channels) {
            total.merge(value);
        }
    }
    totals
}

/// Count, mean and sum of squared deviations from that mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Welford {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) squares: f64,
}

impl Welford {
    /// From sums about a pivot p: of `u - p` and of its square, over `count` elements.
    ///
    /// ```text
    /// mean = p + sum(u - p) / n,    squares = sum (u - p)^2 - (sum(u - p))^2 / n
    /// ```
    /// The subtraction cancels only as far as p misses the mean, so p is the mean of the same
    /// elements, rounded.
    #[inline(always)]
    pub(super) fn about(pivot: f64, count: usize, sum: f64, sum_of_squares: f64) -> Self {
        let count = count as f64;
        let offset = sum / count;
        Self { count, mean: pivot + offset, squares: (sum_of_squares - sum * offset).max(0.0) }
    }
}

impl Accumulator for Welford {
    /// Chan, Golub and LeVeque (1979), with d the difference of the means:
    /// ```text
    /// mean <- mean_a + d n_b / n,    squares <- squares_a + squares_b + d^2 n_a n_b / n
    /// ```
    #[inline(always)]
    fn merge(&mut self, other: Self) {
        let count = self.count + other.count;
        if count > 0.0 {
            let difference = other.mean - self.mean;
            let share = other.count / count;
            self.mean += difference * share;
            self.squares += other.squares + difference * difference * self.count * share;
            self.count = count;
        }
    }
}

/// The three sums of the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// Sum of g.
    pub(super) g: f64,
    /// Sum of g * xhat.
    pub(super) g_xhat: f64,
    /// Sum of g * z.
    pub(super) g_z: f64,
}

impl Accumulator for Sums {
    #[inline(always)]
    fn merge(&mut self, other: Self) {
        self.g += other.g;
        self.g_xhat += other.g_xhat;
        self.g_z += other.g_z;
    }
}

/// Partial sums of one run: as many as the widest vector register has lanes, so that one source
/// serves every instruction set.
pub(super) const PARTIAL_SUMS: usize = 16;

/// A sum that a vector unit keeps in several parts, element i in part i modulo [`PARTIAL_SUMS`].
#[derive(Clone, Copy)]
pub(super) struct PartialSums<R>([R; PARTIAL_SUMS]);

impl<R: Real> PartialSums<R> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([R::ZERO; PARTIAL_SUMS])
    }

    /// Adds `a` to one part.
    #[inline(always)]
    pub(super) fn add(&mut self, part: usize, a: R) {
        self.0[part] += a;
    }

    /// Adds `a * b` to one part.
    #[inline(always)]
    pub(super) fn add_product<S: Simd>(&mut self, part: usize, a: R, b: R) {
        self.0[part] = a.mul_add::<S>(b, self.0[part]);
    }

    /// The sum of the parts, pairwise.
    #[inline(always)]
    pub(super) fn total(mut self) -> f64 {
        let mut width = PARTIAL_SUMS / 2;
        while width > 0 {
            for part in 0..width {
                self.0[part] += self.0[part + width];
            }
            width /= 2;
        }
        self.0[0].to_f64()
    }
}
