//! Corrupted images: those of CIFAR-10-C (Hendrycks and Dietterich, 2019) that need no pictures from
//! elsewhere, computed here, with its parameters for images of 32x32 and its five severities.
//!
//! Blur, contrast, brightness, saturation and pixelation are functions of the image, and equal those
//! of the Python package `imagecorruptions` with CIFAR-10-C's parameters to a grey level (`tests/
//! golden/corruptions.py`). Noise, fog and the elastic transform are random, drawn from a generator of
//! our own, so that an image is corrupted in the same way on every machine. Noise has the published
//! distribution. Fog is a diamond-square cloud of the same strength, whose rougher details are not
//! weighted as the published ones are, and the elastic transform has not been compared. JPEG is that of the `image` crate, which does not subsample colours as the
//! published files do; at the same quality it damages an image a little less.

mod color;
mod filter;
mod noise;
mod warp;

use clap::ValueEnum;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::random::Draws;
use super::{Error, Result, Shape, Split};

/// Number of severities of each corruption.
pub const SEVERITIES: usize = 5;

/// A kind of corruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Corruption {
    /// Normal noise on every pixel
    GaussianNoise,
    /// Noise of counting photons
    ShotNoise,
    /// Pixels that are black or white at random
    ImpulseNoise,
    /// Normal noise in proportion to the pixel
    SpeckleNoise,
    /// A Gaussian filter
    GaussianBlur,
    /// Brightness raised by a constant
    Brightness,
    /// Contrast lowered
    Contrast,
    /// Colours washed out or exaggerated
    Saturate,
    /// A fractal cloud in front of the image
    Fog,
    /// A smaller image, enlarged
    Pixelate,
    /// JPEG compression
    Jpeg,
    /// Pixels moved around at random
    Elastic,
}

/// The planes of one image from 0 to 1, each row by row.
type Planes = Vec<Vec<f64>>;

impl Corruption {
    /// All of them.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Its name, for people and on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The images of a split, corrupted. Severities count from 1 to 5.
    pub fn apply(self, split: &Split, shape: Shape, severity: usize) -> Result<Split> {
        if !(1..=SEVERITIES).contains(&severity) || shape.channels != 3 {
            return Err(Error::Setting(format!(
                "corruptions have severities from 1 to {SEVERITIES} and take colour images, not severity {severity} of {} channels",
                shape.channels
            )));
        }
        let draws = Draws::new(severity as u64, &self.name(), 0);
        let images: Vec<&[u8]> = split.images.chunks_exact(shape.pixels()).collect();
        let corrupted: Vec<Vec<u8>> = images
            .par_iter()
            .enumerate()
            .map(|(index, image)| {
                let stream = noise::Stream::new(draws, index as u32);
                self.corrupt(image, shape.size, severity - 1, stream)
            })
            .collect::<Result<_>>()?;
        Ok(Split { images: corrupted.concat(), labels: split.labels.clone() })
    }

    fn corrupt(
        self,
        image: &[u8],
        size: usize,
        severity: usize,
        mut stream: noise::Stream,
    ) -> Result<Vec<u8>> {
        let planes: Planes = image
            .chunks_exact(size * size)
            .map(|plane| plane.iter().map(|&pixel| f64::from(pixel) / 255.0).collect())
            .collect();
        let planes = match self {
            Corruption::GaussianNoise => {
                let scale = [0.04, 0.06, 0.08, 0.09, 0.10][severity];
                each(planes, |x| x + scale * stream.normal())
            }
            Corruption::ShotNoise => {
                let photons = [500.0, 250.0, 100.0, 75.0, 50.0][severity];
                each(planes, |x| stream.poisson(x * photons) / photons)
            }
            Corruption::ImpulseNoise => {
                let amount = [0.01, 0.02, 0.03, 0.05, 0.07][severity];
                each(planes, |x| match stream.uniform() {
                    u if u >= amount => x,
                    u if u < amount / 2.0 => 0.0,
                    _ => 1.0,
                })
            }
            Corruption::SpeckleNoise => {
                let scale = [0.06, 0.1, 0.12, 0.16, 0.2][severity];
                each(planes, |x| x + x * scale * stream.normal())
            }
            Corruption::GaussianBlur => {
                let sigma = [0.4, 0.6, 0.7, 0.8, 1.0][severity];
                planes.iter().map(|plane| filter::gaussian(plane, size, sigma)).collect()
            }
            Corruption::Brightness => {
                color::brighten(planes, [0.05, 0.1, 0.15, 0.2, 0.3][severity])
            }
            Corruption::Contrast => color::contrast(planes, [0.75, 0.5, 0.4, 0.3, 0.15][severity]),
            Corruption::Saturate => {
                let (factor, shift) =
                    [(0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)][severity];
                color::saturate(planes, factor, shift)
            }
            Corruption::Fog => {
                let parameters =
                    [(0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)][severity];
                noise::fog(planes, size, parameters, &mut stream)
            }
            Corruption::Pixelate => {
                return Ok(filter::pixelate(image, size, [0.95, 0.9, 0.85, 0.75, 0.65][severity]));
            }
            Corruption::Jpeg => return jpeg(image, size, [80, 65, 58, 50, 40][severity]),
            Corruption::Elastic => {
                // Strength and smoothness of the displacement, and of the affine map before it, in
                // widths of the image.
                let parameters = [
                    (0.0, 0.0, 0.08),
                    (0.05, 0.2, 0.07),
                    (0.08, 0.06, 0.06),
                    (0.1, 0.04, 0.05),
                    (0.1, 0.03, 0.03),
                ][severity];
                warp::elastic(planes, size, parameters, &mut stream)
            }
        };
        // The published files were truncated to bytes, and not rounded.
        let byte = |x: &f64| (x.clamp(0.0, 1.0) * 255.0 + 1e-9) as u8;
        Ok(planes.iter().flatten().map(byte).collect())
    }
}

fn each(mut planes: Planes, mut change: impl FnMut(f64) -> f64) -> Planes {
    planes.iter_mut().flatten().for_each(|x| *x = change(*x));
    planes
}

/// The image after JPEG compression of this quality.
fn jpeg(image: &[u8], size: usize, quality: u8) -> Result<Vec<u8>> {
    let failed = |error: image::ImageError| Error::Setting(format!("JPEG: {error}"));
    let plane = size * size;
    let pixels: Vec<u8> =
        (0..plane).flat_map(|at| [image[at], image[plane + at], image[2 * plane + at]]).collect();
    let mut file = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, quality)
        .encode(&pixels, size as u32, size as u32, image::ExtendedColorType::Rgb8)
        .map_err(failed)?;
    let read = image::load_from_memory_with_format(&file, image::ImageFormat::Jpeg);
    let pixels = read.map_err(failed)?.to_rgb8().into_raw();
    let planes = (0..3).flat_map(|channel| pixels.iter().skip(channel).step_by(3));
    Ok(planes.copied().collect())
}

#[cfg(test)]
mod tests;
