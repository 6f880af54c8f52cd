//! Text: its markup, its escaping, and the font that figures are set in.

pub(crate) mod font;
mod rich;

pub use rich::RichText;
pub(crate) use rich::{Script, escape};
