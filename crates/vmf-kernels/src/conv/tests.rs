//! Every algorithm against a naive sum in double precision, over shapes chosen to be awkward.

use super::*;
use crate::testing::{Rng, assert_close, with_threads};

/// `y`, `dx` and `dw` of a convolution by its definition, in the layout of the kernels.
struct Naive {
    output: Vec<f64>,
    input_gradient: Vec<f64>,
    weight_gradient: Vec<f64>,
}

fn naive(s: &ConvShape, x: &[f32], w: &[f32], dy: &[f32]) -> Naive {
    let ([oh, ow], [kh, kw]) = (s.output(), s.kernel);
    let (gi, go) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let mut r = Naive {
        output: vec![0.0; s.output_len()],
        input_gradient: vec![0.0; s.input_len()],
        weight_gradient: vec![0.0; s.weight_len()],
    };
    for y in 0..oh {
        for x_ in 0..ow {
            for ky in 0..kh {
                for kx in 0..kw {
                    let iy = (y * s.stride + ky * s.dilation) as isize - s.padding as isize;
                    let ix = (x_ * s.stride + kx * s.dilation) as isize - s.padding as isize;
                    let inside = |at: isize, size: usize| at >= 0 && (at as usize) < size;
                    if !inside(iy, s.input[0]) || !inside(ix, s.input[1]) {
                        continue;
                    }
                    let from = iy as usize * s.input[1] + ix as usize;
                    for n in 0..s.batch {
                        for o in 0..s.out_channels {
                            let at_y = ((y * ow + x_) * s.batch + n) * s.out_channels + o;
                            for i in 0..gi {
                                let channel = o / go * gi + i;
                                let at_x = (from * s.batch + n) * s.in_channels + channel;
                                let at_w = ((o * gi + i) * kh + ky) * kw + kx;
                                r.output[at_y] += f64::from(x[at_x]) * f64::from(w[at_w]);
                                r.input_gradient[at_x] += f64::from(dy[at_y]) * f64::from(w[at_w]);
                                r.weight_gradient[at_w] += f64::from(dy[at_y]) * f64::from(x[at_x]);
                            }
                        }
                    }
                }
            }
        }
    }
    r
}

/// Largest error, as a share of the largest element, that each algorithm may make.
const DIRECT_ERROR: f64 = 4e-6;
const WINOGRAD_ERROR: f64 = 2e-5;

#[track_caller]
fn check(shape: ConvShape, algorithm: Algorithm, tolerance: f64, rng: &mut Rng) {
    let x = rng.normals(shape.input_len());
    let w = rng.normals(shape.weight_len());
    let dy = rng.normals(shape.output_len());
    let expected = naive(&shape, &x, &w, &dy);
    for isa in Isa::available() {
        let conv = Conv2d::new(shape).unwrap().with_algorithm(algorithm).with_isa(isa);
        let what = format!("{algorithm:?} {isa:?} {shape:?}");
        // NaN in the results shows what was not written.
        let mut y = vec![f32::NAN; shape.output_len()];
        conv.forward(&x, &w, &mut y).unwrap();
        assert_close(&y, &expected.output, tolerance, &format!("y {what}"));
        let mut dx = vec![f32::NAN; shape.input_len()];
        conv.input_gradient(&dy, &w, &mut dx).unwrap();
        assert_close(&dx, &expected.input_gradient, tolerance, &format!("dx {what}"));
        let mut dw = vec![f32::NAN; shape.weight_len()];
        conv.weight_gradient(&x, &dy, &mut dw).unwrap();
        assert_close(&dw, &expected.weight_gradient, tolerance, &format!("dw {what}"));
    }
}

#[test]
fn plain_3x3_matches_its_definition() {
    let mut rng = Rng::new(2);
    let mut shapes = vec![
        (1, 1, 1, [1, 1]),
        (2, 3, 10, [5, 4]),
        (3, 17, 10, [4, 4]),
        (2, 10, 17, [9, 3]),
        (1, 513, 16, [2, 2]),
        (1, 16, 513, [4, 5]),
        (64, 16, 16, [4, 4]),
        (5, 32, 48, [8, 8]),
        (67, 20, 24, [3, 6]),
    ];
    for _ in 0..12 {
        shapes.push((
            rng.between(1, 9),
            rng.between(1, 40),
            rng.between(1, 40),
            [rng.between(1, 10), rng.between(1, 10)],
        ));
    }
    for (batch, inputs, outputs, size) in shapes {
        let shape = ConvShape::same(batch, inputs, outputs, size, 3);
        check(shape, Algorithm::Direct, DIRECT_ERROR, &mut rng);
        check(shape, Algorithm::Winograd, WINOGRAD_ERROR, &mut rng);
        check(shape, Algorithm::Auto, WINOGRAD_ERROR, &mut rng);
    }
}

/// The nine products of a 2x2 image are sums without factors, and as exact as the taps.
#[test]
fn images_of_one_small_tile_match_their_definition() {
    let mut rng = Rng::new(6);
    for size in [[2, 2], [1, 2], [2, 1], [1, 1]] {
        for (batch, inputs, outputs) in [(5, 16, 40), (64, 17, 33), (1, 256, 64), (2, 1, 3)] {
            let shape = ConvShape::same(batch, inputs, outputs, size, 3);
            check(shape, Algorithm::Winograd, DIRECT_ERROR, &mut rng);
            check(shape, Algorithm::Auto, DIRECT_ERROR, &mut rng);
        }
    }
}

/// At the depth of VGG16's last blocks, where the sums are longest.
#[test]
fn the_error_bounds_hold_for_wide_layers() {
    let mut rng = Rng::new(3);
    let shape = ConvShape::same(2, 256, 64, [4, 4], 3);
    check(shape, Algorithm::Direct, DIRECT_ERROR, &mut rng);
    check(shape, Algorithm::Winograd, WINOGRAD_ERROR, &mut rng);
}

/// Enough rows for several chunks of the weight gradient: 21 of them directly, 4 through the
/// points, and 20 of the gathered input of few channels.
fn many_rows() -> [ConvShape; 2] {
    [ConvShape::same(37, 17, 20, [21, 30], 3), ConvShape::same(70, 3, 10, [20, 16], 3)]
}

#[test]
fn large_images_match_their_definition() {
    let mut rng = Rng::new(7);
    for shape in many_rows() {
        check(shape, Algorithm::Direct, DIRECT_ERROR, &mut rng);
        check(shape, Algorithm::Winograd, WINOGRAD_ERROR, &mut rng);
    }
}

#[test]
fn any_geometry_matches_its_definition() {
    let mut rng = Rng::new(4);
    let base = ConvShape::same(3, 8, 12, [7, 9], 3);
    let mut shapes = vec![
        ConvShape::same(3, 8, 12, [7, 9], 1),
        // More rows than a block of the matrix product has, and weights enough for their gradient
        // to be one.
        ConvShape::same(90, 130, 140, [3, 3], 1),
        ConvShape { kernel: [1, 1], padding: 0, stride: 2, ..base },
        ConvShape { kernel: [5, 5], padding: 2, ..base },
        ConvShape { kernel: [7, 7], padding: 3, stride: 2, in_channels: 3, ..base },
        ConvShape { kernel: [3, 1], padding: 1, ..base },
        ConvShape { groups: 4, ..base },
        ConvShape { groups: 2, stride: 2, in_channels: 34, out_channels: 20, ..base },
        ConvShape { groups: 8, out_channels: 8, ..base },
        ConvShape { groups: 8, out_channels: 8, stride: 2, kernel: [5, 5], padding: 2, ..base },
        ConvShape { groups: 8, out_channels: 16, ..base },
        ConvShape { dilation: 2, padding: 2, ..base },
        ConvShape { padding: 0, stride: 3, ..base },
        ConvShape { padding: 4, ..base },
        ConvShape { batch: 40, input: [16, 9], ..base },
        ConvShape { batch: 300, input: [5, 9], in_channels: 4, ..base },
    ];
    for _ in 0..25 {
        let groups = rng.between(1, 3);
        let kernel = [rng.between(1, 4), rng.between(1, 4)];
        shapes.push(ConvShape {
            batch: rng.between(1, 8),
            in_channels: groups * rng.between(1, 9),
            out_channels: groups * rng.between(1, 20),
            input: [rng.between(4, 9), rng.between(4, 9)],
            kernel,
            stride: rng.between(1, 3),
            padding: rng.between(0, 3),
            dilation: 1,
            groups,
        });
    }
    for shape in shapes {
        check(shape, Algorithm::Auto, DIRECT_ERROR, &mut rng);
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let mut rng = Rng::new(5);
    let [many_rows, few_channels] = many_rows();
    let shapes = [
        many_rows,
        few_channels,
        ConvShape::same(13, 20, 40, [9, 7], 3),
        ConvShape::same(9, 64, 130, [4, 4], 3),
        ConvShape::same(9, 40, 70, [2, 2], 3),
        ConvShape::same(7, 3, 10, [8, 8], 3),
        ConvShape::same(150, 130, 140, [2, 3], 1),
        ConvShape { groups: 6, ..ConvShape::same(5, 6, 6, [6, 6], 3) },
    ];
    for shape in shapes {
        let (x, w) = (rng.normals(shape.input_len()), rng.normals(shape.weight_len()));
        let dy = rng.normals(shape.output_len());
        for algorithm in [Algorithm::Direct, Algorithm::Winograd] {
            let all = |threads| {
                with_threads(threads, || {
                    let conv = Conv2d::new(shape).unwrap().with_algorithm(algorithm);
                    let mut y = vec![0.0; shape.output_len()];
                    let mut dx = vec![0.0; shape.input_len()];
                    let mut dw = vec![0.0; shape.weight_len()];
                    conv.forward(&x, &w, &mut y).unwrap();
                    conv.input_gradient(&dy, &w, &mut dx).unwrap();
                    conv.weight_gradient(&x, &dy, &mut dw).unwrap();
                    [y, dx, dw].concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                })
            };
            let one = all(1);
            assert!(one == all(2) && one == all(5), "{algorithm:?} {shape:?}");
        }
    }
}

#[test]
fn each_shape_takes_its_route() {
    use Route::*;
    let plain = |inputs, outputs, size| ConvShape::same(8, inputs, outputs, [size; 2], 3);
    let routes = |shape| {
        let conv = Conv2d::new(shape).unwrap();
        [conv.forward_route(), conv.input_gradient_route(), conv.weight_gradient_route()]
    };
    assert_eq!(routes(plain(16, 16, 4)), [Winograd; 3]);
    assert_eq!(routes(plain(16, 16, 2)), [Winograd; 3]);
    assert_eq!(routes(plain(16, 16, 3)), [Direct; 3]);
    assert_eq!(routes(plain(15, 16, 4)), [Direct; 3]);
    assert_eq!(routes(ConvShape { stride: 2, ..plain(16, 16, 4) }), [Direct; 3]);
    assert_eq!(routes(plain(3, 64, 32)), [Narrow, Direct, Narrow]);
    assert_eq!(routes(ConvShape { groups: 16, ..plain(16, 16, 4) }), [Depthwise; 3]);
    assert_eq!(routes(ConvShape::same(8, 128, 128, [4, 4], 1)), [Pointwise; 3]);
    let few_weights = ConvShape::same(8, 128, 127, [4, 4], 1);
    assert_eq!(routes(few_weights), [Pointwise, Pointwise, Direct]);
    let narrow = Conv2d::new(plain(3, 64, 32)).unwrap().with_algorithm(Algorithm::Winograd);
    assert_eq!(narrow.input_gradient_route(), Winograd);
}

#[test]
fn layouts_convert_both_ways() {
    let (n, c, s) = (3, 5, 37);
    let nchw: Vec<f32> = (0..n * c * s).map(|i| i as f32).collect();
    let mut hwnc = vec![0.0; nchw.len()];
    to_hwnc(&nchw, n, c, s, &mut hwnc).unwrap();
    for (i, &value) in hwnc.iter().enumerate() {
        let (position, image, channel) = (i / (n * c), i / c % n, i % c);
        assert_eq!(value, ((image * c + channel) * s + position) as f32);
    }
    let mut back = vec![0.0; nchw.len()];
    to_nchw(&hwnc, n, c, s, &mut back).unwrap();
    assert_eq!(back, nchw);
    assert!(to_nchw(&hwnc, n, c, s + 1, &mut back).is_err());
}

#[test]
fn wrong_shapes_are_errors_that_say_why() {
    let base = ConvShape::same(2, 4, 6, [5, 5], 3);
    let why = |shape| Conv2d::new(shape).unwrap_err().to_string();
    assert!(why(ConvShape { groups: 3, ..base }).contains("4 in 3 groups"));
    assert!(why(ConvShape { stride: 0, ..base }).contains("`stride` is 0"));
    assert!(why(ConvShape { kernel: [9, 3], ..base }).contains("no larger than the padded input"));
    let conv = Conv2d::new(base).unwrap();
    let (x, w) = (vec![0.0; base.input_len()], vec![0.0; base.weight_len()]);
    let error = conv.forward(&x, &w, &mut [0.0; 7]).unwrap_err().to_string();
    assert!(error.contains("`output` has 7 elements"), "{error}");
    assert!(conv.forward(&x[1..], &w, &mut vec![0.0; base.output_len()]).is_err());
    let empty = ConvShape { batch: 0, ..base };
    let mut dw = vec![1.0; base.weight_len()];
    let conv = Conv2d::new(empty).unwrap();
    conv.forward(&[], &w, &mut []).unwrap();
    conv.input_gradient(&[], &w, &mut []).unwrap();
    conv.weight_gradient(&[], &[], &mut dw).unwrap();
    assert!(dw.iter().all(|&x| x == 0.0));
}
