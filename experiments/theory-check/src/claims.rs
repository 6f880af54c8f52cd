//! The paper's claims about the theory, each with what was measured, and the statements this
//! project makes instead.
//!
//! An approximation *holds* if it is within two per cent of the exact value where the paper says it
//! applies. It *holds with a correction* if a formula of the same form is.

use lab::{Checks, Claims, Verdict, significant};
use plot::logspace;
use vmf_core::{Sphere, expected_cosine};

use crate::curves::{Curves, Point};
use crate::monte_carlo::Estimate;

/// The largest relative error of an approximation that holds.
const CLOSE: f64 = 0.02;

/// The largest distance of a measurement from the exact value, in standard errors. Beyond five,
/// chance is out of the question.
const Z_LIMIT: f64 = 5.0;

/// Judges every claim at the dimension of `curves`.
pub fn judge(curves: &Curves) -> (Claims, Checks) {
    let mut judge =
        Judge { curves, s: curves.sphere, claims: Claims::new(), checks: Checks::new() };
    judge.moments();
    judge.interpolant();
    judge.effective_noise();
    judge.series();
    judge.exact_kl();
    judge.training_kl();
    judge.regimes();
    (judge.claims, judge.checks)
}

struct Judge<'a> {
    curves: &'a Curves,
    s: Sphere,
    claims: Claims,
    checks: Checks,
}

impl Judge<'_> {
    fn d(&self) -> f64 {
        self.s.dim() as f64
    }

    /// `1/(D-1)`, the largest relative error of our closed forms, with a margin for rounding.
    fn bound(&self) -> f64 {
        1.0 / (self.d() - 1.0) * (1.0 + 1e-9)
    }

    /// The mean resultant length and the spherical average, by Monte Carlo.
    fn moments(&mut self) {
        let claims: [(&str, &str, Pick, Formula); 2] = [
            (
                "E w = A_{D}(κ) μ with A_{D} a ratio of Bessel functions",
                "A",
                |p| p.measured.a,
                Sphere::mean_resultant_length,
            ),
            (
                "Var(w·x), averaged over directions of x, is 1 − A²",
                "σ_{u}²",
                |p| p.measured.sigma_u2,
                Sphere::one_minus_a2,
            ),
        ];
        for (claim, name, pick, exact) in claims {
            let (z, kappa) = self.largest_z(pick, exact);
            let holds = z.abs() < Z_LIMIT;
            let draws = format!(
                "Monte Carlo at {} concentrations: at most {} standard errors",
                self.curves.points.len(),
                significant(z.abs(), 2)
            );
            self.claims.add(
                claim,
                &draws,
                at(kappa),
                if holds { Verdict::Holds } else { Verdict::DoesNotHold },
            );
            self.checks.add(
                format!("sampled {name} is within {Z_LIMIT} standard errors of the exact value"),
                draws,
                holds,
            );
        }
    }

    fn interpolant(&mut self) {
        let paper = self.worst(|s, k| s.sigma_u2_paper(k), Sphere::one_minus_a2);
        let closed = self.worst(|s, k| s.sigma_u2_closed(k), Sphere::one_minus_a2);
        self.claims.add(
            "σ_{u}² ≈ D/(κ+D), with small relative error",
            format!(
                "off by {}; 2/(1+√(1+4(κ/D)²)) by {}",
                percent(paper.error),
                percent(closed.error)
            ),
            at(paper.kappa),
            verdict(paper.error, closed.error.abs() <= self.bound()),
        );
        self.checks.add(
            "2/(1+√(1+4(κ/D)²)) is within 1/(D−1) of 1 − A² at every κ",
            format!("{} against {}", percent(closed.error), percent(self.bound())),
            closed.error.abs() <= self.bound(),
        );
    }

    fn effective_noise(&mut self) {
        let (z, kappa) = self.largest_z(|p| p.measured.sigma_eff, Sphere::sigma_eff);
        let paper = self.worst(Sphere::sigma_eff_paper, Sphere::sigma_eff);
        let measured_holds = z.abs() < Z_LIMIT;
        self.claims.add(
            "σ_{eff} = σ_{u}/A_{D}(κ) is the noise relative to the mean",
            format!(
                "sampled: at most {} standard errors from √(1−A²)/A; with the paper's interpolant off by {}",
                significant(z.abs(), 2),
                percent(paper.error)
            ),
            format!("{}; {}", at(kappa), at(paper.kappa)),
            verdict(paper.error, measured_holds),
        );
        let cosine =
            self.worst(|s, k| expected_cosine(s.sigma_eff(k)), Sphere::mean_resultant_length);
        self.checks.add(
            "A = 1/√(1+σ_{eff}²) exactly, with no Bessel function",
            format!("relative error {}", significant(cosine.error.abs(), 1)),
            cosine.error.abs() < 1e-13,
        );
        let inversion = self.worst(|s, k| s.kappa_closed(s.sigma_eff(k)), |_, k| k);
        self.checks.add(
            "κ = D√(1+σ²)/σ² is within 1/(D−1) at every σ_{eff}",
            format!("{} against {}", percent(inversion.error), percent(self.bound())),
            inversion.error.abs() <= self.bound(),
        );
        let root = self.worst(|s, k| s.kappa_from_sigma_eff(s.sigma_eff(k)), |_, k| k);
        self.checks.add(
            "the exact inversion returns the κ it came from",
            format!("relative error {}", significant(root.error.abs(), 1)),
            root.error.abs() < 1e-13,
        );
    }

    fn series(&mut self) {
        // The cubic coefficient itself, at a kappa where the next term is 10^-4 of it.
        let (d, kappa) = (self.d(), 0.01 * self.d());
        let cubic = |a: f64| (a - kappa / d) / kappa.powi(3);
        let exact = cubic(self.s.mean_resultant_length(kappa));
        let printed = cubic(self.s.mean_resultant_length_broad_printed(kappa)) / exact;
        let corrected = cubic(self.s.mean_resultant_length_broad(kappa)) / exact;
        let right = (corrected - 1.0).abs() < CLOSE;
        self.claims.add(
            "small κ: A = κ/D − κ³/(D(D+2))",
            format!(
                "cubic term too large {} times; κ³/(D²(D+2)) is right to {}",
                significant(printed, 4),
                percent(corrected - 1.0)
            ),
            at(kappa),
            verdict(printed - 1.0, right),
        );
        self.checks.add(
            "the cubic term of A is −κ³/(D²(D+2))",
            format!("ratio to the exact cubic term {}", significant(corrected, 6)),
            right,
        );
        let kappa = 100.0 * d;
        let tight = self.s.mean_resultant_length_tight(kappa) - self.s.mean_resultant_length(kappa);
        let next = (d / kappa).powi(3);
        self.claims.add(
            "large κ: A = 1 − (D−1)/(2κ) + (D−1)(D−3)/(8κ²)",
            format!(
                "error {} against a next term of order {}",
                significant(tight, 2),
                significant(next, 1)
            ),
            at(kappa),
            if tight.abs() < next { Verdict::Holds } else { Verdict::DoesNotHold },
        );
    }

    fn exact_kl(&mut self) {
        let kappa = self.d();
        let (numerical, exact, printed) = (
            crate::quadrature::kl(self.s.dim(), kappa),
            self.s.kl(kappa),
            self.s.kl_with_printed_sign(kappa),
        );
        let close = |value: f64| (value / numerical - 1.0).abs() < 1e-7;
        self.claims.add(
            "exact KL = κA + log C_{D} − log Area",
            format!(
                "{} as printed, {} by quadrature, {} with + log Area",
                significant(printed, 5),
                significant(numerical, 5),
                significant(exact, 5)
            ),
            at(kappa),
            match (close(printed), close(exact)) {
                (true, _) => Verdict::Holds,
                (false, true) => Verdict::HoldsWithCorrection,
                (false, false) => Verdict::DoesNotHold,
            },
        );
        let error = |p: &Point| (p.kl / self.s.kl(p.kappa) - 1.0).abs();
        let worst = self.curves.points.iter().map(error).fold(0.0, f64::max);
        self.checks.add(
            "KL = κA + log C_{D} + log Area agrees with quadrature, and vanishes at κ = 0",
            format!(
                "relative error {}, KL(0) = {}",
                significant(worst, 1),
                significant(self.s.kl(0.0), 1)
            ),
            // A small KL is the difference of two large logarithms, so quadrature loses digits.
            worst < 1e-6 && self.s.kl(0.0) == 0.0,
        );
    }

    fn training_kl(&mut self) {
        let ours = self.worst(|s, k| s.kl_approx(s.sigma_eff(k)), Sphere::kl);
        let paper = self.worst(|s, k| s.kl_approx(s.sigma_eff_paper(k)), Sphere::kl);
        self.claims.add(
            "KL_{approx}(σ_{eff}, D) tracks the exact KL",
            format!(
                "off by {} at the exact σ_{{eff}}; by {} at the paper's",
                percent(ours.error),
                percent(paper.error)
            ),
            format!("{}; {}", at(ours.kappa), at(paper.kappa)),
            verdict(ours.error, false),
        );
        let bound = 0.15 / self.d();
        self.checks.add(
            "KL_{approx} at the exact σ_{eff} is within 0.15/D of the exact KL",
            format!("{} against {}", percent(ours.error), percent(bound)),
            ours.error.abs() < bound,
        );
    }

    /// The limits of the paper's table of regimes.
    fn regimes(&mut self) {
        let (s, d) = (self.s, self.d());
        let (tight, broad) = (1e-3, 1e2);
        let exact = |sigma: f64| s.kl(s.kappa_from_sigma_eff(sigma));

        let row = s.kl_approx_broad(broad) / exact(broad) - 1.0;
        self.claims.add(
            "broad: KL → (D/2)/σ_{eff}²",
            format!("off by {}", percent(row)),
            format!("σ_{{eff}} = {broad}"),
            verdict(row, false),
        );

        let printed = s.kl_approx_tight_printed(tight) / exact(tight) - 1.0;
        let corrected = s.kl_approx_tight(tight) / exact(tight) - 1.0;
        self.claims.add(
            "tight: KL → (D−1)/2 log(D/σ_{eff}²)",
            format!(
                "off by {}; (D−1)/2 log(1/σ_{{eff}}²) + O(1) by {}",
                percent(printed),
                percent(corrected)
            ),
            format!("σ_{{eff}} = {tight}"),
            verdict(printed, corrected.abs() < CLOSE),
        );
        self.checks.add(
            "the tight limit of KL is (D−1)/2 log(D/((D−1)σ_{eff}²)), to 2 %",
            percent(corrected),
            corrected.abs() < CLOSE,
        );

        let kappa = 1e4 * d;
        let slope = kappa * kappa * s.variance_along_mean(kappa) / (0.5 * (d - 1.0)) - 1.0;
        self.claims.add(
            "tight: KL ~ (D−1)/2 log κ + O(1)",
            format!("slope in log κ off by {}", percent(slope)),
            at(kappa),
            verdict(slope, false),
        );

        let inversion =
            |sigma: f64, formula: Formula| formula(&s, sigma) / s.kappa_from_sigma_eff(sigma) - 1.0;
        let (near_tight, near_broad) =
            (inversion(0.1, Sphere::kappa_tight), inversion(10.0, Sphere::kappa_broad));
        let between = inversion(1.0, Sphere::kappa_tight);
        let closed = inversion(1.0, Sphere::kappa_closed);
        self.claims.add(
            "κ ≈ D/σ_{eff}² (σ_{eff} ≪ 1), κ ≈ D/σ_{eff} (σ_{eff} ≫ 1)",
            format!(
                "off by {} at 0.1, {} at 10, {} at 1; D√(1+σ²)/σ² by {} at 1",
                percent(near_tight),
                percent(near_broad),
                percent(between),
                percent(closed)
            ),
            "σ_{eff} = 1",
            // A limit is judged near where it applies: 0.1 and 10 are still away from it.
            if near_tight.abs() < 0.05 && near_broad.abs() < 0.05 {
                Verdict::Holds
            } else {
                Verdict::HoldsWithCorrection
            },
        );
    }

    /// The largest relative error of a formula over eight decades of `kappa / D`.
    fn worst(&self, approximate: Formula, exact: Formula) -> Worst {
        let error = |kappa: f64| approximate(&self.s, kappa) / exact(&self.s, kappa) - 1.0;
        logspace(1e-4 * self.d(), 1e4 * self.d(), 1601)
            .into_iter()
            .map(|kappa| Worst { error: error(kappa), kappa })
            .max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()))
            .expect("the grid is not empty")
    }

    fn largest_z(&self, pick: Pick, exact: Formula) -> (f64, f64) {
        let z = |p: &Point| (pick(p).z_score(exact(&self.s, p.kappa)), p.kappa);
        self.curves
            .points
            .iter()
            .map(z)
            .max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()))
            .unwrap_or((f64::NAN, f64::NAN))
    }
}

type Formula = fn(&Sphere, f64) -> f64;
type Pick = fn(&Point) -> Estimate;

struct Worst {
    error: f64,
    kappa: f64,
}

/// Holds if `error` is small, or with a correction if the `corrected` formula is right.
fn verdict(error: f64, corrected: bool) -> Verdict {
    match (error.abs() < CLOSE, corrected) {
        (true, _) => Verdict::Holds,
        (false, true) => Verdict::HoldsWithCorrection,
        (false, false) => Verdict::DoesNotHold,
    }
}

fn at(kappa: f64) -> String {
    format!("κ = {}", significant(kappa, 3))
}

fn percent(fraction: f64) -> String {
    format!("{} %", significant(100.0 * fraction, 3))
}
