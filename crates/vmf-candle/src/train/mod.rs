//! Training: the objective, the losses it is made of, the optimizer and its schedules.

mod adam;
mod auto_beta;
mod backward;
mod elbo;
mod flat;
mod loss;
mod memory;
mod schedule;

pub use adam::{Adam, AdamConfig, Moments};
pub use auto_beta::{AutoBeta, Signal};
pub use backward::backward;
pub(crate) use backward::deliver;
pub use elbo::{Elbo, Loss};
pub(crate) use loss::{are_probabilities, log_softmax};
pub use loss::{cross_entropy, cross_entropy_smoothed, gaussian_nll, gaussian_nll_learned};
pub use memory::keep_freed_memory;
pub use schedule::Schedule;
