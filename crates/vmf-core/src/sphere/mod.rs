//! The unit sphere in `D` dimensions, on which the directions of a layer's weights live.

mod asymptotes;
mod double;
mod kl;
mod kl_approx;
mod link;
mod moments;

pub use link::expected_cosine;

use crate::Error;

/// The unit sphere `S^(D-1)`: a dimension that was checked once, and the functions of the von
/// Mises-Fisher distribution that depend on it and on the concentration `kappa` alone.
///
/// The methods take `kappa >= 0` and give NaN for a negative or NaN concentration; every other
/// input gives a finite number, for `D` up to 10^9 and `kappa` up to 10^300.
///
/// ```
/// use vmf_core::Sphere;
///
/// // A 3x3 convolution over 64 channels has directions in 576 dimensions.
/// let sphere = Sphere::new(576)?;
/// let kappa = sphere.kappa_from_sigma_eff(0.5);
/// assert!((sphere.sigma_eff(kappa) - 0.5).abs() < 1e-14);
/// assert!((sphere.mean_resultant_length(kappa) - vmf_core::expected_cosine(0.5)).abs() < 1e-14);
/// # Ok::<(), vmf_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sphere {
    dim: usize,
}

impl Sphere {
    /// The sphere of unit vectors in `dim` dimensions, `dim >= 2`.
    pub fn new(dim: usize) -> Result<Self, Error> {
        if dim < 2 {
            return Err(Error::DimensionTooSmall { dim });
        }
        Ok(Self { dim })
    }

    /// The number `D` of coordinates of a point.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// `D` as a floating-point number.
    pub(crate) fn d(&self) -> f64 {
        self.dim as f64
    }

    /// The Bessel order `nu = D/2 - 1`.
    pub(crate) fn order(&self) -> f64 {
        0.5 * self.d() - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_directions() {
        assert_eq!(Sphere::new(1), Err(Error::DimensionTooSmall { dim: 1 }));
        assert_eq!(Sphere::new(0), Err(Error::DimensionTooSmall { dim: 0 }));
    }

    #[test]
    fn areas_obey_their_recurrence() {
        // Area(S^(D+1)) = 2 pi / D * Area(S^(D-1))
        for dim in 2..2000 {
            let (here, above) = (Sphere::new(dim).unwrap(), Sphere::new(dim + 2).unwrap());
            let expected = (2.0 * std::f64::consts::PI / dim as f64).ln();
            let difference = above.log_area() - here.log_area();
            let tolerance = 1e-15 * (10.0 + above.log_area().abs());
            assert!(
                (difference - expected).abs() < tolerance,
                "D = {dim}: {difference} against {expected}"
            );
        }
    }
}
