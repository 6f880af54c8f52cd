//! Findings: verdicts on the paper's claims, and checks of our own statements.

use std::fmt;
use std::process::ExitCode;

use crate::error::Result;
use crate::table::{Cell, Table, Tone};

/// How a claim of the paper stands up to measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It holds as stated.
    Holds,
    /// It holds once an error in it is corrected.
    HoldsWithCorrection,
    /// It does not hold, even with a correction.
    DoesNotHold,
}

impl Verdict {
    /// The tone of its cell in a table.
    pub fn tone(self) -> Tone {
        match self {
            Self::Holds => Tone::Good,
            Self::HoldsWithCorrection => Tone::Warning,
            Self::DoesNotHold => Tone::Bad,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::HoldsWithCorrection => "holds with a correction",
            Self::DoesNotHold => "does not hold",
        })
    }
}

impl From<Verdict> for Cell {
    fn from(verdict: Verdict) -> Self {
        Self::from(verdict.to_string()).tone(verdict.tone())
    }
}

/// A claim of the paper with our verdict.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What the paper says.
    pub claim: String,
    /// What was measured.
    pub measured: String,
    /// Where the measurement is furthest from the claim.
    pub worst: String,
    /// The verdict.
    pub verdict: Verdict,
}

/// The paper's claims.
#[derive(Debug, Clone, Default)]
pub struct Claims(Vec<Claim>);

impl Claims {
    /// No claims yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a claim.
    pub fn add(
        &mut self,
        claim: impl Into<String>,
        measured: impl Into<String>,
        worst: impl Into<String>,
        verdict: Verdict,
    ) {
        self.0.push(Claim {
            claim: claim.into(),
            measured: measured.into(),
            worst: worst.into(),
            verdict,
        });
    }

    /// The claims one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.0.iter()
    }

    /// The claims as a table.
    pub fn table(&self) -> Result<Table> {
        let mut table = Table::new(["The paper's claim", "Measured", "Worst at", "Verdict"]);
        for claim in &self.0 {
            table.row([
                claim.claim.as_str().into(),
                claim.measured.as_str().into(),
                claim.worst.as_str().into(),
                claim.verdict.into(),
            ])?;
        }
        Ok(table)
    }
}

/// A statement of ours.
#[derive(Debug, Clone)]
pub struct Check {
    /// What we state.
    pub statement: String,
    /// What was measured.
    pub measured: String,
    /// Whether the statement holds.
    pub passed: bool,
}

/// Our own statements. An experiment fails if one of them does.
#[derive(Debug, Clone, Default)]
pub struct Checks(Vec<Check>);

impl Checks {
    /// No checks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check.
    pub fn add(&mut self, statement: impl Into<String>, measured: impl Into<String>, passed: bool) {
        self.0.push(Check { statement: statement.into(), measured: measured.into(), passed });
    }

    /// The checks one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Check> {
        self.0.iter()
    }

    /// Whether all passed.
    pub fn all_passed(&self) -> bool {
        self.0.iter().all(|check| check.passed)
    }

    /// A line that says how many passed.
    pub fn summary(&self) -> String {
        let failed = self.0.iter().filter(|check| !check.passed).count();
        match failed {
            0 => format!("all {} checks pass", self.0.len()),
            _ => format!("{failed} of {} checks FAIL", self.0.len()),
        }
    }

    /// Success if all checks passed.
    pub fn exit_code(&self) -> ExitCode {
        if self.all_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The checks as a table.
    pub fn table(&self) -> Result<Table> {
        let mut table = Table::new(["Our statement", "Measured", "Check"]);
        for check in &self.0 {
            let (text, tone) =
                if check.passed { ("pass", Tone::Good) } else { ("FAIL", Tone::Bad) };
            table.row([
                check.statement.as_str().into(),
                check.measured.as_str().into(),
                Cell::from(text).tone(tone),
            ])?;
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_check_fails_them_all() {
        let mut checks = Checks::new();
        checks.add("a", "1", true);
        assert!(checks.all_passed());
        assert_eq!(checks.summary(), "all 1 checks pass");
        checks.add("b", "2", false);
        assert!(!checks.all_passed());
        assert_eq!(checks.summary(), "1 of 2 checks FAIL");
        let text = checks.table().unwrap().text(80);
        assert!(text.contains("FAIL") && text.contains("pass"), "{text}");
    }

    #[test]
    fn verdicts_read_as_in_the_paper_table() {
        let mut claims = Claims::new();
        claims.add("A", "m", "w", Verdict::HoldsWithCorrection);
        let html = claims.table().unwrap().html();
        assert!(html.contains("<span class=\"tone warning\">holds with a correction</span>"));
    }
}
