//! The machine: blocks run one after another, the threads of a block in turns.

use crate::arithmetic::{compute, convert};
use crate::decode::{Action, Operand, Shuffle, Space, Special};
use crate::memory::Memory;
use crate::parse::{Kernel, Module};
use crate::types::{Kind, sign_extend, truncate};

const WARP: usize = 32;

/// Runs a kernel on a one-dimensional grid of `blocks` blocks of `threads` threads.
///
/// `order` is the order in which the threads take turns: 0 is ascending, 1 descending, and any
/// other number is the seed of random orders that change at every turn.
pub fn launch(
    module: &Module,
    kernel: &str,
    blocks: u32,
    threads: u32,
    arguments: &[&[u8]],
    memory: &mut Memory,
    order: u32,
) -> Result<(), String> {
    let code = module.kernel(kernel)?;
    if threads == 0 || threads > 1024 || blocks == 0 {
        return Err(format!("{blocks} blocks of {threads} threads"));
    }
    let parameters = code.pack(arguments)?;
    let mut random = u64::from(order);
    for block in 0..blocks {
        let mut machine = Block::new(code, &parameters, memory, [block, blocks], threads);
        let done = machine.run(order, &mut random);
        done.map_err(|error| format!("{kernel}, block {block}: {error}"))?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runnable,
    /// Waits at the instruction with this index.
    AtBarrier(usize),
    /// Waits at the instruction with this index, with this mask.
    AtShuffle(usize, u32),
    Finished,
}

struct Thread {
    next: usize,
    state: State,
    registers: Vec<u64>,
    /// The value that the other lanes of a shuffle may read.
    offer: Option<u64>,
}

struct Block<'a> {
    kernel: &'a Kernel,
    parameters: &'a [u8],
    global: &'a mut Memory,
    shared: Vec<u8>,
    threads: Vec<Thread>,
    index: [u32; 2],
    /// The offers of the lanes of each warp, when all have arrived.
    offers: Vec<[u64; WARP]>,
}

impl<'a> Block<'a> {
    fn new(
        kernel: &'a Kernel,
        parameters: &'a [u8],
        global: &'a mut Memory,
        index: [u32; 2],
        threads: u32,
    ) -> Self {
        let thread = || Thread {
            next: 0,
            state: State::Runnable,
            registers: vec![0; kernel.registers],
            offer: None,
        };
        Self {
            kernel,
            parameters,
            global,
            // All ones are a NaN in every format.
            shared: vec![0xff; kernel.shared_bytes],
            threads: (0..threads).map(|_| thread()).collect(),
            index,
            offers: vec![[0; WARP]; threads.div_ceil(WARP as u32) as usize],
        }
    }

    fn run(&mut self, order: u32, random: &mut u64) -> Result<(), String> {
        let count = self.threads.len();
        let mut turns: Vec<usize> = (0..count).collect();
        if order == 1 {
            turns.reverse();
        }
        loop {
            for i in (1..count).rev().filter(|_| order >= 2) {
                *random =
                    random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                turns.swap(i, (*random >> 33) as usize % (i + 1));
            }
            let mut progress = false;
            for &thread in &turns {
                if self.threads[thread].state == State::Runnable {
                    progress = true;
                    self.run_thread(thread)?;
                }
            }
            if self.threads.iter().all(|thread| thread.state == State::Finished) {
                return Ok(());
            }
            self.release_barrier()?;
            for warp in 0..self.offers.len() {
                self.release_shuffles(warp)?;
            }
            if !progress {
                return Err("all threads wait for each other".into());
            }
        }
    }

    fn release_barrier(&mut self) -> Result<(), String> {
        let at = |thread: &Thread| match thread.state {
            State::AtBarrier(at) => Some(at),
            _ => None,
        };
        let waiting: Vec<usize> = self.threads.iter().filter_map(at).collect();
        let Some(&first) = waiting.first() else {
            return Ok(());
        };
        let line = self.kernel.instructions[first].line;
        let finished = |thread: &&Thread| thread.state == State::Finished;
        let finished = self.threads.iter().filter(finished).count();
        if waiting.len() == self.threads.len() {
            if waiting.iter().any(|&other| other != first) {
                return Err(format!("threads wait at different barriers, one in line {line}"));
            }
            for thread in &mut self.threads {
                thread.state = State::Runnable;
            }
        } else if waiting.len() + finished == self.threads.len() {
            return Err(format!(
                "the barrier in line {line} is not reached by all threads of the block"
            ));
        }
        Ok(())
    }

    /// Lets the lanes of a shuffle continue when all lanes of its mask have arrived.
    fn release_shuffles(&mut self, warp: usize) -> Result<(), String> {
        let first = warp * WARP;
        for lane in 0..WARP.min(self.threads.len() - first) {
            let waiting = self.threads[first + lane].state;
            let State::AtShuffle(at, mask) = waiting else {
                continue;
            };
            let line = self.kernel.instructions[at].line;
            let members = || (0..WARP).filter(|other| mask >> other & 1 == 1);
            let state = |other: usize| self.threads.get(first + other).map(|thread| thread.state);
            if members().any(|other| matches!(state(other), None | Some(State::Finished))) {
                return Err(format!(
                    "the mask of the shuffle in line {line} names a lane that does not exist or has exited"
                ));
            }
            if members().all(|other| state(other) == Some(waiting)) {
                for other in members() {
                    let thread = &mut self.threads[first + other];
                    thread.state = State::Runnable;
                    self.offers[warp][other] = thread.offer.unwrap_or_default();
                }
            }
        }
        Ok(())
    }

    /// Runs a thread until it waits or ends.
    fn run_thread(&mut self, thread: usize) -> Result<(), String> {
        while self.threads[thread].state == State::Runnable {
            let at = self.threads[thread].next;
            let line = self.kernel.instructions.get(at).map_or(0, |instruction| instruction.line);
            self.step(thread).map_err(|error| format!("thread {thread}, line {line}: {error}"))?;
        }
        Ok(())
    }

    fn value(&self, thread: usize, operand: Operand) -> u64 {
        let special = match operand {
            Operand::Register(index) => return self.threads[thread].registers[index],
            Operand::Immediate(value) => return value,
            Operand::Ignored => return 0,
            Operand::Special(special) => special,
        };
        match special {
            Special::Thread => thread as u64,
            Special::Threads => self.threads.len() as u64,
            Special::Block => self.index[0].into(),
            Special::Blocks => self.index[1].into(),
            Special::Lane => (thread % WARP) as u64,
            Special::Zero => 0,
            Special::One => 1,
        }
    }

    fn set(&mut self, thread: usize, operand: Operand, value: u64) -> Result<(), String> {
        match operand {
            Operand::Register(index) => self.threads[thread].registers[index] = value,
            Operand::Ignored => {}
            _ => return Err("the result goes to a constant".into()),
        }
        Ok(())
    }

    fn step(&mut self, thread: usize) -> Result<(), String> {
        let kernel = self.kernel;
        let at = self.threads[thread].next;
        let Some(instruction) = kernel.instructions.get(at) else {
            self.threads[thread].state = State::Finished;
            return Ok(());
        };
        if let Some((register, wanted)) = instruction.guard
            && (self.threads[thread].registers[register] & 1 == 1) != wanted
        {
            self.threads[thread].next += 1;
            return Ok(());
        }
        match &instruction.action {
            Action::Branch(target) => {
                self.threads[thread].next = *target;
                return Ok(());
            }
            Action::Return => {
                self.threads[thread].state = State::Finished;
                return Ok(());
            }
            Action::Barrier => self.threads[thread].state = State::AtBarrier(at),
            Action::Shuffle { value, mask, .. } if self.threads[thread].offer.is_none() => {
                let mask = self.value(thread, *mask) as u32;
                if mask >> (thread % WARP) & 1 == 0 {
                    return Err("a lane calls a shuffle whose mask leaves it out".into());
                }
                self.threads[thread].offer = Some(self.value(thread, *value));
                self.threads[thread].state = State::AtShuffle(at, mask);
                // The instruction is executed again when the other lanes have arrived.
                return Ok(());
            }
            action => self.execute(thread, action)?,
        }
        self.threads[thread].next += 1;
        Ok(())
    }

    fn execute(&mut self, thread: usize, action: &Action) -> Result<(), String> {
        let value = |operand: Operand| self.value(thread, operand);
        match action {
            Action::Move { kind, to, from } => {
                let part = kind.bits / to.len().max(from.len()) as u32;
                let mut whole = 0;
                for (i, &operand) in from.iter().enumerate() {
                    let bits = if from.len() > 1 { part } else { kind.bits };
                    whole |= truncate(value(operand), bits) << (i as u32 * part);
                }
                for (i, &operand) in to.iter().enumerate() {
                    let bits = if to.len() > 1 { part } else { kind.bits };
                    self.set(thread, operand, truncate(whole >> (i as u32 * part), bits))?;
                }
                Ok(())
            }
            Action::Load { space, kind, to, base, offset } => {
                let (address, size) = (value(*base).wrapping_add(*offset), kind.bytes());
                let bytes = self.read(*space, address, size * to.len())?.to_vec();
                for (&operand, bytes) in to.iter().zip(bytes.chunks_exact(size)) {
                    let mut wide = [0; 8];
                    wide[..size].copy_from_slice(bytes);
                    let loaded = u64::from_le_bytes(wide);
                    let loaded = match kind.kind {
                        Kind::Signed => sign_extend(loaded, kind.bits) as u64,
                        _ => loaded,
                    };
                    self.set(thread, operand, loaded)?;
                }
                Ok(())
            }
            Action::Store { space, kind, from, base, offset } => {
                let (address, size) = (value(*base).wrapping_add(*offset), kind.bytes());
                let bytes: Vec<u8> = from
                    .iter()
                    .flat_map(|&operand| value(operand).to_le_bytes().into_iter().take(size))
                    .collect();
                self.write(*space, address, &bytes)
            }
            Action::Compute { operation, kind, to, from } => {
                let [a, b, c] = from.map(value);
                let result = compute(*operation, *kind, a, b, c);
                let result =
                    result.ok_or_else(|| format!("{operation:?} of {kind:?} {a:#x}, {b:#x}"))?;
                self.set(thread, *to, result)
            }
            Action::Compare { comparison, kind, to, from, with } => {
                let [a, b] = from.map(value);
                let holds = u64::from(comparison.holds(*kind, a, b));
                let result = match with {
                    None => holds,
                    Some((operation, other)) => {
                        let predicate = crate::types::Type::new(Kind::Predicate, 1);
                        compute(*operation, predicate, holds, value(*other), 0).ok_or("logic")?
                    }
                };
                self.set(thread, *to, result)
            }
            Action::Select { to, from, condition } => {
                let [a, b] = from.map(value);
                let chosen = if value(*condition) & 1 == 1 { a } else { b };
                self.set(thread, *to, chosen)
            }
            Action::Convert { kinds: [wanted, given], rounding, to, from } => {
                let converted = convert(*wanted, *given, *rounding, value(*from));
                let converted = converted
                    .ok_or_else(|| format!("no conversion from {given:?} to {wanted:?}"))?;
                self.set(thread, *to, converted)
            }
            Action::Shuffle { mode, to, in_range, source, clamp, mask, .. } => {
                let (source, clamp) = (value(*source) as usize % WARP, value(*clamp) as usize);
                let mask = value(*mask) as u32;
                let lane = thread % WARP;
                let (chosen, inside) = shuffle_source(*mode, lane, source, clamp);
                if mask >> chosen & 1 == 0 {
                    return Err(format!(
                        "a shuffle reads lane {chosen}, which is outside its mask"
                    ));
                }
                let received = self.offers[thread / WARP][chosen];
                self.threads[thread].offer = None;
                self.set(thread, *to, received)?;
                self.set(thread, *in_range, inside.into())
            }
            Action::Branch(_) | Action::Barrier | Action::Return => Ok(()),
        }
    }

    fn read(&self, space: Space, address: u64, bytes: usize) -> Result<&[u8], String> {
        check_alignment(address, bytes)?;
        match space {
            Space::Global => self.global.read(address, bytes),
            Space::Parameter => within(self.parameters, address, bytes),
            Space::Shared => within(&self.shared, address, bytes),
        }
    }

    fn write(&mut self, space: Space, address: u64, bytes: &[u8]) -> Result<(), String> {
        check_alignment(address, bytes.len())?;
        let memory = match space {
            Space::Global => self.global.write(address, bytes.len())?,
            Space::Parameter => return Err("parameters cannot be written".into()),
            Space::Shared => {
                within(&self.shared, address, bytes.len())?;
                &mut self.shared[address as usize..][..bytes.len()]
            }
        };
        memory.copy_from_slice(bytes);
        Ok(())
    }
}

fn check_alignment(address: u64, bytes: usize) -> Result<(), String> {
    match address.is_multiple_of(bytes as u64) {
        true => Ok(()),
        false => Err(format!("access to {bytes} bytes at {address:#x}, which is not aligned")),
    }
}

fn within(memory: &[u8], address: u64, bytes: usize) -> Result<&[u8], String> {
    let found = memory.get(address as usize..).and_then(|rest| rest.get(..bytes));
    found.ok_or_else(|| format!("access to {bytes} bytes at {address:#x} of {}", memory.len()))
}

/// The lane that a shuffle reads, and whether it is in range. Out of range, a lane reads itself.
/// The clamp has the last lane of a segment in its low bits, and the mask of segments from bit 8
/// on.
fn shuffle_source(mode: Shuffle, lane: usize, source: usize, clamp: usize) -> (usize, bool) {
    let (segments, bound) = (clamp >> 8 & 31, clamp & 31);
    let last = (lane & segments) | (bound & !segments);
    let wanted = match mode {
        Shuffle::Up => lane.wrapping_sub(source),
        Shuffle::Down => lane + source,
        Shuffle::Butterfly => lane ^ source,
        Shuffle::Index => (lane & segments) | (source & !segments),
    };
    let inside = match mode {
        Shuffle::Up => wanted < WARP && wanted >= last,
        _ => wanted <= last,
    };
    if inside { (wanted, true) } else { (lane, false) }
}
