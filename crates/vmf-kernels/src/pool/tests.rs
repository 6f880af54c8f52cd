//! Compares pooling and its gradients with their definitions.

use super::*;
use crate::testing::{Rng, assert_close};

/// Offset of `(image, channel, y, x)`.
fn offset(s: &PoolShape, layout: Layout, size: [usize; 2], at: [usize; 4]) -> usize {
    let [n, c, y, x] = at;
    let position = y * size[1] + x;
    match layout {
        Layout::Hwnc => (position * s.batch + n) * s.channels + c,
        Layout::Nchw => (n * s.channels + c) * size[0] * size[1] + position,
    }
}

struct Naive {
    max: Vec<f64>,
    max_gradient: Vec<f64>,
    average: Vec<f64>,
    average_gradient: Vec<f64>,
}

fn naive(s: &PoolShape, layout: Layout, x: &[f32], dy: &[f32]) -> Naive {
    let mut r = Naive {
        max: vec![f64::NAN; s.output_len()],
        max_gradient: vec![0.0; s.input_len()],
        average: vec![0.0; s.output_len()],
        average_gradient: vec![0.0; s.input_len()],
    };
    let [oh, ow] = s.output();
    let area = (s.window[0] * s.window[1]) as f64;
    for (n, c) in (0..s.batch).flat_map(|n| (0..s.channels).map(move |c| (n, c))) {
        for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
            let out = offset(s, layout, [oh, ow], [n, c, oy, ox]);
            let mut first: Option<usize> = None;
            for (ky, kx) in (0..s.window[0]).flat_map(|y| (0..s.window[1]).map(move |x| (y, x))) {
                let (y, x_) = (oy * s.stride + ky, ox * s.stride + kx);
                if y < s.padding || x_ < s.padding {
                    continue;
                }
                let (y, x_) = (y - s.padding, x_ - s.padding);
                if y >= s.input[0] || x_ >= s.input[1] {
                    continue;
                }
                let from = offset(s, layout, s.input, [n, c, y, x_]);
                r.average[out] += f64::from(x[from]) / area;
                r.average_gradient[from] += f64::from(dy[out]) / area;
                if first.is_none_or(|best| x[from] > x[best]) {
                    first = Some(from);
                }
            }
            let first = first.expect("a window sees at least one element");
            r.max[out] = f64::from(x[first]);
            r.max_gradient[first] += f64::from(dy[out]);
        }
    }
    r
}

#[test]
fn pooling_matches_its_definition() {
    let mut rng = Rng::new(6);
    let base = PoolShape::tiling(3, 5, [6, 8], 2);
    let mut shapes = vec![
        base,
        PoolShape { batch: 7, channels: 17, input: [7, 5], ..base },
        PoolShape { window: [3, 3], stride: 2, padding: 1, ..base },
        PoolShape { window: [3, 2], stride: 1, ..base },
        PoolShape { window: [6, 8], ..base },
        PoolShape { stride: 3, ..base },
    ];
    for _ in 0..10 {
        let window = [rng.between(1, 4), rng.between(1, 4)];
        shapes.push(PoolShape {
            batch: rng.between(1, 4),
            channels: rng.between(1, 40),
            input: [rng.between(4, 9), rng.between(4, 9)],
            window,
            stride: rng.between(1, 3),
            padding: rng.between(0, window[0].min(window[1]) / 2),
        });
    }
    for shape in shapes {
        // Only a few distinct values, so that ties are common.
        let x: Vec<f32> = (0..shape.input_len()).map(|_| rng.between(0, 4) as f32 - 2.0).collect();
        let dy = rng.normals(shape.output_len());
        for layout in [Layout::Hwnc, Layout::Nchw] {
            let expected = naive(&shape, layout, &x, &dy);
            for isa in Isa::available() {
                let what = format!("{shape:?} {layout:?} {isa:?}");
                let pool = Pool::new(shape, layout).unwrap().with_isa(isa);
                let (mut y, mut dx) = (vec![f32::NAN; dy.len()], vec![f32::NAN; x.len()]);
                let mut argmax = vec![0; dy.len()];
                pool.max_forward(&x, &mut y, &mut argmax).unwrap();
                assert_close(&y, &expected.max, 0.0, &what);
                pool.max_backward(&argmax, &dy, &mut dx).unwrap();
                assert_close(&dx, &expected.max_gradient, 1e-6, &what);
                pool.average_forward(&x, &mut y).unwrap();
                assert_close(&y, &expected.average, 1e-6, &what);
                pool.average_backward(&dy, &mut dx).unwrap();
                assert_close(&dx, &expected.average_gradient, 1e-6, &what);
            }
        }
    }
}

#[test]
fn the_last_nan_or_the_first_of_equals_gets_the_gradient() {
    let shape = PoolShape::tiling(1, 1, [2, 4], 2);
    let pool = Pool::new(shape, Layout::Nchw).unwrap();
    let x = [1.0, f32::NAN, 3.0, 3.0, 5.0, f32::NAN, 3.0, 3.0];
    let (mut y, mut argmax, mut dx) = ([0.0; 2], [0; 2], [0.0; 8]);
    pool.max_forward(&x, &mut y, &mut argmax).unwrap();
    assert!(y[0].is_nan() && y[1] == 3.0);
    pool.max_backward(&argmax, &[1.0, 2.0], &mut dx).unwrap();
    assert_eq!(dx, [0.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn wrong_shapes_are_errors() {
    let base = PoolShape::tiling(1, 1, [4, 4], 2);
    let new = |shape| Pool::new(shape, Layout::Hwnc);
    assert!(new(PoolShape { stride: 0, ..base }).is_err());
    assert!(new(PoolShape { window: [0, 2], ..base }).is_err());
    assert!(new(PoolShape { window: [5, 5], ..base }).is_err());
    assert!(new(PoolShape { window: [100, 3], input: [200, 200], ..base }).is_err());
    assert!(new(PoolShape { padding: 2, ..base }).is_err());
    let pool = new(base).unwrap();
    assert!(pool.average_forward(&[0.0; 15], &mut [0.0; 4]).is_err());
    assert!(pool.max_forward(&[0.0; 16], &mut [0.0; 4], &mut [0; 3]).is_err());
}
