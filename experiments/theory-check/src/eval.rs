//! The formulas as a filter: lines of `dim,kappa` in, CSV out.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use csv::{ReaderBuilder, StringRecord, Trim};
use lab::seventeen_digits;
use vmf_core::Sphere;

/// The columns that [`evaluate`] writes.
pub const HEADER: &str = "dim,kappa,a,one_minus_a2,kl,log_c,sigma_u2_paper,sigma_u2_closed,sigma_eff,kl_approx,kappa_closed";

/// Reads lines of `dim,kappa` (a header is optional, blank lines are skipped). Writes [`HEADER`]
/// and, for each of them, a line of values with 17 significant digits.
///
/// # Errors
/// At the first line that is not a dimension of at least 2 and a finite concentration of at least
/// 0. The error gives the line's number; the lines before it have been written.
pub fn evaluate(input: impl Read, mut output: impl Write) -> Result<()> {
    writeln!(output, "{HEADER}")?;
    let mut reader =
        ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).from_reader(input);
    let mut first = true;
    for record in reader.records() {
        let record = record?;
        let is_blank = record.iter().eq([""]);
        if is_blank || std::mem::take(&mut first) && is_header(&record) {
            continue;
        }
        let line = record.position().map_or(0, |position| position.line());
        let (sphere, kappa) = parse(&record).with_context(|| format!("line {line}"))?;
        let sigma_eff = sphere.sigma_eff(kappa);
        let values = [
            kappa,
            sphere.mean_resultant_length(kappa),
            sphere.one_minus_a2(kappa),
            sphere.kl(kappa),
            sphere.log_normalizer(kappa),
            sphere.sigma_u2_paper(kappa),
            sphere.sigma_u2_closed(kappa),
            sigma_eff,
            sphere.kl_approx(sigma_eff),
            sphere.kappa_closed(sigma_eff),
        ];
        writeln!(output, "{},{}", sphere.dim(), values.map(seventeen_digits).join(","))?;
    }
    output.flush()?;
    Ok(())
}

/// A header has words where a line of values has numbers.
fn is_header(record: &StringRecord) -> bool {
    record.iter().all(|field| {
        field.starts_with(|c: char| c.is_alphabetic()) && field.parse::<f64>().is_err()
    })
}

fn parse(record: &StringRecord) -> Result<(Sphere, f64)> {
    let fields: Vec<&str> = record.iter().collect();
    let &[dim, kappa] = fields.as_slice() else {
        bail!("expected two fields, dim,kappa, but found {}: {fields:?}", fields.len());
    };
    let dim: usize = dim
        .parse()
        .with_context(|| format!("the dimension {dim:?} is not a whole number of at least 2"))?;
    let kappa: f64 =
        kappa.parse().with_context(|| format!("the concentration {kappa:?} is not a number"))?;
    if !(kappa.is_finite() && kappa >= 0.0) {
        bail!("the concentration {kappa} is not a finite number of at least 0");
    }
    // The sum turns -0, which is no direction of its own, into 0.
    Ok((Sphere::new(dim)?, kappa + 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(input: &str) -> Result<String> {
        let mut output = Vec::new();
        evaluate(input.as_bytes(), &mut output)?;
        Ok(String::from_utf8(output)?)
    }

    #[test]
    fn values_are_the_librarys_and_read_back_exactly() {
        let output = run(" \ndim,kappa\n100,100\n\n 3 , 2.5e-3 \n").unwrap();
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], HEADER);
        let values: Vec<f64> = lines[1].split(',').map(|field| field.parse().unwrap()).collect();
        let sphere = Sphere::new(100).unwrap();
        assert_eq!(
            values[..5],
            [
                100.0,
                100.0,
                sphere.mean_resultant_length(100.0),
                sphere.one_minus_a2(100.0),
                sphere.kl(100.0)
            ]
        );
        assert!(lines[2].starts_with("3,2.5"));
    }

    #[test]
    fn no_concentration_is_no_error() {
        let output = run("5,0\n").unwrap();
        let values: Vec<f64> =
            output.lines().nth(1).unwrap().split(',').map(|f| f.parse().unwrap()).collect();
        assert_eq!((values[2], values[3], values[4]), (0.0, 1.0, 0.0));
        assert_eq!((values[8], values[9], values[10]), (f64::INFINITY, 0.0, 0.0));
    }

    #[test]
    fn a_negative_zero_is_zero() {
        assert_eq!(run("2,-0\n2,-0.0\n").unwrap(), run("2,0\n2,0\n").unwrap());
    }

    #[test]
    fn bad_lines_are_named_and_nothing_is_guessed() {
        for (input, number, reason) in [
            ("100,1\n1,2\n", "line 2", "too small"),
            ("100,-1\n", "line 1", "not a finite number"),
            ("100,nan\n", "line 1", "not a finite number"),
            ("dim,kappa\n100,inf\n", "line 2", "not a finite number"),
            ("100\n", "line 1", "expected two fields"),
            ("100,1,2\n", "line 1", "expected two fields"),
            ("100,1\ndim,kappa\n", "line 2", "not a whole number"),
            ("2.5,1\n", "line 1", "not a whole number"),
            ("100,\n", "line 1", "not a number"),
            (",\n", "line 1", "not a whole number"),
        ] {
            let error = format!("{:#}", run(input).unwrap_err());
            assert!(error.contains(number) && error.contains(reason), "{input:?}: {error}");
        }
    }
}
