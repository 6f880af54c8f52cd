//! A comparison in one sentence.

use super::Comparison;
use super::group::Group;
use crate::evaluation::results::{Measured, Way};
use crate::settings::Method;

impl Comparison {
    /// What the first variational network gains in one deterministic pass over the baseline, which
    /// predicts with noise off as a plain network does. `None` if one of the two is missing.
    pub fn in_short(&self) -> Option<String> {
        let variational = |group: &&Group| group.settings.method == Method::Vmf;
        let (group, baseline) =
            (self.groups.iter().find(variational)?, &self.groups[self.baseline]);
        if baseline.settings.method == Method::Vmf {
            return None;
        }
        let pair = |number: fn(&Measured) -> f64| {
            let own = group.spread(Way::Expected, number)?.mean;
            Some((own, baseline.spread(Way::Mean, number)?.mean))
        };
        let accuracy = pair(|measured| measured.all.accuracy)?;
        let nll = pair(|measured| measured.all.nll)?;
        let ece = pair(|measured| measured.all.ece)?;
        Some(format!(
            "in one deterministic pass {} has accuracy {:.3} ({}: {:.3}), NLL {:.3} ({:.3}) and ECE {:.3} ({:.3}), {}",
            group.label,
            accuracy.0,
            baseline.label,
            accuracy.1,
            nll.0,
            nll.1,
            ece.0,
            ece.1,
            times(ece.1 / ece.0)
        ))
    }
}

/// How much lower or higher a number is than one that is `ratio` times as large.
fn times(ratio: f64) -> String {
    if ratio >= 1.0 {
        format!("{ratio:.1} times lower")
    } else {
        format!("{:.1} times higher", 1.0 / ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::times;

    #[test]
    fn ratios_read_as_words() {
        assert_eq!(times(5.62), "5.6 times lower");
        assert_eq!(times(0.5), "2.0 times higher");
    }
}
