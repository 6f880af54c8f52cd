//! How closely a measured landscape follows `kappa (1 - cos theta)`, in numbers.
//!
//! | number | says |
//! |---|---|
//! | correlation | of the loss with `1 - cos theta`; its square is the share of the variance that the fit explains |
//! | fitted kappa, offset | least squares of `loss = offset + kappa (1 - cos theta)` over all points |
//! | share explained by the angle (1D) | scale invariance: 1 if the loss depends on the ratio x / y alone |
//! | share explained by the radius (2D) | radial symmetry: 1 if the loss depends on the distance from the centre alone |
//! | spread of a level set (2D) | the standard deviation of its radius over the mean radius; 0 for a circle |

use serde::{Deserialize, Serialize};

use super::family::Family;

/// Values on the grid of a family; `None` where the landscape is not defined.
#[derive(Clone, Debug, PartialEq)]
pub struct Surface {
    /// The family.
    pub family: Family,
    /// Number of points along each coordinate.
    pub points: usize,
    /// The values in the order of [`Family::points`].
    pub values: Vec<Option<f64>>,
}

/// How closely a surface follows the analytic one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Correlation with `1 - cos theta`.
    pub correlation: f64,
    /// The slope of the least-squares line: the kappa that fits the loss, in nats per image.
    pub kappa: f64,
    /// The intercept of that line.
    pub offset: f64,
    /// The root mean square of the residuals of that line.
    pub residual: f64,
    /// The share of the variance that is explained by the angle alone in the 1D family, and by the
    /// radius alone in the 2D family.
    pub explained: f64,
    /// Level sets around the centre of the 2D family.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub level_sets: Vec<LevelSet>,
}

/// The curve on which the loss has risen by a given share of its rise at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelSet {
    /// The share of the mean rise from the centre to radius 1.5.
    pub rise: f64,
    /// The loss there.
    pub level: f64,
    /// Mean distance from the centre at which the level is first reached, over the directions in
    /// which it is reached.
    pub radius: f64,
    /// The standard deviation of that distance divided by its mean.
    pub spread: f64,
    /// The share of directions in which the level is reached within radius 1.5.
    pub reached: f64,
}

/// The shares of the rise at which level sets are computed.
const RISES: [f64; 3] = [0.25, 0.5, 0.75];

/// Number of directions in which a level set is searched: one every two degrees.
const DIRECTIONS: usize = 180;

impl Surface {
    /// `offset + kappa (1 - cos theta)`.
    pub fn analytic(family: Family, points: usize, kappa: f64, offset: f64) -> Self {
        let value = |point| Some(offset + kappa * family.turn(point)?);
        Self { family, points, values: family.points(points).into_iter().map(value).collect() }
    }

    /// The values with NaN where the landscape is not defined, as figures expect them.
    pub fn or_nan(&self) -> Vec<f64> {
        let values = self.values.iter();
        values.map(|value| value.unwrap_or(f64::NAN)).collect()
    }

    /// How closely the surface follows the analytic one. The numbers of a constant surface are NaN.
    pub fn agreement(&self) -> Agreement {
        let family = self.family;
        let place = |point: [f64; 2]| match family {
            // The angle is signed, so that a difference between the two sides does not look like a
            // dependence on the length.
            Family::OneDirection => point[0].atan2(point[1]),
            Family::TwoDirections => point[0].hypot(point[1]),
        };
        let (mut turns, mut losses, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (point, value) in self.family.points(self.points).into_iter().zip(&self.values) {
            if let (Some(turn), Some(loss)) = (family.turn(point), value) {
                turns.push(turn);
                losses.push(*loss);
                places.push((place(point), *loss));
            }
        }
        // The corners of the square exist in some directions only.
        places.retain(|(place, _)| family == Family::OneDirection || *place <= EDGE);
        // Rings of half a cell's width, and sectors that hold at least the cells at the border.
        let bins = match family {
            Family::OneDirection => 2 * self.points,
            Family::TwoDirections => self.points,
        };
        let line = Line::fit(&turns, &losses);
        Agreement {
            correlation: line.correlation,
            kappa: line.slope,
            offset: line.offset,
            residual: line.residual,
            explained: explained(&places, bins),
            level_sets: match family {
                Family::OneDirection => Vec::new(),
                Family::TwoDirections => self.level_sets(),
            },
        }
    }

    /// Level sets at [`RISES`] of the rise from the centre to the mean at the edge of the disc.
    fn level_sets(&self) -> Vec<LevelSet> {
        let centre = self.at([0.0, 0.0]);
        let directions: Vec<[f64; 2]> = (0..DIRECTIONS)
            .map(|k| std::f64::consts::TAU * k as f64 / DIRECTIONS as f64)
            .map(|angle| [angle.cos(), angle.sin()])
            .collect();
        let edge = directions.iter().map(|[x, y]| self.at([EDGE * x, EDGE * y]));
        let edge = edge.sum::<f64>() / DIRECTIONS as f64;
        RISES
            .into_iter()
            .map(|rise| {
                let level = centre + rise * (edge - centre);
                let radii = directions.iter().filter_map(|d| self.crossing(*d, level));
                let radii: Vec<f64> = radii.collect();
                let (mean, deviation) = mean_and_deviation(&radii);
                LevelSet {
                    rise,
                    level,
                    radius: mean,
                    spread: deviation / mean,
                    reached: radii.len() as f64 / DIRECTIONS as f64,
                }
            })
            .collect()
    }

    /// Distance from the centre at which the value first crosses a level in this direction.
    fn crossing(&self, [x, y]: [f64; 2], level: f64) -> Option<f64> {
        // In steps of half a cell, because the interpolated value is nearly linear within a step.
        let steps = self.points - 1;
        let value = |step: usize| {
            let radius = EDGE * step as f64 / steps as f64;
            (radius, self.at([radius * x, radius * y]))
        };
        (0..steps).find_map(|step| {
            let ((near, before), (far, after)) = (value(step), value(step + 1));
            let crosses = (before < level) != (after < level);
            crosses.then(|| near + (far - near) * (level - before) / (after - before))
        })
    }

    /// The value between grid points, linear in both coordinates.
    fn at(&self, point: [f64; 2]) -> f64 {
        let grids = self.family.grids(self.points);
        let locate = |grid: &[f64], place: f64| {
            let last = grid.len() - 1;
            let cells = (place - grid[0]) / (grid[last] - grid[0]) * last as f64;
            let cell = cells.floor().clamp(0.0, (last - 1) as f64);
            (cell as usize, cells - cell)
        };
        let (column, across) = locate(&grids[0], point[0]);
        let (row, up) = locate(&grids[1], point[1]);
        let value =
            |row: usize, column: usize| self.values[row * self.points + column].unwrap_or(f64::NAN);
        let mix = |row| (1.0 - across) * value(row, column) + across * value(row, column + 1);
        (1.0 - up) * mix(row) + up * mix(row + 1)
    }
}

/// The largest disc in the square of the 2D family.
const EDGE: f64 = 1.5;

/// A least-squares line.
struct Line {
    slope: f64,
    offset: f64,
    correlation: f64,
    residual: f64,
}

impl Line {
    fn fit(xs: &[f64], ys: &[f64]) -> Self {
        let ((x, dx), (y, dy)) = (mean_and_deviation(xs), mean_and_deviation(ys));
        let products = xs.iter().zip(ys).map(|(a, b)| (a - x) * (b - y));
        let covariance = products.sum::<f64>() / xs.len() as f64;
        let slope = covariance / (dx * dx);
        let offset = y - slope * x;
        let left = xs.iter().zip(ys).map(|(x, y)| y - offset - slope * x);
        let squares: f64 = left.map(|left| left * left).sum();
        Self {
            slope,
            offset,
            correlation: covariance / (dx * dy),
            residual: (squares / xs.len() as f64).sqrt(),
        }
    }
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}

/// The share of the variance of the values that is explained by their positions.
///
/// The explaining function interpolates linearly between the means of `bins` equal intervals. A
/// function that is constant in each interval would count the slope within it as unexplained.
fn explained(places: &[(f64, f64)], bins: usize) -> f64 {
    let low = places.iter().map(|(place, _)| *place).fold(f64::MAX, f64::min);
    let high = places.iter().map(|(place, _)| *place).fold(f64::MIN, f64::max);
    let mut sums = vec![[0.0; 3]; bins];
    for (place, value) in places {
        let bin = ((place - low) / (high - low) * bins as f64) as usize;
        let [count, at, sum] = &mut sums[bin.min(bins - 1)];
        (*count, *at, *sum) = (*count + 1.0, *at + place, *sum + value);
    }
    let knots: Vec<(f64, f64)> = sums
        .iter()
        .filter(|[count, ..]| *count > 0.0)
        .map(|[count, at, sum]| (at / count, sum / count))
        .collect();
    if knots.len() < 2 {
        return f64::NAN;
    }
    let function = |place: f64| {
        // The first and the last segment are extended beyond their ends.
        let after = knots.partition_point(|(at, _)| *at < place);
        let right = after.clamp(1, knots.len() - 1);
        let ((x0, y0), (x1, y1)) = (knots[right - 1], knots[right]);
        y0 + (y1 - y0) * (place - x0) / (x1 - x0)
    };
    let values: Vec<f64> = places.iter().map(|(_, value)| *value).collect();
    let (_, deviation) = mean_and_deviation(&values);
    let left = places.iter().map(|(place, value)| value - function(*place));
    let left: f64 = left.map(|left| left * left).sum();
    1.0 - left / (deviation * deviation * places.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surface(family: Family, value: impl Fn(f64, f64) -> f64) -> Surface {
        let points = family.points(51);
        Surface {
            family,
            points: 51,
            values: points
                .into_iter()
                .map(|point| family.angle(point).map(|_| value(point[0], point[1])))
                .collect(),
        }
    }

    #[test]
    fn the_analytic_surface_agrees_with_itself() {
        for family in Family::ALL {
            let agreement = Surface::analytic(family, 51, 7.0, 0.3).agreement();
            assert!((agreement.correlation - 1.0).abs() < 1e-12);
            assert!((agreement.kappa - 7.0).abs() < 1e-9 && (agreement.offset - 0.3).abs() < 1e-9);
            assert!(agreement.residual < 1e-12);
            assert!(agreement.explained > 0.999, "{}", agreement.explained);
            for set in agreement.level_sets {
                // The radius at which 1 - cos theta has risen by this share of its rise at 1.5.
                let rise = set.rise * (1.0 - 1.0 / 3.25_f64.sqrt());
                let radius = (1.0 / (1.0 - rise).powi(2) - 1.0).sqrt();
                assert!((set.radius / radius - 1.0).abs() < 3e-3, "{set:?} {radius}");
                assert!(set.spread < 3e-3 && set.reached == 1.0, "{set:?}");
            }
        }
    }

    #[test]
    fn a_line_is_fitted_through_noise() {
        // By numpy's polyfit and corrcoef.
        let (xs, ys) = ([0.0, 1.0, 2.0, 3.0, 4.0], [1.1, 2.9, 5.1, 6.8, 9.1]);
        let line = Line::fit(&xs, &ys);
        assert!((line.slope - 1.99).abs() < 1e-12, "{}", line.slope);
        assert!((line.offset - 1.02).abs() < 1e-12, "{}", line.offset);
        assert!((line.correlation - 0.999_004_040_322_482_8).abs() < 1e-12);
        assert!((line.residual - 0.125_698_050_899_765_1).abs() < 1e-12);
    }

    #[test]
    fn an_ellipse_is_not_radial_and_the_numbers_say_by_how_much() {
        // Level sets a^2 + 4 b^2 = c: radii between 1 and 1/2 of the longest.
        let agreement = surface(Family::TwoDirections, |a, b| a * a + 4.0 * b * b).agreement();
        // On a disc of radius R, r^2 (1 + 3 sin^2): the radius explains E[(E[L|r])^2] - E[L]^2 of
        // Var L. E over the disc of r^4 is R^4/3, of r^2 is R^2/2; E[1 + 3 sin^2] = 2.5,
        // E[(1 + 3 sin^2)^2] = 7.375.
        let share = (6.25 / 3.0 - 6.25 / 4.0) / (7.375 / 3.0 - 6.25 / 4.0);
        assert!((agreement.explained - share).abs() < 0.01, "{} {share}", agreement.explained);
        let quarter = agreement.level_sets[0];
        // numpy: std/mean of (1 + 3 sin^2)^(-1/2) over 180 directions.
        assert!((quarter.spread - 0.247_2).abs() < 2e-3, "{quarter:?}");
        assert_eq!(quarter.reached, 1.0);
    }

    #[test]
    fn what_depends_on_length_is_not_scale_invariant() {
        let ratio = surface(Family::OneDirection, |x, y| (x / y.max(1e-9)).atan().abs());
        assert!(ratio.agreement().explained > 0.999);
        let one_sided = surface(Family::OneDirection, |x, y| x.atan2(y));
        assert!(one_sided.agreement().explained > 0.999);
        let length = surface(Family::OneDirection, |x, y| x.hypot(y));
        assert!(length.agreement().explained < 0.5);
    }

    #[test]
    fn a_level_that_is_not_reached_everywhere_says_so() {
        let valley = surface(Family::TwoDirections, |a, _| a * a);
        let set = valley.agreement().level_sets[2];
        assert!(set.reached > 0.3 && set.reached < 0.9, "{set:?}");
    }
}
