//! The ticks of an axis and their labels.

/// The ticks of an axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Ticks {
    /// Values with their labels (in markup).
    pub(crate) major: Vec<(f64, String)>,
    /// Values that get a short line and no label.
    pub(crate) minor: Vec<f64>,
    /// The power of ten that the labels leave out. The label of the axis shows it.
    pub(crate) factor: Option<i32>,
}

/// Ticks at multiples of 1, 2 or 5 times a power of ten, at most about `count` of them.
pub(crate) fn linear(low: f64, high: f64, count: usize, integers_only: bool) -> Ticks {
    let (mut mantissa, mut exponent) = nice_step((high - low) / count.max(1) as f64);
    if integers_only && exponent < 0 {
        (mantissa, exponent) = (1.0, 0);
    }
    // i * m / 10^k is correctly rounded where i * (m * 10^-k) is not: 0.3, never
    // 0.30000000000000004.
    let value_at = |i: f64| {
        if exponent < 0 {
            i * mantissa / 10f64.powi(-exponent)
        } else {
            i * mantissa * 10f64.powi(exponent)
        }
    };
    let step = value_at(1.0);
    let first = (low / step - 1e-9).ceil();
    let last = (high / step + 1e-9).floor();
    let values: Vec<f64> = (0..=(last - first).max(0.0) as usize)
        .map(|i| value_at(first + i as f64))
        .filter(|value| *value >= low - 1e-9 * step && *value <= high + 1e-9 * step)
        .collect();

    let largest = values.iter().fold(0.0f64, |max, value| max.max(value.abs()));
    let magnitude = if largest > 0.0 { largest.log10().floor() as i32 } else { 0 };
    let factor = (!(-3..6).contains(&magnitude)).then_some(magnitude);
    let shift = factor.unwrap_or(0);
    let decimals = (shift - exponent).max(0) as usize;
    Ticks {
        major: values
            .into_iter()
            .map(|value| {
                let scaled =
                    if shift > 0 { value / 10f64.powi(shift) } else { value * 10f64.powi(-shift) };
                (value, with_thousands(&format!("{scaled:.decimals$}")))
            })
            .collect(),
        minor: Vec::new(),
        factor,
    }
}

/// The step of 1, 2 or 5 times a power of ten that is at least about `step`, as mantissa and
/// exponent.
fn nice_step(step: f64) -> (f64, i32) {
    // A quarter more ticks than asked for is better than half as many.
    const SLACK: f64 = 1.25;
    let exponent = step.log10().floor();
    let fraction = step / 10f64.powf(exponent);
    let exponent = exponent as i32;
    match fraction {
        f if f <= 1.0 * SLACK => (1.0, exponent),
        f if f <= 2.0 * SLACK => (2.0, exponent),
        f if f <= 5.0 * SLACK => (5.0, exponent),
        _ => (1.0, exponent + 1),
    }
}

/// Ticks of a logarithmic axis, at most about `count` labels.
///
/// From three powers of ten on, the labels are powers of ten. On a shorter axis their multiples are
/// added, as many as fit. If even those give less than two labels, the axis is nearly linear and
/// has linear ticks.
pub(crate) fn log(low: f64, high: f64, count: usize) -> Ticks {
    let count = count.max(3);
    let first = (low.log10() - 1e-9).ceil() as i32;
    let last = (high.log10() + 1e-9).floor() as i32;
    let inside = |value: &f64| *value >= low * (1.0 - 1e-9) && *value <= high * (1.0 + 1e-9);
    let multiples = |digits: &[u32]| -> Vec<f64> {
        let all = multiples(first - 1, last, digits);
        all.into_iter().filter(inside).collect()
    };
    let decades = last - first + 1;
    if decades >= 3 {
        let stride = (decades as usize).div_ceil(count) as i32;
        let (major, skipped): (Vec<i32>, Vec<i32>) =
            (first..=last).partition(|exponent| exponent.rem_euclid(stride) == 0);
        let minor = if stride == 1 {
            multiples(&[2, 3, 4, 5, 6, 7, 8, 9])
        } else {
            skipped.into_iter().map(power).collect()
        };
        return Ticks {
            major: major
                .into_iter()
                .map(|k| (power(k), format!("10^{{{}}}", minus(&k.to_string()))))
                .collect(),
            minor,
            factor: None,
        };
    }
    for digits in [&[1, 2, 3, 5, 7][..], &[1, 2, 5], &[1, 3], &[1]] {
        let major = multiples(digits);
        if (2..=count).contains(&major.len()) {
            let minor = multiples(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
            return Ticks {
                minor: minor.into_iter().filter(|v| !major.contains(v)).collect(),
                major: major.into_iter().map(|v| (v, plain_label(v))).collect(),
                factor: None,
            };
        }
    }
    linear(low, high, count, false)
}

fn power(exponent: i32) -> f64 {
    // Parsing rounds correctly; powi does not for every exponent.
    format!("1e{exponent}").parse().unwrap_or(f64::NAN)
}

fn multiples(first: i32, last: i32, mantissas: &[u32]) -> Vec<f64> {
    (first..=last)
        .flat_map(|exponent| {
            mantissas.iter().filter_map(move |m| format!("{m}e{exponent}").parse().ok())
        })
        .collect()
}

/// A single digit times a power of ten, written out where that is short.
fn plain_label(value: f64) -> String {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(k) if (-3..6).contains(&k) => with_thousands(&format!("{value}")),
        _ if mantissa == "1" => format!("10^{{{}}}", minus(exponent)),
        _ => format!("{mantissa}×10^{{{}}}", minus(exponent)),
    }
}

/// A real minus sign, as wide as a plus, in place of the hyphen.
pub(crate) fn minus(text: &str) -> String {
    text.replace('-', "−")
}

/// Commas from 10,000 on, and a real minus sign.
fn with_thousands(text: &str) -> String {
    let (sign, digits) = match text.strip_prefix('-') {
        // -0.0 after rounding is a zero.
        Some(digits) if digits.contains(|c: char| ('1'..='9').contains(&c)) => ("−", digits),
        Some(digits) => ("", digits),
        None => ("", text),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (digits, None),
    };
    let mut grouped = String::from(sign);
    for (i, digit) in whole.chars().enumerate() {
        if whole.len() >= 5 && i > 0 && (whole.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &Ticks) -> Vec<&str> {
        ticks.major.iter().map(|(_, label)| label.as_str()).collect()
    }

    fn values(ticks: &Ticks) -> Vec<f64> {
        ticks.major.iter().map(|(value, _)| *value).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_exact() {
        let ticks = linear(0.0, 1.0, 5, false);
        assert_eq!(values(&ticks), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(labels(&ticks), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        let ticks = linear(-0.32, 0.31, 7, false);
        assert_eq!(
            values(&ticks),
            [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3],
            "no 0.30000000000000004"
        );
        assert_eq!(labels(&ticks)[..4], ["−0.3", "−0.2", "−0.1", "0.0"]);
    }

    #[test]
    fn large_and_small_values_share_a_factor() {
        let ticks = linear(0.0, 4.2e7, 5, false);
        assert_eq!(ticks.factor, Some(7));
        assert_eq!(labels(&ticks), ["0", "1", "2", "3", "4"]);
        let ticks = linear(1e-6, 5e-6, 5, false);
        assert_eq!(ticks.factor, Some(-6));
        assert_eq!(labels(&ticks), ["1", "2", "3", "4", "5"]);
        assert_eq!(
            labels(&linear(0.0, 50_000.0, 5, false)),
            ["0", "10,000", "20,000", "30,000", "40,000", "50,000"]
        );
    }

    #[test]
    fn epochs_have_whole_ticks() {
        assert_eq!(labels(&linear(1.0, 3.0, 8, true)), ["1", "2", "3"]);
    }

    #[test]
    fn log_ticks_are_powers_of_ten_with_minor_ticks_between() {
        let ticks = log(1e-2, 1e2, 8);
        assert_eq!(values(&ticks), [1e-2, 1e-1, 1.0, 1e1, 1e2]);
        assert_eq!(labels(&ticks), ["10^{−2}", "10^{−1}", "10^{0}", "10^{1}", "10^{2}"]);
        assert_eq!(ticks.minor.len(), 4 * 8);
        assert!(ticks.minor.contains(&0.05) && ticks.minor.contains(&20.0));
    }

    #[test]
    fn many_decades_are_thinned_evenly() {
        let ticks = log(1e-9, 1e9, 8);
        let exponents: Vec<f64> = values(&ticks).iter().map(|v| v.log10().round()).collect();
        assert_eq!(exponents, [-9.0, -6.0, -3.0, 0.0, 3.0, 6.0, 9.0]);
        assert!(ticks.minor.iter().any(|v| (v / 1e-8 - 1.0).abs() < 1e-12));
    }

    #[test]
    fn a_short_log_axis_still_has_labels() {
        assert_eq!(labels(&log(80.0, 1200.0, 8)), ["100", "200", "300", "500", "700", "1000"]);
        assert_eq!(labels(&log(0.08, 6.0, 4)), ["0.1", "0.3", "1", "3"]);
        let narrow = log(11.0, 14.0, 6);
        assert!(narrow.major.len() >= 3, "{narrow:?}");
        assert!(values(&narrow).iter().all(|v| (11.0..=14.0).contains(v)));
    }

    #[test]
    fn extreme_ranges_stay_finite() {
        for (low, high) in [(1e-300, 1e300), (5e-324, 1e-300), (1e300, 1.7e308)] {
            let ticks = log(low, high, 6);
            assert!(!ticks.major.is_empty() && ticks.major.len() < 20);
            assert!(ticks.major.iter().all(|(v, _)| v.is_finite() && *v > 0.0));
        }
        let ticks = linear(-1e300, 1e300, 5, false);
        assert!(ticks.major.iter().all(|(v, _)| v.is_finite()));
    }
}
