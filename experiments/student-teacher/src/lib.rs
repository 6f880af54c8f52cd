//! Does a layer's learned noise scale reflect how hard its task is?
//!
//! The second experiment of *Precise Bayesian Neural Networks*. A linear teacher `y = w*.x + s z`
//! has a unit-norm direction, inputs `x ~ N(0, I)` and observation noise `z ~ N(0, 1)`. Its student
//! `y^ = g (BN(w.x) + sigma z)` is one von Mises-Fisher unit with an output gain, trained by Adam
//! on `NLL + beta / N * KL`. Three sweeps, of the observation noise s, the input dimension D and
//! the sample size N, show what sigma_eff becomes, and whether the `A = 1 / sqrt(1 + sigma^2)` that
//! follows from it is the cosine between student and teacher.
//!
//! # What the student must learn
//!
//! Write `b` for the activation normalized over the sample, so that `mean(b) = 0` and `mean(b^2) =
//! 1`, and `c = mean(b y)`. Averaged over the noise z, the objective per example is, up to
//! constants,
//!
//! ```text
//! L(g, sigma, w) = (g^2 (1 + sigma^2) - 2 g c(w)) / (2 s^2)  +  beta/N (D-1)/2 ln(1 + D/((D-1) sigma^2))
//! ```
//!
//! **Direction.** Only c depends on w. Whatever g and sigma are, the student maximizes the
//! correlation of its activation with the targets: its direction is that of *least squares*.
//! Neither the KL nor the noise regularizes it. For Gaussian inputs the cosine to the teacher is
//! therefore about `1 / sqrt(1 + (D-1) s^2 / (N-D-2))`.
//!
//! **Gain 1.** `dL/d(sigma^2) = 1/(2 s^2) - beta/N (D/2) / (sigma^2 (sigma^2 + D/(D-1))) = 0` gives
//!
//! ```text
//! sigma^2 (1 + sigma^2 (D-1)/D) = beta (D-1) s^2 / N
//! ```
//!
//! for all data. (The simpler form with `beta D s^2 / N` on the right makes sigma too large by up
//! to `1/(2(D-1))`.)
//!
//! **Learned gain.** `dL/dg = 0` gives `g = c / (1 + sigma^2) = c A^2`, and with it
//!
//! ```text
//! sigma^2 (1 + sigma^2 (D-1)/D) / (1 + sigma^2)^2 = beta (D-1) s^2 / (N c^2)
//! ```
//!
//! For large D this is `1 - A^2 = beta D s^2 / (N c^2)`. The left side stays below `(D-1)/D`: a
//! signal with `c^2 < beta D s^2 / N` is not worth its KL, and sigma grows without bound. Least
//! squares has `c^2 = 1 + s^2 min(D, N-1) / N` on average, which for beta = 1 makes `sigma^2 = D
//! s^2 / N` and `A = 1 / sqrt(1 + D s^2 / N)`. Compared with the cosine of least squares, this
//! explains the sweeps: with a learned gain, A *is* the cosine up to `N / (N - D)`; with gain 1
//! this holds only while sigma is small, because there `sigma^2 < D s^2 / N`.
//!
//! # Against the exact posterior
//!
//! The exact posterior of the direction is sampled ([`exact`]). Where it is tight, it is Gaussian
//! on the tangent space with precision `X^T X / s^2`, so that its variance per dimension is the
//! mean of the inverse eigenvalues, `s^2 / (N - D - 1)`. The precision of the variational optimum
//! is the mean of the eigenvalues, `N / s^2`, so its kappa is `N / (N - D - 1)` times too large.
//! That is the known price of a posterior with one parameter, here in closed form.
//!
//! # What is where
//!
//! | module | holds |
//! |---|---|
//! | [`settings`] | the settings of a run: points, sweeps, parts of a run |
//! | [`problem`] | the linear teacher, its data, least squares |
//! | [`student`], [`training`] | the student, the training loop |
//! | [`closed_form`] | the stationary points above |
//! | [`exact`], [`diagnostics`] | the exact posterior by geodesic slice sampling, and the convergence of its chains |
//! | [`mean_field`] | independent Gaussians on the same data |
//! | [`nonlinear`] | a teacher with two layers |
//! | [`tasks`], [`results`] | a run as a list of tasks, and their outcomes |
//! | [`trend`], [`claims`] | the test for a trend, the verdict on each claim and our own statements |
//! | [`figure`], [`run`], [`show`] | figures, the whole run, the contents of a checkpoint |

pub mod claims;
pub mod closed_form;
pub mod diagnostics;
pub mod exact;
pub mod figure;
pub mod mean_field;
pub mod nonlinear;
pub mod problem;
pub mod results;
pub mod run;
pub mod settings;
pub mod show;
pub mod student;
pub mod tasks;
pub mod training;
pub mod trend;
