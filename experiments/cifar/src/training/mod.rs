//! Training: one step, the end of an epoch, and the checkpoint that holds all of it.
//!
//! The loop that a person watches is in [`commands::train`](crate::commands::train).

mod estimate;
mod trainer;

pub use estimate::{images_per_second, seconds as estimated_seconds, seconds_at};
pub use trainer::{Sums, Trainer};
