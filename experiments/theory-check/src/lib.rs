//! Checks every theoretical claim of *Precise Bayesian Neural Networks* against Monte Carlo,
//! quadrature and the exact formulas of [`vmf_core`].
//!
//! | module | holds |
//! |---|---|
//! | [`monte_carlo`] | estimates from drawn directions and inputs, with error bars |
//! | [`quadrature`] | the exact KL without Bessel functions |
//! | [`curves`] | both over a range of concentrations, with the formulas |
//! | [`claims`] | the verdict on each claim, and our own statements |
//! | [`figure`] | the paper's figure |
//! | [`run`] | the whole check, written to a folder |
//! | [`draws`] | whether a weight draw acts like the additive noise that replaces it |
//! | [`expected`] | whether one deterministic pass computes what many noisy ones do on average |
//! | [`eval`] | the formulas as a filter on `dim,kappa` lines |

pub mod claims;
pub mod curves;
pub mod draws;
pub mod eval;
pub mod expected;
pub mod figure;
pub mod monte_carlo;
pub mod quadrature;
pub mod run;
