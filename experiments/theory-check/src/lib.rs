//! Checks every theoretical claim of *Precise Bayesian Neural Networks* against Monte Carlo,
//! quadrature and the exact formulas of [`vmf_core`].
//!
//! | module | holds |
//! |---|---|
//! | [`monte_carlo`] | what drawn directions and inputs say, with error bars |
//! | [`quadrature`] | the exact divergence without Bessel functions |
//! | [`curves`] | both over a range of concentrations, with the formulas |
//! | [`claims`] | the verdict on each claim, and our own statements |
//! | [`figure`] | the paper's figure |
//! | [`run`] | the whole check, written to a folder |
//! | [`draws`] | whether a weight draw is the additive noise that stands for it |
//! | [`eval`] | the formulas as a filter on `dim,kappa` lines |

pub mod claims;
pub mod curves;
pub mod draws;
pub mod eval;
pub mod figure;
pub mod monte_carlo;
pub mod quadrature;
pub mod run;
