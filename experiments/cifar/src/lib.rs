//! VGG networks of variational units on CIFAR-10.
//!
//! [`commands`] holds what a person types: the arguments of each command, what it prints and how it
//! fails. Everything else is the library that does the work:
//!
//! | module | what it does |
//! |---|---|
//! | [`data`] | reads, fetches and generates data sets, and makes batches of them |
//! | [`model`] | the network |
//! | [`methods`] | the training methods that are compared |
//! | [`settings`] | the settings of a run, as flags and as `config.json` |
//! | [`run`], [`checkpoint`], [`lock`] | the folder of a run, its checkpoints, and who may write to it |
//! | [`training`] | one step, one epoch, one checkpoint |
//! | [`trained`] | a trained network, opened to be looked at |
//! | [`evaluation`] | how well a network predicts |
//! | [`comparison`] | several runs side by side |
//! | [`study`] | a list of trainings and evaluations from a file |
//! | [`report`] | one run as an HTML page |
//! | [`landscape`] | the loss around the trained weights of a layer |
//! | [`prediction`] | what is in a picture |
//! | [`export`] | a trained network as a folder for the Hugging Face hub |
//! | [`limits`] | bounds for files and numbers that come from outside |
//! | [`device`] | where to compute |
//! | [`interrupt`], [`terminal`] | when to stop, and how to print |

pub mod beta;
pub mod checkpoint;
pub mod commands;
pub mod comparison;
pub mod data;
pub mod device;
pub mod evaluation;
pub mod export;
pub mod interrupt;
pub mod landscape;
pub mod limits;
pub mod lock;
pub mod methods;
pub mod model;
pub mod prediction;
pub mod ranks;
pub mod report;
pub mod run;
pub mod settings;
pub mod study;
pub mod terminal;
pub mod trained;
pub mod training;
