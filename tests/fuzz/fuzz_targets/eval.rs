//! Each line of `theory-check eval` has finite numbers that fit together, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use theory_check::eval::evaluate;

fuzz_target!(|bytes: &[u8]| {
    let mut output = Vec::new();
    let _ = evaluate(bytes, &mut output);
    let output = String::from_utf8(output).expect("the output is text");
    for line in output.lines().skip(1) {
        let values: Vec<f64> =
            line.split(',').map(|value| value.parse().expect("a number")).collect();
        let [dim, kappa, a, one_minus_a2, kl, ..] = values[..] else {
            panic!("{line}: {} values", values.len());
        };
        assert!(dim >= 2.0 && kappa >= 0.0, "{line}");
        // One rounding above 1 is as good as 1.
        let unit = 0.0..=1.0 + f64::EPSILON;
        assert!(unit.contains(&a) && unit.contains(&one_minus_a2), "{line}");
        assert!((a * a + one_minus_a2 - 1.0).abs() < 1e-12, "{line}");
        assert!(kl >= 0.0, "{line}");
    }
});
