//! The paper's claims about the student, each with what was measured, and the statements this
//! project makes instead.

use lab::{Checks, Claims, Verdict, significant};
use vmf_core::{Sphere, expected_cosine};

use crate::closed_form;
use crate::nonlinear;
use crate::results::{Estimate, Results};
use crate::settings::{Gain, Point, Variable};
use crate::student::Learned;
use crate::tasks::{Compared, EXACT};
use crate::trend::Trend;

/// The largest relative error of sigma_eff against the closed form.
const CLOSE: f64 = 0.05;

/// The largest difference between the cosine and A.
pub const BAND: f64 = 0.07;

/// A posterior below this sigma_eff is tight.
pub const TIGHT: f64 = 0.5;

/// With fewer examples per dimension, least squares fits the noise, and its direction is worse than
/// sigma_eff can tell.
pub const EXAMPLES_PER_DIM: usize = 3;

/// The largest distance of a mean over seeds from its expected value, in standard errors.
const Z_LIMIT: f64 = 5.0;

/// Judges every claim.
pub fn judge(results: &Results) -> (Claims, Checks) {
    let mut judge = Judge { results, claims: Claims::new(), checks: Checks::new() };
    judge.trends();
    judge.closed_forms();
    judge.directions();
    if results.settings.beyond {
        judge.exact_posterior();
        judge.nonlinear_teacher();
    }
    (judge.claims, judge.checks)
}

struct Judge<'a> {
    results: &'a Results,
    claims: Claims,
    checks: Checks,
}

impl Judge<'_> {
    fn gains(&self) -> Vec<Gain> {
        self.results.settings.gains.clone()
    }

    /// All points of the sweeps, without duplicates.
    fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for variable in Variable::ALL {
            for point in self.results.settings.sweep(variable) {
                if !points.contains(&point) {
                    points.push(point);
                }
            }
        }
        points
    }

    /// sigma_eff grows with noise and dimension, and falls with the sample size.
    fn trends(&mut self) {
        for variable in Variable::ALL {
            let points = self.results.settings.sweep(variable);
            let statement = trend_statement(variable, "σ_{eff}");
            if points.len() < 2 {
                continue;
            }
            let mut verdict = Verdict::Holds;
            let mut measured = Vec::new();
            for gain in self.gains() {
                let sigmas = |point: &Point| {
                    let students = self.results.linear(point, gain);
                    students.iter().map(|learned| learned.sigma).collect()
                };
                let (trend, text) = trend_of(variable, &points, sigmas);
                if !trend.holds() {
                    verdict = Verdict::DoesNotHold;
                }
                self.checks.add(format!("{statement} ({})", kind(gain)), &text, trend.holds());
                measured.push(format!("{}: {text}", kind(gain)));
            }
            let claim = match variable {
                Variable::Noise => "learned σ_{eff} increases with observation noise",
                Variable::Dim => "learned σ_{eff} grows with D at fixed N",
                Variable::Samples => "learned σ_{eff} decreases with more data",
            };
            self.claims.add(claim, measured.join("; "), variable.name(), verdict);
        }
    }

    /// sigma_eff is at the stationary point of the objective.
    fn closed_forms(&mut self) {
        for gain in self.gains() {
            let statement = match gain {
                Gain::Fixed => "gain 1: σ² (1 + σ² (D−1)/D) = β (D−1) s²/N, to 5 %",
                Gain::Learned => {
                    "learned gain: σ² (1 + σ² (D−1)/D) / (1+σ²)² = β (D−1) s²/(N c²), to 5 %"
                }
            };
            let error = |judge: &Self, point: &Point| {
                judge.mean(point, gain, |learned| {
                    learned.sigma / judge.results.predicted_sigma_of(point, gain, learned) - 1.0
                })
            };
            self.check_worst(statement, self.points(), CLOSE, error);
        }
        if self.gains().contains(&Gain::Fixed) {
            let wide = self.points().into_iter().filter(|p| p.dim >= 20).collect();
            let beta = self.results.settings.beta;
            self.check_worst(
                "gain 1: the simpler σ² (1 + σ² (D−1)/D) = β D s²/N, to 5 % from D = 20 on",
                wide,
                CLOSE,
                |judge, point| {
                    let predicted = closed_form::sigma_fixed_gain_large_dim(point, beta);
                    judge.mean(point, Gain::Fixed, |l| l.sigma / predicted - 1.0)
                },
            );
        }
    }

    /// The student's direction is that of least squares, and A tells how good it is.
    fn directions(&mut self) {
        let enough: Vec<Point> =
            self.points().into_iter().filter(|p| p.samples >= EXAMPLES_PER_DIM * p.dim).collect();
        for gain in self.gains() {
            self.check_worst(
                &format!(
                    "the direction is that of least squares, to a cosine of 0.99 ({})",
                    kind(gain)
                ),
                enough.clone(),
                0.01,
                |judge, point| judge.mean(point, gain, |l| 1.0 - l.stationary.unwrap_or(f64::NAN)),
            );
        }
        if let Some(gain) = self.gains().first().copied() {
            self.check_cosine(
                "the cosine to the teacher is 1/√(1 + (D−1) s²/(N−D−2)), to 0.02",
                &enough,
                0.02,
                |judge, point| {
                    let expected = closed_form::least_squares_cosine(point).unwrap_or(f64::NAN);
                    judge.mean(point, gain, |l| l.cosine - expected)
                },
            );
        }
        if self.gains().contains(&Gain::Learned) {
            self.check_cosine(
                &format!("learned gain: the cosine is within {BAND} of A wherever N ≥ {EXAMPLES_PER_DIM} D"),
                &enough,
                BAND,
                |judge, point| judge.mean(point, Gain::Learned, gap),
            );
        }
        if self.gains().contains(&Gain::Fixed) {
            let tight: Vec<Point> = enough
                .iter()
                .copied()
                .filter(|point| self.mean(point, Gain::Fixed, |l| l.sigma) <= TIGHT)
                .collect();
            self.check_cosine(
                &format!("gain 1: the cosine is within {BAND} of A where σ_{{eff}} ≤ {TIGHT}"),
                &tight,
                BAND,
                |judge, point| judge.mean(point, Gain::Fixed, gap),
            );
        }
        self.claim_alignment(&enough);
    }

    fn claim_alignment(&mut self, points: &[Point]) {
        let mut measured = Vec::new();
        let mut places = Vec::new();
        let mut within = Vec::new();
        for gain in self.gains() {
            let value = |judge: &Self, p: &Point| judge.mean(p, gain, gap);
            let Some((error, point)) = self.worst(points, value) else {
                return;
            };
            measured.push(format!("{}: cosine − A up to {}", kind(gain), significant(error, 2)));
            places.push(format!("{}: {point}", kind(gain)));
            let beyond = |p: &Point| value(self, p).abs() > BAND + self.allowance(p);
            within.push(!points.iter().any(beyond));
        }
        self.claims.add(
            "direction recovery aligns with A_{D}(κ_{eff}) inferred from σ_{eff}",
            format!("{} (N ≥ {EXAMPLES_PER_DIM} D)", measured.join("; ")),
            places.join("; "),
            match (within.iter().all(|w| *w), within.iter().any(|w| *w)) {
                (true, _) => Verdict::Holds,
                (false, true) => Verdict::HoldsWithCorrection,
                (false, false) => Verdict::DoesNotHold,
            },
        );
    }

    /// Two standard errors of a mean cosine over the seeds. They come from theory, because a few
    /// seeds cannot estimate their own deviation.
    fn allowance(&self, point: &Point) -> f64 {
        let deviation = closed_form::least_squares_cosine_deviation(point).unwrap_or(0.0);
        2.0 * deviation / (self.results.settings.seeds as f64).sqrt()
    }

    /// Like [`Self::check_worst`], for a mean over seeds that may be off by chance.
    fn check_cosine(
        &mut self,
        statement: &str,
        points: &[Point],
        limit: f64,
        value: impl Fn(&Self, &Point) -> f64,
    ) {
        let beyond = |judge: &Self, point: &Point| {
            let excess = value(judge, point).abs() - judge.allowance(point);
            // Not `max`, which would turn NaN into 0.
            if excess < 0.0 { 0.0 } else { excess }
        };
        let Some((excess, point)) = self.worst(points, beyond) else {
            return;
        };
        self.checks.add(
            format!("{statement} and two standard errors"),
            format!(
                "{} with standard errors of {} at {point}",
                significant(value(self, &point), 2),
                significant(0.5 * self.allowance(&point), 1)
            ),
            excess <= limit,
        );
    }

    /// The sampler has converged, the exact posterior is calibrated, and the learned concentration
    /// agrees with theory.
    fn exact_posterior(&mut self) {
        let all: Vec<Compared> = EXACT.iter().flat_map(|p| self.results.exact(p)).collect();
        let (effective, r_hat) = all.iter().fold((f64::INFINITY, 0.0), |(e, r), c| {
            (c.exact.effective.min(e), c.exact.r_hat.max(r))
        });
        self.checks.add(
            "chains of the exact posterior agree: R-hat below 1.05, at least 200 effective draws",
            format!(
                "R-hat at most {}, at least {} effective draws",
                significant(r_hat, 4),
                significant(effective, 3)
            ),
            r_hat < 1.05 && effective >= 200.0,
        );
        let surprise = Estimate::of(
            &all.iter().map(|c| c.exact.cosine - c.exact.resultant).collect::<Vec<_>>(),
        );
        self.checks.add(
            "exact posterior: the cosine of its mean to the teacher is its resultant length, on average",
            format!(
                "difference {} ± {} over {} teachers",
                significant(surprise.mean, 2),
                significant(surprise.error, 1),
                all.len()
            ),
            surprise.mean.abs() <= Z_LIMIT * surprise.error.max(1e-3),
        );
        let point = EXACT[0];
        let sphere = Sphere::new(point.dim).expect("a point of the list has a direction");
        let ratios: Vec<f64> = self
            .results
            .exact(&point)
            .iter()
            .map(|c| {
                sphere.kappa_from_sigma_eff(c.fixed.sigma)
                    / sphere.kappa_from_mean_resultant_length(c.exact.resultant)
            })
            .collect();
        let (ratio, expected) = (Estimate::of(&ratios), overconfidence(&point));
        self.checks.add(
            "tight posterior: the learned κ is N/(N−D−1) times the exact one, to 10 %",
            format!(
                "{} against {} at {point}",
                significant(ratio.mean, 3),
                significant(expected, 3)
            ),
            (ratio.mean / expected - 1.0).abs() < 0.1,
        );
    }

    /// The first layer's sigma_eff follows the same trends for a teacher without a closed form.
    fn nonlinear_teacher(&mut self) {
        for variable in Variable::ALL {
            let sigmas = |point: &Point| {
                let students = self.results.nonlinear(point);
                students.iter().map(|learned| learned.sigmas[0]).collect()
            };
            let (trend, text) = trend_of(variable, &nonlinear::sweep(variable), sigmas);
            let what = "nonlinear teacher: the first layer's σ_{eff}";
            self.checks.add(trend_statement(variable, what), text, trend.holds());
        }
    }

    fn mean(&self, point: &Point, gain: Gain, of: impl Fn(&Learned) -> f64) -> f64 {
        let students = self.results.linear(point, gain);
        Estimate::of(&students.iter().map(of).collect::<Vec<_>>()).mean
    }

    /// The value that is furthest from zero, and where. NaN counts as furthest.
    fn worst(
        &self,
        points: &[Point],
        value: impl Fn(&Self, &Point) -> f64,
    ) -> Option<(f64, Point)> {
        let size = |value: f64| {
            if value.is_nan() { f64::INFINITY } else { value.abs() }
        };
        points
            .iter()
            .map(|point| (value(self, point), *point))
            .max_by(|a, b| size(a.0).total_cmp(&size(b.0)))
    }

    fn check_worst(
        &mut self,
        statement: &str,
        points: Vec<Point>,
        limit: f64,
        value: impl Fn(&Self, &Point) -> f64,
    ) {
        if let Some((worst, point)) = self.worst(&points, value) {
            self.checks.add(
                statement,
                format!("at most {} at {point}", significant(worst, 2)),
                worst.abs() <= limit,
            );
        }
    }
}

/// `N / (N - D - 1)`: how much more concentrated the best von Mises-Fisher distribution is than a
/// tight exact posterior.
///
/// Its precision is the mean of the exact posterior's precisions, `N / s^2`. The exact posterior's
/// variance is the mean of their inverses, `s^2 / (N - D - 1)` for Gaussian inputs.
pub fn overconfidence(point: &Point) -> f64 {
    point.samples as f64 / (point.samples as f64 - point.dim as f64 - 1.0)
}

fn trend_of(
    variable: Variable,
    points: &[Point],
    sigmas: impl Fn(&Point) -> Vec<f64>,
) -> (Trend, String) {
    let mut groups: Vec<Vec<f64>> = points.iter().map(sigmas).collect();
    let ends = [groups.first(), groups.last()].map(|group| {
        let group = group.map_or(&[][..], Vec::as_slice);
        significant(Estimate::of(group).mean, 3)
    });
    if variable == Variable::Samples {
        groups.reverse();
    }
    let trend = Trend::of(&groups);
    let order = if trend.monotone { "monotone" } else { "NOT monotone" };
    let text = format!(
        "{} → {}, {order}, Jonckheere-Terpstra z = {}",
        ends[0],
        ends[1],
        significant(trend.z, 3)
    );
    (trend, text)
}

fn trend_statement(variable: Variable, what: &str) -> String {
    match variable {
        Variable::Noise => format!("{what} grows with observation noise"),
        Variable::Dim => format!("{what} grows with D"),
        Variable::Samples => format!("{what} falls with N"),
    }
}

/// The cosine that the student reaches minus the one that it expects.
fn gap(learned: &Learned) -> f64 {
    learned.cosine - expected_cosine(learned.sigma)
}

/// The name of a kind of student in tables and figures.
pub fn kind(gain: Gain) -> &'static str {
    match gain {
        Gain::Learned => "learned gain",
        Gain::Fixed => "gain 1",
    }
}
