//! What the instructions compute. Every value is in the low bits of a `u64`.

use half::f16;

use crate::types::{Kind, Type, sign_extend, truncate};

/// An instruction that takes up to three values and returns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    /// Rounded towards zero.
    AddToZero,
    Sub,
    /// The low half of a product of integers, or a product of floats.
    Mul,
    MulHigh,
    /// All of a product of integers.
    MulWide,
    Mad,
    MadWide,
    Fma,
    /// Rounded towards minus infinity.
    FmaDown,
    Div,
    Rem,
    Neg,
    Abs,
    Min,
    Max,
    And,
    Or,
    Xor,
    Not,
    ShiftLeft,
    ShiftRight,
    Sqrt,
    ReciprocalSqrt,
    Reciprocal,
    /// The upper half of the reciprocal of a double; subnormal arguments and results count as zero.
    ReciprocalStart,
    Exp2,
    /// Subnormal arguments and results count as zero.
    Exp2Flushed,
    Log2,
}

/// A comparison. `Unordered` ones hold when an operand is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    less: bool,
    equal: bool,
    greater: bool,
    unordered: bool,
}

impl Comparison {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, unordered) = match text {
            "nan" => return Some(Self::new(false, false, false, true)),
            "num" => return Some(Self::new(true, true, true, false)),
            "neu" | "equ" | "ltu" | "leu" | "gtu" | "geu" => (&text[..2], true),
            _ => (text, false),
        };
        let (less, equal, greater) = match name {
            "eq" => (false, true, false),
            "ne" => (true, false, true),
            "lt" | "lo" => (true, false, false),
            "le" | "ls" => (true, true, false),
            "gt" | "hi" => (false, false, true),
            "ge" | "hs" => (false, true, true),
            _ => return None,
        };
        Some(Self::new(less, equal, greater, unordered))
    }

    fn new(less: bool, equal: bool, greater: bool, unordered: bool) -> Self {
        Self { less, equal, greater, unordered }
    }

    pub(crate) fn holds(self, kind: Type, a: u64, b: u64) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let bits = kind.bits;
        let order = match (kind.kind, bits) {
            (Kind::Float, 32) => single(a).partial_cmp(&single(b)),
            (Kind::Float, _) => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
            (Kind::Signed, _) => Some(sign_extend(a, bits).cmp(&sign_extend(b, bits))),
            _ => Some(truncate(a, bits).cmp(&truncate(b, bits))),
        };
        match order {
            Some(Less) => self.less,
            Some(Equal) => self.equal,
            Some(Greater) => self.greater,
            None => self.unordered,
        }
    }
}

/// How a conversion rounds to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    NearestEven,
    TowardsZero,
    Down,
    Up,
    /// The conversion does not round to an integer.
    None,
    /// It does not round to an integer, but clamps to the range from 0 to 1, and NaN to 0.
    Saturate,
}

fn single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// Computes an operation; `None` if it does not exist for the type.
pub(crate) fn compute(operation: Operation, kind: Type, a: u64, b: u64, c: u64) -> Option<u64> {
    match (kind.kind, kind.bits) {
        (Kind::Float, 32) => {
            let value = compute_single(operation, single(a), single(b), single(c))?;
            Some(value.to_bits().into())
        }
        (Kind::Float, 64) => {
            let [a, b, c] = [a, b, c].map(f64::from_bits);
            Some(compute_double(operation, a, b, c)?.to_bits())
        }
        (Kind::Float, _) => None,
        (Kind::Signed, bits) => compute_signed(operation, bits, a, b, c),
        (_, bits) => compute_unsigned(operation, bits, a, b, c),
    }
}

fn compute_single(operation: Operation, a: f32, b: f32, c: f32) -> Option<f32> {
    let wide = f64::from(a);
    Some(match operation {
        Operation::Add => a + b,
        Operation::AddToZero => add_to_zero(a, b),
        Operation::Sub => a - b,
        Operation::Mul => a * b,
        Operation::Fma => a.mul_add(b, c),
        Operation::FmaDown => fma_down(a, b, c),
        Operation::Div => a / b,
        Operation::Neg => -a,
        Operation::Abs => a.abs(),
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::Sqrt => a.sqrt(),
        Operation::Reciprocal => 1.0 / a,
        Operation::ReciprocalSqrt => (1.0 / wide.sqrt()) as f32,
        Operation::Exp2 => wide.exp2() as f32,
        Operation::Exp2Flushed => flushed(flushed(a).exp2()),
        Operation::Log2 => wide.log2() as f32,
        _ => return None,
    })
}

/// `a + b`, rounded towards zero.
fn add_to_zero(a: f32, b: f32) -> f32 {
    match a + b {
        sum if sum > 0.0 => fma_down(a, 1.0, b),
        _ => -fma_down(-a, 1.0, -b),
    }
}

/// `a b + c`, rounded towards minus infinity.
fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact in double precision. So is the sum, as `sum + left_over` (Knuth).
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let left_over = (product - (sum - part)) + (c - part);
    let nearest = sum as f32;
    let above = f64::from(nearest) - sum;
    if above > 0.0 || (above == 0.0 && left_over < 0.0) { nearest.next_down() } else { nearest }
}

fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0.0 } else { value }
}

fn compute_double(operation: Operation, a: f64, b: f64, c: f64) -> Option<f64> {
    Some(match operation {
        Operation::Add => a + b,
        Operation::Sub => a - b,
        Operation::Mul => a * b,
        Operation::Fma => a.mul_add(b, c),
        Operation::Div => a / b,
        Operation::Neg => -a,
        Operation::Abs => a.abs(),
        Operation::Min => a.min(b),
        Operation::Max => a.max(b),
        Operation::Sqrt => a.sqrt(),
        Operation::Reciprocal => 1.0 / a,
        Operation::ReciprocalStart => {
            let flushed = |value: f64| if value.is_subnormal() { 0.0 * value } else { value };
            f64::from_bits(flushed(1.0 / flushed(a)).to_bits() & !0xffff_ffff)
        }
        _ => return None,
    })
}

fn compute_signed(operation: Operation, bits: u32, a: u64, b: u64, c: u64) -> Option<u64> {
    let (x, y) = (sign_extend(a, bits), sign_extend(b, bits));
    let product = i128::from(x) * i128::from(y);
    let value = match operation {
        Operation::MulHigh => (product >> bits) as u64,
        Operation::MulWide => return Some(truncate(product as u64, 2 * bits)),
        Operation::MadWide => return Some(truncate((product as u64).wrapping_add(c), 2 * bits)),
        Operation::Div => x.checked_div(y)? as u64,
        Operation::Rem => x.checked_rem(y)? as u64,
        Operation::Abs => x.unsigned_abs(),
        Operation::Min => x.min(y) as u64,
        Operation::Max => x.max(y) as u64,
        Operation::ShiftRight => (x >> truncate(b, 32).min(63)) as u64,
        _ => return compute_unsigned(operation, bits, a, b, c),
    };
    Some(truncate(value, bits))
}

fn compute_unsigned(operation: Operation, bits: u32, a: u64, b: u64, c: u64) -> Option<u64> {
    let (x, y) = (truncate(a, bits), truncate(b, bits));
    let product = u128::from(x) * u128::from(y);
    let shift = truncate(b, 32);
    let value = match operation {
        Operation::Add => a.wrapping_add(b),
        Operation::Sub => a.wrapping_sub(b),
        Operation::Mul => a.wrapping_mul(b),
        Operation::Mad => a.wrapping_mul(b).wrapping_add(c),
        Operation::MulHigh => (product >> bits) as u64,
        Operation::MulWide => return Some(truncate(product as u64, 2 * bits)),
        Operation::MadWide => return Some(truncate((product as u64).wrapping_add(c), 2 * bits)),
        Operation::Div => x.checked_div(y)?,
        Operation::Rem => x.checked_rem(y)?,
        Operation::Neg => a.wrapping_neg(),
        Operation::Min => x.min(y),
        Operation::Max => x.max(y),
        Operation::And => a & b,
        Operation::Or => a | b,
        Operation::Xor => a ^ b,
        Operation::Not => !a,
        Operation::ShiftLeft if shift >= bits.into() => 0,
        Operation::ShiftLeft => x << shift,
        Operation::ShiftRight if shift >= bits.into() => 0,
        Operation::ShiftRight => x >> shift,
        _ => return None,
    };
    Some(truncate(value, bits))
}

/// Converts a value between types; `None` if no such conversion exists.
pub(crate) fn convert(to: Type, from: Type, rounding: Rounding, value: u64) -> Option<u64> {
    let wide = match (from.kind, from.bits) {
        (Kind::Float, 16) => Some(f16::from_bits(value as u16).to_f64()),
        (Kind::Float, 32) => Some(single(value).into()),
        (Kind::Float, _) => Some(f64::from_bits(value)),
        _ => None,
    };
    let Some(wide) = wide else {
        let integer = match from.kind {
            Kind::Signed => i128::from(sign_extend(value, from.bits)),
            _ => i128::from(truncate(value, from.bits)),
        };
        return match (to.kind, to.bits) {
            (Kind::Float, 32) => Some((integer as f32).to_bits().into()),
            (Kind::Float, 64) => Some((integer as f64).to_bits()),
            (Kind::Float, _) => None,
            (_, bits) => Some(truncate(integer as u64, bits)),
        };
    };
    let rounded = match rounding {
        Rounding::NearestEven => wide.round_ties_even(),
        Rounding::TowardsZero => wide.trunc(),
        Rounding::Down => wide.floor(),
        Rounding::Up => wide.ceil(),
        Rounding::None => wide,
        Rounding::Saturate if wide.is_nan() => 0.0,
        Rounding::Saturate => wide.clamp(0.0, 1.0),
    };
    match (to.kind, to.bits) {
        // The value comes from an f32, which an f64 holds exactly, so this rounds only once.
        (Kind::Float, 16) => Some(f16::from_f64(rounded).to_bits().into()),
        (Kind::Float, 32) => Some((rounded as f32).to_bits().into()),
        (Kind::Float, _) => Some(rounded.to_bits()),
        (Kind::Signed, 32) => Some(u64::from(rounded as i32 as u32)),
        (Kind::Signed, 64) => Some(rounded as i64 as u64),
        (Kind::Unsigned, 32) => Some(u64::from(rounded as u32)),
        (Kind::Unsigned, 64) => Some(rounded as u64),
        _ => None,
    }
}
