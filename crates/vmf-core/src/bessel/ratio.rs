//! The ratio of neighbouring orders, `A = I_(nu+1)(x) / I_nu(x)`.

/// `A = I_(nu+1)(x) / I_nu(x)` with its complement and its derivative, none of them by subtraction.
///
/// Perron's continued fraction, with `v = nu + 1`:
///
/// ```text
/// A = x / (2v + x - t_1),    t_k = a_k x / (b_k + 2x - t_(k+1)),    a_k = 2v + 2k - 1,   b_k = 2v + k
/// ```
///
/// `t_1` rises from 0 to `v + 1/2`, so `2v - t_1` never vanishes and
///
/// ```text
/// 1 - A = (2v - t_1) / (2v + x - t_1),
/// A'    = (2v - t_1 + x t_1') / (2v + x - t_1)^2,    t_k' = a_k (b_k - t_(k+1) + x t_(k+1)') / (b_k + 2x - t_(k+1))^2
/// ```
///
/// are quotients of positive numbers that keep their digits where `1 - A` and
/// `1 - A^2 - (2v - 1) A / x` would lose them (six digits at `D = 10^6`). The fraction is evaluated
/// from the back with a fixed number of terms: the cost depends on neither the order nor the
/// argument, and the result is one analytic function of `x`.
///
/// # Source
/// W. Gautschi and J. Slavik, *On the computation of modified Bessel function ratios*, Math. Comp.
/// 32 (1978).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// `A`, in `[0, 1]`.
    pub a: f64,
    /// `1 - A`.
    pub one_minus_a: f64,
    /// `A'(x)`.
    pub derivative: f64,
}

impl Ratio {
    /// Evaluates the ratio at order `nu >= 0` and argument `x >= 0`; NaN outside.
    ///
    /// ```
    /// use vmf_core::bessel::Ratio;
    /// // nu = 1/2 is the ordinary sphere: A = coth x - 1/x
    /// let x: f64 = 2.0;
    /// let r = Ratio::new(0.5, x);
    /// assert!((r.a - (1.0 / x.tanh() - 1.0 / x)).abs() < 1e-15);
    /// ```
    pub fn new(nu: f64, x: f64) -> Self {
        if nu.is_nan() || x.is_nan() || nu < 0.0 || x < 0.0 {
            return Self { a: f64::NAN, one_minus_a: f64::NAN, derivative: f64::NAN };
        }
        if x > FAR {
            // A = 1 - (v - 1/2) / x to working precision
            let one_minus_a = (nu + 0.5) / x;
            return Self { a: 1.0, one_minus_a, derivative: one_minus_a / x };
        }
        let twice_v = 2.0 * nu + 2.0;
        let (t, slope) = tail::<true>(twice_v, x);
        let inverse = 1.0 / (twice_v + x - t);
        Self {
            a: x * inverse,
            one_minus_a: (twice_v - t) * inverse,
            derivative: ((twice_v - t + x * slope) * inverse) * inverse,
        }
    }

    /// `1 - A^2 = (1 - A)(1 + A)`.
    pub fn one_minus_a2(&self) -> f64 {
        self.one_minus_a * (1.0 + self.a)
    }
}

/// `A` alone. It costs half as much as [`Ratio::new`], which also gives `1 - A` and `A'`.
pub fn ratio(nu: f64, x: f64) -> f64 {
    if !(nu >= 0.0 && (0.0..=FAR).contains(&x)) {
        return Ratio::new(nu, x).a;
    }
    let twice_v = 2.0 * nu + 2.0;
    let (t, _) = tail::<false>(twice_v, x);
    x / (twice_v + x - t)
}

/// Beyond this argument two terms of the expansion in `1/x` are exact, for any order below 10^100,
/// and products with `x` could overflow.
const FAR: f64 = 1e200;

/// `t_1` and, if asked for, `t_1'`.
#[inline(always)]
fn tail<const SLOPE: bool>(twice_v: f64, x: f64) -> (f64, f64) {
    // Terms that reach rounding error at every argument, found by comparison with 60-digit
    // arithmetic.
    let terms = if twice_v < 32.0 { 48 } else { 26 };
    // The far end behaves like the fixed point of its own recurrence; starting there saves terms.
    let (a_k, b_k) = coefficients(twice_v, terms + 1);
    let half = 0.5 * (b_k + 2.0 * x);
    let mut t = a_k * x / (half + (half - a_k * x / half).sqrt() * half.sqrt());
    let mut slope = 0.0;
    for k in (1..=terms).rev() {
        let (a_k, b_k) = coefficients(twice_v, k);
        let denominator = b_k + 2.0 * x - t;
        if SLOPE {
            slope = a_k / denominator * ((b_k - t + x * slope) / denominator);
        }
        // a_k x does not wait for t: one subtraction and one division per term are in sequence.
        t = a_k * x / denominator;
    }
    (t, slope)
}

#[inline(always)]
fn coefficients(twice_v: f64, k: u32) -> (f64, f64) {
    let k = f64::from(k);
    (twice_v + 2.0 * k - 1.0, twice_v + k)
}
