//! Corruptions that change colours, by way of hue, saturation and value.

use super::Planes;

/// `v <- v + amount`, where v is the largest of the three channels.
pub(super) fn brighten(planes: Planes, amount: f64) -> Planes {
    in_hsv(planes, |[h, s, v]| [h, s, (v + amount).clamp(0.0, 1.0)])
}

/// `s <- factor s + shift`.
pub(super) fn saturate(planes: Planes, factor: f64, shift: f64) -> Planes {
    in_hsv(planes, |[h, s, v]| [h, (s * factor + shift).clamp(0.0, 1.0), v])
}

/// `x <- (x - mean) factor + mean`, with the mean of each channel.
pub(super) fn contrast(mut planes: Planes, factor: f64) -> Planes {
    for plane in &mut planes {
        let mean = plane.iter().sum::<f64>() / plane.len() as f64;
        plane.iter_mut().for_each(|x| *x = (*x - mean) * factor + mean);
    }
    planes
}

fn in_hsv(mut planes: Planes, change: impl Fn([f64; 3]) -> [f64; 3]) -> Planes {
    let [red, green, blue] = &mut planes[..] else { return planes };
    for ((r, g), b) in red.iter_mut().zip(green).zip(blue) {
        [*r, *g, *b] = to_rgb(change(to_hsv([*r, *g, *b])));
    }
    planes
}

fn to_hsv([r, g, b]: [f64; 3]) -> [f64; 3] {
    let v = r.max(g).max(b);
    let range = v - r.min(g).min(b);
    if range == 0.0 {
        return [0.0, 0.0, v];
    }
    // Where two channels are the largest, the last of them decides, as in scikit-image.
    let sixth = match () {
        () if b == v => 4.0 + (r - g) / range,
        () if g == v => 2.0 + (b - r) / range,
        () => (g - b) / range,
    };
    [(sixth / 6.0).rem_euclid(1.0), range / v, v]
}

fn to_rgb([h, s, v]: [f64; 3]) -> [f64; 3] {
    let sector = (h * 6.0).floor();
    let part = h * 6.0 - sector;
    let (p, q, t) = (v * (1.0 - s), v * (1.0 - part * s), v * (1.0 - (1.0 - part) * s));
    match sector as i64 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}
