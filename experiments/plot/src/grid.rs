//! The grids that curves are sampled on.

/// `count` values from `first` to `last`, evenly spaced, both ends included.
pub fn linspace(first: f64, last: f64, count: usize) -> Vec<f64> {
    match count {
        0 => Vec::new(),
        1 => vec![first],
        _ => (0..count)
            .map(|i| {
                let t = i as f64 / (count - 1) as f64;
                first * (1.0 - t) + last * t
            })
            .collect(),
    }
}

/// `count` values from `first` to `last` (both positive), evenly spaced in the logarithm.
pub fn logspace(first: f64, last: f64, count: usize) -> Vec<f64> {
    let mut values: Vec<f64> =
        linspace(first.ln(), last.ln(), count).into_iter().map(f64::exp).collect();
    // exp(ln x) is not exactly x, but callers compare the ends.
    if let Some(value) = values.first_mut() {
        *value = first;
    }
    if count > 1
        && let Some(value) = values.last_mut()
    {
        *value = last;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_hit_their_ends_exactly() {
        let grid = logspace(1e-3, 1e5, 9);
        assert_eq!((grid[0], grid[8]), (1e-3, 1e5));
        assert!((grid[3] - 1.0).abs() < 1e-12);
        assert_eq!(linspace(0.0, 1.0, 3), [0.0, 0.5, 1.0]);
        assert_eq!(linspace(2.0, 3.0, 1), [2.0]);
    }
}
