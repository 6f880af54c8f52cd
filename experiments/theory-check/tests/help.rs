//! The program starts and explains itself. What it does is tested end to end, in
//! `tests/end-to-end`.

use std::process::Command;

#[test]
fn help_names_the_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_theory-check")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for option in ["--dim", "--kappa", "--samples", "--seed", "--out", "eval", "draws"] {
        assert!(help.contains(option), "{option} is not in\n{help}");
    }
}
