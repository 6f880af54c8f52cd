#![doc = include_str!("../README.md")]

pub mod case;
pub mod check;
pub mod expected;
pub mod host;
pub mod machine;
pub mod mutant;
pub mod noise;
pub mod ptx;
pub mod training;
