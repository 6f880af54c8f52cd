//! Decodes the text of an instruction into what the machine executes.

use std::collections::HashMap;

use crate::arithmetic::{Comparison, Operation, Rounding};
use crate::types::{Kind, Type};

/// Where a value comes from, or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(usize),
    Immediate(u64),
    Special(Special),
    /// `_`, a result that is not used.
    Ignored,
}

/// A register that says which thread this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
    /// A coordinate beyond the first, of a thread or a block: always 0.
    Zero,
    /// An extent beyond the first: always 1.
    One,
}

/// Which memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Parameter,
    Global,
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// An instruction, without its guard.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Packs if `from` has several operands, unpacks if `to` has.
    Move {
        kind: Type,
        to: Vec<Operand>,
        from: Vec<Operand>,
    },
    Load {
        space: Space,
        kind: Type,
        to: Vec<Operand>,
        base: Operand,
        offset: u64,
    },
    Store {
        space: Space,
        kind: Type,
        from: Vec<Operand>,
        base: Operand,
        offset: u64,
    },
    Compute {
        operation: Operation,
        kind: Type,
        to: Operand,
        from: [Operand; 3],
    },
    Compare {
        comparison: Comparison,
        kind: Type,
        to: Operand,
        from: [Operand; 2],
        /// Combines the result with a predicate.
        with: Option<(Operation, Operand)>,
    },
    Select {
        to: Operand,
        from: [Operand; 2],
        condition: Operand,
    },
    Convert {
        kinds: [Type; 2],
        rounding: Rounding,
        to: Operand,
        from: Operand,
    },
    Shuffle {
        mode: Shuffle,
        to: Operand,
        in_range: Operand,
        value: Operand,
        source: Operand,
        clamp: Operand,
        mask: Operand,
    },
    Branch(usize),
    Barrier,
    Return,
}

/// An instruction of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate it depends on, and the value it must have.
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) action: Action,
    pub(crate) line: usize,
}

/// What the names in a kernel stand for.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) registers: HashMap<String, usize>,
    /// Offsets of parameters and of variables in shared memory.
    pub(crate) addresses: HashMap<String, u64>,
    /// Indices of instructions.
    pub(crate) labels: HashMap<String, usize>,
}

/// Splits at the commas, and at the bar of a shuffle's result, that are not within braces or
/// brackets.
pub(crate) fn split_operands(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (i, letter) in text.char_indices() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' | '|' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn number(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or(text.strip_prefix("0d")) {
        return u64::from_str_radix(bits, 16).ok();
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

impl Names {
    fn operand(&self, text: &str) -> Result<Operand, String> {
        let special = match text {
            "_" => return Ok(Operand::Ignored),
            "%tid.x" => Special::Thread,
            "%ntid.x" => Special::Threads,
            "%ctaid.x" => Special::Block,
            "%nctaid.x" => Special::Blocks,
            "%laneid" => Special::Lane,
            "%tid.y" | "%tid.z" | "%ctaid.y" | "%ctaid.z" => Special::Zero,
            "%ntid.y" | "%ntid.z" | "%nctaid.y" | "%nctaid.z" => Special::One,
            _ => {
                let register = self.registers.get(text).map(|&index| Operand::Register(index));
                let address = || self.addresses.get(text).map(|&at| Operand::Immediate(at));
                return register
                    .or_else(address)
                    .or_else(|| number(text).map(Operand::Immediate))
                    .ok_or_else(|| format!("unknown operand `{text}`"));
            }
        };
        Ok(Operand::Special(special))
    }

    /// One operand, or several in braces.
    fn operands(&self, text: &str) -> Result<Vec<Operand>, String> {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(list) => split_operands(list).into_iter().map(|item| self.operand(item)).collect(),
            None => Ok(vec![self.operand(text)?]),
        }
    }

    /// An address, `[base+offset]`.
    fn address(&self, text: &str) -> Result<(Operand, u64), String> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("`{text}` is not an address"))?;
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let offset = number(offset).ok_or_else(|| format!("unknown offset `{offset}`"))?;
        Ok((self.operand(base)?, offset))
    }

    /// Reads one instruction with its guard, without the semicolon.
    pub(crate) fn instruction(&self, text: &str, line: usize) -> Result<Instruction, String> {
        let (guard, text) = match text.strip_prefix('@') {
            None => (None, text),
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).ok_or("a guard alone")?;
                let (wanted, name) = match name.strip_prefix('!') {
                    Some(name) => (false, name),
                    None => (true, name),
                };
                let register = self.registers.get(name).ok_or(format!("no predicate {name}"))?;
                (Some((*register, wanted)), rest.trim())
            }
        };
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let action = self.action(opcode, &split_operands(operands))?;
        Ok(Instruction { guard, action, line })
    }

    fn action(&self, opcode: &str, operands: &[&str]) -> Result<Action, String> {
        let parts: Vec<&str> = opcode.split('.').collect();
        let (name, modifiers) = (parts[0], &parts[1..]);
        let types: Vec<Type> = modifiers.iter().filter_map(|part| Type::parse(part)).collect();
        let others: Vec<&str> =
            modifiers.iter().copied().filter(|part| Type::parse(part).is_none()).collect();
        let last = types.last().copied().unwrap_or(Type::new(Kind::Bits, 32));
        let operand = |index: usize| match operands.get(index) {
            Some(text) => self.operand(text),
            None => Err(format!("operand {index} is missing")),
        };
        let action = match (name, &others[..]) {
            ("mov", []) | ("cvta", ["to", "global"]) => Action::Move {
                kind: last,
                to: self.operands(operands[0])?,
                from: self.operands(operands[1])?,
            },
            // Without a space the address is generic. Kernels here have generic addresses of global
            // memory alone; shared memory is far below and would be an error.
            ("ld", [] | ["v2" | "v4"]) => self.load("global", last, operands)?,
            ("ld", [space] | [space, "nc" | "v2" | "v4"] | [space, "nc", "v2" | "v4"]) => {
                self.load(space, last, operands)?
            }
            ("st", [] | ["v2" | "v4"]) => self.store("global", last, operands)?,
            ("st", [space] | [space, "v2" | "v4"]) => self.store(space, last, operands)?,
            ("setp", [comparison, logic @ ..]) => Action::Compare {
                comparison: Comparison::parse(comparison).ok_or("unknown comparison")?,
                kind: last,
                to: operand(0)?,
                from: [operand(1)?, operand(2)?],
                with: match logic {
                    [] => None,
                    ["and"] => Some((Operation::And, operand(3)?)),
                    ["or"] => Some((Operation::Or, operand(3)?)),
                    ["xor"] => Some((Operation::Xor, operand(3)?)),
                    _ => return Err("unknown modifier".into()),
                },
            },
            ("selp", []) => Action::Select {
                to: operand(0)?,
                from: [operand(1)?, operand(2)?],
                condition: operand(3)?,
            },
            ("cvt", rounding) => Action::Convert {
                kinds: [*types.first().ok_or("no types")?, last],
                rounding: match rounding {
                    [] | ["rn"] => Rounding::None,
                    ["rni"] => Rounding::NearestEven,
                    ["rzi"] => Rounding::TowardsZero,
                    ["rmi"] => Rounding::Down,
                    ["rpi"] => Rounding::Up,
                    ["sat"] if last.is_float() => Rounding::Saturate,
                    _ => return Err("unknown rounding".into()),
                },
                to: operand(0)?,
                from: operand(1)?,
            },
            ("shfl", ["sync", mode]) => {
                // The predicate of the result is optional: `to|in_range` or `to`.
                let optional = operands.len() - 5;
                Action::Shuffle {
                    mode: match *mode {
                        "up" => Shuffle::Up,
                        "down" => Shuffle::Down,
                        "bfly" => Shuffle::Butterfly,
                        "idx" => Shuffle::Index,
                        _ => return Err("unknown shuffle".into()),
                    },
                    to: operand(0)?,
                    in_range: if optional == 1 { operand(1)? } else { Operand::Ignored },
                    value: operand(1 + optional)?,
                    source: operand(2 + optional)?,
                    clamp: operand(3 + optional)?,
                    mask: operand(4 + optional)?,
                }
            }
            ("bra", [] | ["uni"]) => {
                let target = self.labels.get(operands[0]).ok_or("unknown label")?;
                Action::Branch(*target)
            }
            ("bar", ["sync"]) if operands == ["0"] => Action::Barrier,
            ("ret" | "exit", []) => Action::Return,
            _ => {
                let operation = operation(name, &others, last)?;
                let or_zero = |index| {
                    operands.get(index).map_or(Ok(Operand::Immediate(0)), |_| operand(index))
                };
                Action::Compute {
                    operation,
                    kind: last,
                    to: operand(0)?,
                    from: [operand(1)?, or_zero(2)?, or_zero(3)?],
                }
            }
        };
        Ok(action)
    }

    fn load(&self, space: &str, kind: Type, operands: &[&str]) -> Result<Action, String> {
        let [to, from] = operands else { return Err("a load has two operands".into()) };
        let (base, offset) = self.address(from)?;
        Ok(Action::Load { space: self.space(space)?, kind, to: self.operands(to)?, base, offset })
    }

    fn store(&self, space: &str, kind: Type, operands: &[&str]) -> Result<Action, String> {
        let [to, from] = operands else { return Err("a store has two operands".into()) };
        let (base, offset) = self.address(to)?;
        let from = self.operands(from)?;
        Ok(Action::Store { space: self.space(space)?, kind, from, base, offset })
    }

    fn space(&self, name: &str) -> Result<Space, String> {
        match name {
            "param" => Ok(Space::Parameter),
            "global" => Ok(Space::Global),
            "shared" => Ok(Space::Shared),
            _ => Err(format!("unknown space `{name}`")),
        }
    }
}

/// The operation of an arithmetic instruction. The modifiers are spelled out, so that one that
/// changes the result, such as `ftz` or `sat`, is refused if it is not implemented.
fn operation(name: &str, modifiers: &[&str], kind: Type) -> Result<Operation, String> {
    let float = kind.is_float();
    Ok(match (name, modifiers) {
        ("add", []) => Operation::Add,
        ("add", ["rn"]) if float => Operation::Add,
        ("add", ["rz"]) if float => Operation::AddToZero,
        ("sub", []) => Operation::Sub,
        ("sub", ["rn"]) if float => Operation::Sub,
        ("mul", [] | ["rn"]) if float => Operation::Mul,
        ("mul", ["lo"]) if !float => Operation::Mul,
        ("mul", ["hi"]) if !float => Operation::MulHigh,
        ("mul", ["wide"]) if !float => Operation::MulWide,
        ("mad", ["lo"]) if !float => Operation::Mad,
        ("mad", ["wide"]) if !float => Operation::MadWide,
        ("fma", ["rn"]) if float => Operation::Fma,
        ("fma", ["rm"]) if float => Operation::FmaDown,
        ("div", []) if !float => Operation::Div,
        ("div", ["rn" | "full" | "approx"]) if float => Operation::Div,
        ("rem", []) if !float => Operation::Rem,
        ("neg", []) => Operation::Neg,
        ("abs", []) => Operation::Abs,
        ("min", []) => Operation::Min,
        ("max", []) => Operation::Max,
        ("and", []) => Operation::And,
        ("or", []) => Operation::Or,
        ("xor", []) => Operation::Xor,
        ("not", []) => Operation::Not,
        ("shl", []) => Operation::ShiftLeft,
        ("shr", []) => Operation::ShiftRight,
        ("sqrt", ["rn" | "approx"]) if float => Operation::Sqrt,
        ("rsqrt", ["approx"]) if float => Operation::ReciprocalSqrt,
        ("rcp", ["rn" | "approx"]) if float => Operation::Reciprocal,
        ("rcp", ["approx", "ftz"]) if float && kind.bits == 64 => Operation::ReciprocalStart,
        ("ex2", ["approx"]) if float => Operation::Exp2,
        ("ex2", ["approx", "ftz"]) if float => Operation::Exp2Flushed,
        ("lg2", ["approx"]) if float => Operation::Log2,
        _ => return Err("unknown instruction".into()),
    })
}
