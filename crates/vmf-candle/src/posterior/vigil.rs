//! Says during training when a layer collapses.

use super::{Collapse, Thresholds};
use crate::warning::warn;
use std::collections::BTreeSet;

/// Steps between two looks. A layer takes hundreds of steps to collapse.
const INTERVAL: u64 = 50;

/// Which layers have been reported.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    calls: u64,
    to_prior: BTreeSet<String>,
    to_point: BTreeSet<String>,
}

impl Vigil {
    /// Counts a call, and says whether it is time to look.
    pub(super) fn is_due(&mut self) -> bool {
        self.calls += 1;
        self.calls % INTERVAL == 1
    }

    /// Warns of layers that have not been reported before. A layer that recovers may be reported
    /// again.
    pub(super) fn look(&mut self, layers: &[(String, Vec<f64>)]) {
        let thresholds = Thresholds::default();
        let names = |condition: &dyn Fn(f64) -> bool| -> BTreeSet<String> {
            let collapsed =
                layers.iter().filter(|(_, sigmas)| sigmas.iter().all(|s| condition(*s)));
            collapsed.map(|(name, _)| name.clone()).collect()
        };
        let to_prior = names(&|sigma| thresholds.at_prior(sigma));
        let to_point = names(&|sigma| thresholds.at_point(sigma));
        let is_new = !to_prior.is_subset(&self.to_prior) || !to_point.is_subset(&self.to_point);
        (self.to_prior, self.to_point) = (to_prior, to_point);
        if is_new {
            let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>();
            warn(Collapse {
                effective_layers: (self.to_prior.len() + self.to_point.len()) as f64,
                to_prior: names(&self.to_prior),
                to_point: names(&self.to_point),
                layers: layers.len(),
            });
        }
    }
}
