//! The types of registers and instructions.

/// What the bits of a value mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unsigned,
    Signed,
    Float,
    /// Any of the others.
    Bits,
    Predicate,
}

/// A type such as `u32` or `f64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bits: u32,
}

impl Type {
    pub(crate) const fn new(kind: Kind, bits: u32) -> Self {
        Self { kind, bits }
    }

    /// Reads a type as it stands between the dots of an instruction.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "pred" {
            return Some(Self::new(Kind::Predicate, 1));
        }
        let kind = match text.get(..1)? {
            "u" => Kind::Unsigned,
            "s" => Kind::Signed,
            "f" => Kind::Float,
            "b" => Kind::Bits,
            _ => return None,
        };
        let bits = text[1..].parse().ok()?;
        let known = matches!(
            (kind, bits),
            (Kind::Float, 16 | 32 | 64)
                | (Kind::Unsigned | Kind::Signed | Kind::Bits, 8 | 16 | 32 | 64)
        );
        known.then_some(Self { kind, bits })
    }

    pub(crate) fn bytes(self) -> usize {
        self.bits.div_ceil(8) as usize
    }

    pub(crate) fn is_float(self) -> bool {
        self.kind == Kind::Float
    }
}

/// The low `bits` of a value.
pub(crate) fn truncate(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The low `bits` of a value, as a signed number.
pub(crate) fn sign_extend(value: u64, bits: u32) -> i64 {
    let unused = 64 - bits.min(64);
    ((value << unused) as i64) >> unused
}
