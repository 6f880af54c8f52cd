//! What the posterior has learned, for people to read: one line per layer, and a warning that names
//! collapsed layers.

use crate::error::{Error, Result, check_shape};
use crate::warning::warn;
use std::fmt;
use vmf_core::Sphere;

/// When a layer counts as collapsed. The defaults say when to look, not when a network is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Below this expected cosine a layer has collapsed to the prior: the KL has raised the noise
    /// until it drowns the signal. 0.2 is sigma_eff = 4.9, where 4 % of the variance is signal.
    pub prior_cosine: f64,
    /// Below this sigma_eff a layer has collapsed to a point: it is deterministic, and has no
    /// uncertainty left.
    pub point_sigma: f64,
}

impl Thresholds {
    pub(super) fn at_prior(&self, sigma: f64) -> bool {
        vmf_core::expected_cosine(sigma) < self.prior_cosine
    }

    pub(super) fn at_point(&self, sigma: f64) -> bool {
        sigma < self.point_sigma && !self.at_prior(sigma)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { prior_cosine: 0.2, point_sigma: 1e-3 }
    }
}

/// What one layer has learned.
///
/// A layer with sigma groups has one sigma_eff per group; `kappa` and `expected_cosine` belong to
/// their geometric mean.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerSummary {
    /// The path of the layer.
    pub name: String,
    /// D, the inputs of one unit.
    pub dim: usize,
    /// M, the number of units.
    pub units: usize,
    /// sigma_eff of each group.
    pub sigmas: Vec<f64>,
    /// Whether other layers use the same parameter.
    pub shared: bool,
    /// Whether sigma_eff is kept at its initial value.
    pub frozen: bool,
    /// The concentration of the von Mises-Fisher posterior over each direction.
    pub kappa: f64,
    /// The expected cosine between a draw from the posterior and its mean direction, `1 / sqrt(1 +
    /// sigma_eff^2)`.
    pub expected_cosine: f64,
    /// The KL from the uniform prior in nats, over all units.
    pub kl: f64,
}

/// What a layer's summary is made of.
pub(crate) struct Learned {
    pub(crate) name: String,
    pub(crate) dim: usize,
    pub(crate) units: usize,
    pub(crate) sigmas: Vec<f64>,
    pub(crate) shared: bool,
    pub(crate) frozen: bool,
}

impl LayerSummary {
    pub(crate) fn new(learned: Learned) -> Result<Self> {
        let Learned { name, dim, units, sigmas, shared, frozen } = learned;
        let (what, groups) = (format!("layer {name:?}"), sigmas.len());
        let sphere = Sphere::new(dim).map_err(|error| Error::shape(&what, error.to_string()))?;
        check_shape(groups > 0 && units.is_multiple_of(groups), what, || {
            format!("{units} units in {groups} groups of sigma_eff")
        })?;
        let units_per_group = (units / groups) as f64;
        let kl_per_unit: f64 = sigmas.iter().map(|&sigma| sphere.kl_approx(sigma)).sum();
        let sigma = geometric_mean(&sigmas);
        Ok(Self {
            name,
            dim,
            units,
            shared,
            frozen,
            kappa: sphere.kappa_from_sigma_eff(sigma),
            expected_cosine: vmf_core::expected_cosine(sigma),
            kl: kl_per_unit * units_per_group,
            sigmas,
        })
    }

    /// sigma_eff of the layer: its one value, or the geometric mean over its groups.
    pub fn sigma_eff(&self) -> f64 {
        geometric_mean(&self.sigmas)
    }

    /// The share of the layer's units whose sigma_eff satisfies a condition.
    fn share(&self, condition: impl Fn(f64) -> bool) -> f64 {
        let satisfy = self.sigmas.iter().filter(|&&sigma| condition(sigma)).count();
        satisfy as f64 / self.sigmas.len() as f64
    }
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// All layers of a posterior. Prints as a table; iterate for the layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    layers: Vec<LayerSummary>,
}

impl Summary {
    pub(crate) fn new(layers: Vec<LayerSummary>) -> Self {
        Self { layers }
    }

    /// The layers, in the order of registration.
    pub fn layers(&self) -> &[LayerSummary] {
        &self.layers
    }

    /// Iterates over the layers.
    pub fn iter(&self) -> std::slice::Iter<'_, LayerSummary> {
        self.layers.iter()
    }

    /// The KL of all layers, in nats.
    pub fn kl(&self) -> f64 {
        self.layers.iter().map(|layer| layer.kl).sum()
    }

    /// Which layers have collapsed.
    pub fn collapse(&self, thresholds: &Thresholds) -> Collapse {
        let collapsed = |condition: &dyn Fn(f64) -> bool| {
            let (mut names, mut layers) = (Vec::new(), 0.0);
            for layer in &self.layers {
                let share = layer.share(condition);
                layers += share;
                if share > 0.0 {
                    names.push(layer.name.clone());
                }
            }
            (names, layers)
        };
        let (to_prior, at_prior) = collapsed(&|sigma| thresholds.at_prior(sigma));
        let (to_point, at_point) = collapsed(&|sigma| thresholds.at_point(sigma));
        let effective_layers = at_prior + at_point;
        Collapse { to_prior, to_point, effective_layers, layers: self.layers.len() }
    }

    /// Logs a warning that names the collapsed layers, if there are any, and returns it.
    ///
    /// Each layer is judged by itself. Several layers of moderate noise in a row can drown the
    /// signal too, so the absence of a warning does not show that beta is small enough: compare the
    /// accuracy of Monte Carlo with that of the noise-free pass.
    pub fn warn_if_collapsed(&self, thresholds: &Thresholds) -> Option<Collapse> {
        let collapse = self.collapse(thresholds);
        if collapse.is_none() {
            return None;
        }
        warn(&collapse);
        Some(collapse)
    }
}

impl<'a> IntoIterator for &'a Summary {
    type Item = &'a LayerSummary;
    type IntoIter = std::slice::Iter<'a, LayerSummary>;

    fn into_iter(self) -> Self::IntoIter {
        self.layers.iter()
    }
}

impl IntoIterator for Summary {
    type Item = LayerSummary;
    type IntoIter = std::vec::IntoIter<LayerSummary>;

    fn into_iter(self) -> Self::IntoIter {
        self.layers.into_iter()
    }
}

/// The layers whose posterior has collapsed. Prints as a warning.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Collapse {
    /// Layers with units that the KL has pushed to the prior.
    pub to_prior: Vec<String>,
    /// Layers with units that have become deterministic.
    pub to_point: Vec<String>,
    /// How many layers have collapsed. Each counts with the share of its units that have.
    pub effective_layers: f64,
    /// How many layers there are.
    pub layers: usize,
}

impl Collapse {
    /// Whether no layer has collapsed.
    pub fn is_none(&self) -> bool {
        self.to_prior.is_empty() && self.to_point.is_empty()
    }
}

impl fmt::Display for Collapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return write!(f, "no layer has collapsed");
        }
        write!(
            f,
            "the posterior has collapsed in {:.1} of {} layers",
            self.effective_layers, self.layers
        )?;
        if !self.to_prior.is_empty() {
            write!(
                f,
                "; to the prior, where noise drowns the signal: {} (a smaller beta or a longer KL warm-up keeps them informative)",
                self.to_prior.join(", ")
            )?;
        }
        if !self.to_point.is_empty() {
            write!(
                f,
                "; to a point, where no uncertainty is left: {} (a larger beta keeps them uncertain)",
                self.to_point.join(", ")
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for LayerSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: D {}, M {}, sigma_eff {}, kappa {}, expected cosine {:.3}, KL {}",
            self.name,
            self.dim,
            self.units,
            self.sigma_text(),
            number(self.kappa),
            self.expected_cosine,
            number(self.kl)
        )
    }
}

impl LayerSummary {
    /// One value, or the range over the groups.
    fn sigma_text(&self) -> String {
        let low = self.sigmas.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.sigmas.iter().copied().fold(0.0, f64::max);
        if self.sigmas.len() == 1 {
            number(low)
        } else {
            format!("{}..{}", number(low), number(high))
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["layer", "D", "M", "sigma_eff", "kappa", "cosine", "KL (nats)", ""];
        let rows: Vec<[String; 8]> = self
            .layers
            .iter()
            .map(|layer| {
                let note = match (layer.shared, layer.frozen) {
                    (false, false) => "",
                    (true, false) => "shared",
                    (false, true) => "frozen",
                    (true, true) => "shared, frozen",
                };
                [
                    layer.name.clone(),
                    layer.dim.to_string(),
                    layer.units.to_string(),
                    layer.sigma_text(),
                    number(layer.kappa),
                    format!("{:.3}", layer.expected_cosine),
                    number(layer.kl),
                    note.to_string(),
                ]
            })
            .collect();
        let widths: Vec<usize> = (0..header.len())
            .map(|column| {
                rows.iter()
                    .map(|row| row[column].len())
                    .chain([header[column].len()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let line = |cells: &[&str]| {
            let mut text = format!("{:<width$}", cells[0], width = widths[0]);
            for (cell, width) in cells.iter().zip(&widths).skip(1) {
                text += &format!("  {cell:>width$}");
            }
            text.trim_end().to_string()
        };
        writeln!(f, "{}", line(&header))?;
        for row in &rows {
            writeln!(f, "{}", line(&row.each_ref().map(String::as_str)))?;
        }
        write!(f, "total KL: {} nats", number(self.kl()))
    }
}

/// A number with four significant digits, in scientific notation if it is very large or small.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".into()
    } else if (1e-3..1e6).contains(&magnitude) {
        let digits = (3 - magnitude.log10().floor() as i32).max(0) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(name: &str, sigmas: &[f64]) -> LayerSummary {
        LayerSummary {
            name: name.into(),
            dim: 27,
            units: 64,
            sigmas: sigmas.to_vec(),
            shared: false,
            frozen: false,
            kappa: 12.345,
            expected_cosine: 0.5,
            kl: 1234.5,
        }
    }

    #[test]
    fn collapse_names_the_layers_and_counts_shares() {
        let summary = Summary::new(vec![
            layer("first", &[0.3]),
            layer("second", &[9.0, 0.5]),
            layer("third", &[1e-5]),
        ]);
        let collapse = summary.collapse(&Thresholds::default());
        assert_eq!(collapse.to_prior, ["second"]);
        assert_eq!(collapse.to_point, ["third"]);
        assert_eq!(collapse.effective_layers, 1.5);
        let text = collapse.to_string();
        assert!(text.contains("1.5 of 3") && text.contains("second") && text.contains("third"));
        assert!(!text.contains("first"));
    }

    #[test]
    fn prints_a_table() {
        let summary = Summary::new(vec![layer("a", &[0.25]), layer("features.10", &[0.5, 2.0])]);
        let expected = "\
layer         D   M     sigma_eff  kappa  cosine  KL (nats)
a            27  64        0.2500  12.35   0.500       1234
features.10  27  64  0.5000..2.000  12.35   0.500       1234
total KL: 2469 nats";
        let printed = summary.to_string();
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeeze(&printed), squeeze(expected));
        let columns: Vec<usize> = printed.lines().take(3).map(str::len).collect();
        assert!(columns.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
