//! Training: the objective, the losses it is made of, the optimizer and its schedules.

mod adam;
mod auto_beta;
mod backward;
mod elbo;
#[cfg(feature = "cuda")]
mod elbo_cuda;
mod flat;
mod loss;
#[cfg(feature = "cuda")]
mod loss_cuda;
mod memory;
mod schedule;

pub use adam::{Adam, AdamConfig, Moments};
pub use auto_beta::{AutoBeta, Signal};
pub use backward::backward;
pub(crate) use backward::deliver;
#[cfg(feature = "cuda")]
pub(crate) use backward::take_delivered;
pub use elbo::{Elbo, Loss};
pub(crate) use loss::{are_probabilities, log_softmax};
pub use loss::{
    cross_entropy, cross_entropy_counted, cross_entropy_smoothed, gaussian_nll,
    gaussian_nll_learned,
};
pub use memory::keep_freed_memory;
pub use schedule::Schedule;
