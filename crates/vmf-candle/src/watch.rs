//! Finds the first layer whose output is not finite.
//!
//! Looking at every output of every layer would cost a pass over memory each. So layers are watched
//! only when it is known already that the result of a pass is not finite, and the pass is run once
//! more to find out where that began.

use crate::finite::is_finite;
use candle_core::{Result, Tensor};
use std::cell::RefCell;

/// What a watched pass has shown.
#[derive(Default)]
enum Watch {
    /// Nobody is watching.
    #[default]
    Off,
    /// All outputs so far were finite, and this is the last layer.
    Finite(Option<String>),
    /// The first layer whose output was not.
    Found(String),
}

thread_local! {
    /// Layers run on the thread that calls the model.
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch::Off) };
}

/// Hands the output of a layer to whoever watches.
pub(crate) fn observe(layer: &str, output: &Tensor) -> Result<()> {
    let is_on = WATCH.with_borrow(|watch| matches!(watch, Watch::Finite(_)));
    if is_on {
        let next = match is_finite(output)? {
            true => Watch::Finite(Some(layer.into())),
            false => Watch::Found(layer.into()),
        };
        WATCH.set(next);
    }
    Ok(())
}

/// Runs a pass whose result is not finite once more, and says where that begins.
pub(crate) fn first_non_finite(pass: impl FnOnce() -> Result<Tensor>) -> String {
    WATCH.set(Watch::Finite(None));
    // An error of the pass is not what is being looked for.
    let _ = pass();
    match WATCH.take() {
        Watch::Found(layer) => format!("the first layer concerned is {layer:?}"),
        Watch::Finite(Some(layer)) => {
            format!("they are finite up to {layer:?}, the last variational layer")
        }
        _ => "no variational layer is concerned".into(),
    }
}
