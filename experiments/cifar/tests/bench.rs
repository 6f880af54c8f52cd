//! `cifar bench` as a user runs it.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cifar"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("the program starts")
}

const SMALL: [&str; 6] = ["--batch", "4", "--width", "0.0625", "--steps", "1"];

#[test]
fn json_holds_times_that_add_up() {
    for more in [&[][..], &["--no-noise"], &["--noise-cost"], &["--ops", "stock"]] {
        let output = bench(&[&SMALL[..], &["--json", "--threads", "2"], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let number = |name: &str| {
            let value = report[name].as_f64();
            value.unwrap_or_else(|| panic!("{name} in {report}"))
        };
        let parts = ["forward_ms", "backward_ms", "optimizer_ms"].map(number);
        assert!(parts.iter().all(|&part| part > 0.0), "{report}");
        // With one step, the fastest step is the sum of the fastest parts.
        let step = number("step_ms");
        assert!((parts.iter().sum::<f64>() / step - 1.0).abs() < 1e-6);
        assert!((number("images_per_second") * step / 4e3 - 1.0).abs() < 1e-6);
        let epoch = number("epoch_seconds") * number("images_per_second");
        assert!((epoch / 50_000.0 - 1.0).abs() < 1e-6);
        // How the measured speeds compare is the machine's affair; that they are speeds is ours.
        for speed in ["gflops", "peak_gflops", "bandwidth", "evaluation_ms"] {
            assert!(number(speed) > 0.0, "{speed} in {report}");
        }
        assert_eq!(report["threads"], 2);
        assert_eq!(report["noise"], more != ["--no-noise"]);
        match more {
            // With one step there is one pair.
            ["--noise-cost"] => {
                let ratio = step / number("plain_step_ms");
                assert!((number("noise_cost") / ratio - 1.0).abs() < 1e-6);
            }
            _ => assert!(report["plain_step_ms"].is_null()),
        }
        // By wall time a step also has what lies between its parts.
        assert!(number("wall_step_ms") >= step, "{report}");
        #[cfg(unix)]
        assert!(number("peak_memory_mb") > 5.0);
    }
}

#[test]
fn people_read_a_table() {
    let output = bench(&[&SMALL[..], &["--noise-cost"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    for word in [
        "vgg16 at width 0.0625",
        "forward",
        "images/s",
        "GFLOP/s",
        "GB/s",
        "without noise and KL, which cost",
        "minutes",
    ] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
}

#[test]
fn wrong_settings_are_named() {
    for (arguments, word) in [
        (&["--batch", "1"][..], "--batch must be at least 2"),
        (&["--steps", "0"], "--steps"),
        (&["--width=-1"], "width"),
        (&["--width", "nan"], "width"),
        (&["--threads", "0"], "threads"),
        (&["--device", "abacus"], "abacus"),
        (&["--device", "cuda:0"], "--device cpu"),
        (&["--model", "vgg12"], "vgg12"),
        (&["--no-noise", "--noise-cost"], "cannot be used with"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(word), "{arguments:?}: {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}
