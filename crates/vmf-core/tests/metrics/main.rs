//! The metrics against other libraries' values, at their corners, and by their properties.

mod corners;
mod decisions;
mod golden;
mod properties;

/// Asserts that two numbers agree to a relative or absolute error, whichever is larger.
#[track_caller]
fn assert_close(what: &str, actual: f64, expected: f64, tolerance: f64) {
    let error = (actual - expected).abs();
    assert!(
        error <= tolerance * expected.abs().max(1.0),
        "{what}: {actual} differs from {expected} by {error:e}"
    );
}
