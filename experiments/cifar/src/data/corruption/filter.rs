//! A Gaussian filter, and an image made smaller and larger again.

/// A separable Gaussian filter that reaches four standard deviations far and repeats the pixels at
/// the border, as scikit-image's `gaussian` does.
pub(super) fn gaussian(plane: &[f64], size: usize, sigma: f64) -> Vec<f64> {
    let border = |place: isize| place.clamp(0, size as isize - 1) as usize;
    filtered(plane, size, sigma, 4.0, border)
}

/// The filter with a reach in standard deviations and a rule for places beyond the border.
pub(super) fn filtered(
    plane: &[f64],
    size: usize,
    sigma: f64,
    reach: f64,
    border: impl Fn(isize) -> usize,
) -> Vec<f64> {
    if sigma == 0.0 {
        return plane.to_vec();
    }
    let radius = (reach * sigma + 0.5) as isize;
    let weight = |offset: isize| (-0.5 * (offset as f64 / sigma).powi(2)).exp();
    let total: f64 = (-radius..=radius).map(weight).sum();
    let weights: Vec<f64> = (-radius..=radius).map(|offset| weight(offset) / total).collect();
    let pass = |values: &[f64], index: &dyn Fn(usize, usize) -> usize| -> Vec<f64> {
        let mut out = vec![0.0; values.len()];
        for line in 0..size {
            for place in 0..size {
                let near = weights.iter().zip(-radius..=radius).map(|(weight, offset)| {
                    weight * values[index(line, border(place as isize + offset))]
                });
                out[index(line, place)] = near.sum();
            }
        }
        out
    };
    let columns = pass(plane, &|line, place| place * size + line);
    pass(&columns, &|line, place| line * size + place)
}

/// The image at `factor` of its size, and back, each with Pillow's box filter.
pub(super) fn pixelate(image: &[u8], size: usize, factor: f64) -> Vec<u8> {
    let small = (size as f64 * factor) as usize;
    let planes = image.chunks_exact(size * size);
    planes.flat_map(|plane| resize(&resize(plane, size, small), small, size)).collect()
}

/// A square plane of another size, first in its rows and then in its columns, rounded to bytes each
/// time.
fn resize(plane: &[u8], from: usize, to: usize) -> Vec<u8> {
    let windows: Vec<_> = (0..to).map(|place| window(place, from, to)).collect();
    let mean = |window: &std::ops::Range<usize>, value: &dyn Fn(usize) -> u8| {
        let sum: f64 = window.clone().map(|place| f64::from(value(place))).sum();
        (sum / window.len() as f64 + 0.5).floor() as u8
    };
    let mut rows = Vec::with_capacity(from * to);
    for row in plane.chunks_exact(from) {
        rows.extend(windows.iter().map(|window| mean(window, &|place| row[place])));
    }
    let mut out = Vec::with_capacity(to * to);
    for window in &windows {
        out.extend((0..to).map(|column| mean(window, &|row| rows[row * to + column])));
    }
    out
}

/// The source pixels whose centres lie in the box of a target pixel, `(centre - s, centre + s]`.
fn window(place: usize, from: usize, to: usize) -> std::ops::Range<usize> {
    let scale = from as f64 / to as f64;
    let (centre, support) = ((place as f64 + 0.5) * scale, 0.5 * scale.max(1.0));
    let start = (centre - support + 0.5).max(0.0) as usize;
    let end = ((centre + support + 0.5) as usize).min(from);
    let inside = |pixel: usize| {
        let distance = (pixel as f64 - centre + 0.5) / scale.max(1.0);
        -0.5 < distance && distance <= 0.5
    };
    let start = (start..end).find(|&pixel| inside(pixel)).unwrap_or(start);
    let end = (start..end).rfind(|&pixel| inside(pixel)).map_or(start + 1, |last| last + 1);
    start..end
}
