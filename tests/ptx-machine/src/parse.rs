//! Parses the text of a module into its kernels.

use std::collections::HashMap;

use crate::decode::{Instruction, Names, split_operands};
use crate::types::Type;

/// A kernel, ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) registers: usize,
    pub(crate) shared_bytes: usize,
    /// Offset and size of each parameter.
    parameters: Vec<(usize, usize)>,
}

impl Kernel {
    /// The sizes of its parameters in bytes, in their order.
    pub fn parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.parameters.iter().map(|&(_, size)| size)
    }

    /// The parameters as they lie in parameter memory.
    pub(crate) fn pack(&self, arguments: &[&[u8]]) -> Result<Vec<u8>, String> {
        if arguments.len() != self.parameters.len() {
            let (given, wanted) = (arguments.len(), self.parameters.len());
            return Err(format!("{given} arguments for {wanted} parameters"));
        }
        let mut memory = Vec::new();
        for (i, (&argument, &(offset, size))) in arguments.iter().zip(&self.parameters).enumerate()
        {
            if argument.len() != size {
                return Err(format!("argument {i} has {} bytes, not {size}", argument.len()));
            }
            memory.resize(offset, 0);
            memory.extend_from_slice(argument);
        }
        Ok(memory)
    }
}

/// A PTX module.
#[derive(Debug)]
pub struct Module {
    kernels: HashMap<String, Result<Kernel, String>>,
}

impl Module {
    /// Parses a module. A kernel with an unknown instruction is an error only when it is used.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut kernels = HashMap::new();
        let mut rest = 0;
        while let Some(found) = text[rest..].find(".entry") {
            let start = rest + found + ".entry".len();
            let opening = start + text[start..].find('{').ok_or("an entry without a body")?;
            let closing = opening + matching_brace(&text[opening..])?;
            let (name, parameters) =
                text[start..opening].split_once('(').ok_or("an entry without parameters")?;
            let parameters = parameters.rsplit_once(')').ok_or("unbalanced parentheses")?.0;
            let line = text[..opening].matches('\n').count() + 1;
            let kernel = parse_kernel(parameters, &text[opening + 1..closing], line);
            kernels.insert(name.trim().to_string(), kernel);
            rest = closing;
        }
        Ok(Self { kernels })
    }

    /// A kernel by its name.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, String> {
        let kernel = self.kernels.get(name).ok_or_else(|| format!("no kernel `{name}`"))?;
        kernel.as_ref().map_err(|error| format!("{name}: {error}"))
    }

    /// Whether there is a kernel of that name, even one with an unknown instruction.
    pub fn contains(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }
}

fn matching_brace(text: &str) -> Result<usize, String> {
    let mut depth = 0;
    for (i, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(i);
        }
    }
    Err("unbalanced braces".into())
}

/// The name, size and alignment of a variable: `.align 4 .b8 name[132]` or `.u64 name`.
fn variable(declaration: &str) -> Option<(String, usize, usize)> {
    let words: Vec<&str> = declaration.split_whitespace().collect();
    let kind = words.iter().find_map(|word| Type::parse(word.strip_prefix('.')?))?;
    let (name, count) = match words.last()?.split_once('[') {
        Some((name, count)) => (name, count.strip_suffix(']')?.parse().ok()?),
        None => (*words.last()?, 1),
    };
    // After `.ptr`, the alignment is that of the memory that the pointer points to.
    let align = words.iter().position(|&word| word == ".align");
    let align =
        align.filter(|_| !words.contains(&".ptr")).and_then(|at| words.get(at + 1)?.parse().ok());
    Some((name.into(), count * kind.bytes(), align.unwrap_or(kind.bytes())))
}

fn parse_kernel(parameters: &str, body: &str, first_line: usize) -> Result<Kernel, String> {
    let mut names = Names::default();
    let mut offsets = Vec::new();
    let mut end = 0usize;
    for declaration in parameters.split(',').filter(|text| !text.trim().is_empty()) {
        let (name, size, align) =
            variable(declaration).ok_or(format!("parameter `{declaration}`"))?;
        let offset = end.next_multiple_of(align);
        names.addresses.insert(name, offset as u64);
        offsets.push((offset, size));
        end = offset + size;
    }
    let mut shared_bytes = 0usize;
    let mut statements = Vec::new();
    for (text, line) in statements_of(body, first_line) {
        if let Some(label) = text.strip_suffix(':') {
            names.labels.insert(label.to_string(), statements.len());
        } else if let Some(declaration) = text.strip_prefix(".reg") {
            declare_registers(&mut names, declaration).ok_or(format!("line {line}: `{text}`"))?;
        } else if let Some(declaration) = text.strip_prefix(".shared") {
            let (name, size, align) =
                variable(declaration).ok_or(format!("line {line}: `{text}`"))?;
            let offset = shared_bytes.next_multiple_of(align);
            names.addresses.insert(name, offset as u64);
            shared_bytes = offset + size;
        } else if !text.starts_with(".pragma") && !text.starts_with(".loc") {
            statements.push((text, line));
        }
    }
    let instructions = statements
        .iter()
        .map(|(text, line)| {
            let decoded = names.instruction(text, *line);
            decoded.map_err(|error| format!("line {line}: {error}: `{text}`"))
        })
        .collect::<Result<_, _>>()?;
    Ok(Kernel { instructions, registers: names.registers.len(), shared_bytes, parameters: offsets })
}

/// The statements and labels of a body, with their lines. Braces that open a scope are dropped,
/// since the names that NVRTC makes are unique.
fn statements_of(body: &str, first_line: usize) -> Vec<(String, usize)> {
    let (mut statements, mut current, mut line) = (Vec::new(), String::new(), first_line);
    for letter in body.chars() {
        line += usize::from(letter == '\n');
        match letter {
            '{' | '}' if current.trim().is_empty() => {}
            ';' => statements.push((std::mem::take(&mut current).trim().to_string(), line)),
            ':' => {
                current.push(letter);
                statements.push((std::mem::take(&mut current).trim().to_string(), line));
            }
            _ => current.push(letter),
        }
    }
    statements.retain(|(text, _)| !text.is_empty());
    statements
}

/// `.b32 %r<3>` declares %r0, %r1 and %r2; `.b32 %x, %y` declares %x and %y.
fn declare_registers(names: &mut Names, declaration: &str) -> Option<()> {
    let (_, list) = declaration.trim().split_once(char::is_whitespace)?;
    let mut declare = |name: String| {
        let index = names.registers.len();
        names.registers.entry(name).or_insert(index);
    };
    for item in split_operands(list) {
        match item.split_once('<') {
            Some((prefix, count)) => {
                let count: usize = count.strip_suffix('>')?.parse().ok()?;
                (0..count).for_each(|i| declare(format!("{prefix}{i}")));
            }
            None => declare(item.to_string()),
        }
    }
    Some(())
}
