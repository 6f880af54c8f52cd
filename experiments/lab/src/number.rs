//! Numbers as text.

/// The shortest text that reads back to the very same float.
///
/// ```
/// assert_eq!(lab::round_trip(0.1), "0.1");
/// assert_eq!(lab::round_trip(1e300), "1e300");
/// ```
pub fn round_trip(value: f64) -> String {
    let text = format!("{value:?}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Seventeen significant digits, which identify every float.
///
/// ```
/// assert_eq!(lab::seventeen_digits(0.1), "1.0000000000000001e-1");
/// ```
pub fn seventeen_digits(value: f64) -> String {
    format!("{value:.16e}")
}

/// A number for a person, with `digits` significant digits.
///
/// Large and small numbers become `1.5×10^{7}`, which tables and reports show as a superscript.
///
/// ```
/// assert_eq!(lab::significant(0.0123456, 3), "0.0123");
/// assert_eq!(lab::significant(24.135, 4), "24.14");
/// assert_eq!(lab::significant(-15_000_000.0, 2), "−1.5×10^{7}");
/// ```
pub fn significant(value: f64, digits: usize) -> String {
    // A float has no more than 17 digits to show.
    let digits = digits.clamp(1, 17);
    if value.is_nan() {
        return "n/a".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.into();
    }
    if value == 0.0 {
        return "0".into();
    }
    // `{:e}` rounds first and chooses the exponent afterwards, so that 9.996 at 3 digits is 10.0.
    let scientific = format!("{:.*e}", digits - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let text = if (-4..6).contains(&exponent) {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{mantissa}×10^{{{}}}", minus(&exponent.to_string()))
    };
    minus(&text)
}

/// A real minus sign, as wide as a plus, in place of the hyphen.
pub(crate) fn minus(text: &str) -> String {
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_machine_forms_read_back_exactly() {
        for value in [0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -2.5, 0.0] {
            assert_eq!(round_trip(value).parse::<f64>().unwrap(), value);
            assert_eq!(seventeen_digits(value).parse::<f64>().unwrap(), value);
        }
    }

    #[test]
    fn significant_digits_round_across_a_power_of_ten() {
        assert_eq!(significant(9.996, 3), "10.0");
        assert_eq!(significant(0.00001234, 3), "1.23×10^{−5}");
        assert_eq!(significant(1.5, usize::MAX), "1.5000000000000000");
        assert_eq!(significant(f64::NAN, 3), "n/a");
        assert_eq!(significant(f64::NEG_INFINITY, 3), "−∞");
    }
}
