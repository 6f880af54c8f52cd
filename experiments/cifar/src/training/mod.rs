//! Training: one step, the end of an epoch, and the checkpoint that holds all of it.
//!
//! The loop that a person watches is in [`commands::train`](crate::commands::train).

mod estimate;
mod trainer;

pub use estimate::seconds as estimated_seconds;
pub use trainer::{Sums, Trainer};
