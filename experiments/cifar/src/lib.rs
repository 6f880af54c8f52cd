//! VGG networks of variational units on CIFAR-10.

pub mod bench;
pub mod compare;
pub mod data;
pub mod device;
pub mod eval;
pub mod evaluate;
pub mod export;
pub mod fetch;
pub mod interrupt;
pub mod landscape;
pub mod machine;
pub mod model;
pub mod newcomer;
pub mod predict;
pub mod report;
pub mod run;
pub mod settings;
mod stock;
pub mod train;
pub mod trained;
