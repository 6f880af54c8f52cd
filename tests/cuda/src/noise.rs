//! Checks the noise itself: the words of Philox bit for bit, the normals to a tolerance.

use vmf_kernels::bn_noise::launches::{Argument, BLOCK, Launch, NoiseArguments, Problem};
use vmf_kernels::noise::{MAX_ELEMENTS, Noise, NoiseKey, normal, philox4x32_10};

use crate::machine::Machine;

/// How far a normal in `f32` may be from the reference in double precision. |z| is at most 5.8,
/// where one unit in the last place is 5e-7. The logarithm, the root, the sine and the products
/// each add to the error, a few units in total.
pub const TOLERANCE: f64 = 2e-6;

/// Compares the noise of a machine with the CPU's.
pub fn check(machine: &mut impl Machine) -> Result<(), String> {
    check_words(machine)?;
    check_normals(machine)
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

fn check_words(machine: &mut impl Machine) -> Result<(), String> {
    machine.clear();
    let threads = 2 * BLOCK as usize;
    // Arbitrary numbers, with the corner cases 0 and 2^32 - 1 among them.
    let mut inputs: Vec<u32> =
        (0..6 * threads as u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ (i << 7)).collect();
    inputs[..6].fill(0);
    inputs[6..12].fill(u32::MAX);
    let (counters, keys) = inputs.split_at(4 * threads);
    let (at_counters, at_keys) = (machine.upload(&bytes(counters)), machine.upload(&bytes(keys)));
    let at_words = machine.upload(&bytes(&vec![0; 4 * threads]));
    let launch = Launch {
        kernel: "philox_words".into(),
        grid: 2,
        arguments: [at_counters, at_keys, at_words].map(Argument::Pointer).to_vec(),
    };
    machine.launch(&launch, 0)?;
    let actual = words(&machine.download(at_words, 16 * threads));
    for i in 0..threads {
        let counter = std::array::from_fn(|j| counters[4 * i + j]);
        let expected = philox4x32_10(counter, [keys[2 * i], keys[2 * i + 1]]);
        if actual[4 * i..4 * i + 4] != expected {
            return Err(format!("Philox of {counter:08x?} differs from the CPU's"));
        }
    }
    Ok(())
}

/// Checks the start of a tensor and the end of the largest one, with one sample and with several
/// samples folded into it.
fn check_normals(machine: &mut impl Machine) -> Result<(), String> {
    let key = NoiseKey {
        seed: 0xfeed_f00d_dead_beef,
        stream: 7,
        step: 9,
        // Folded samples count on from here, and wrap.
        sample: u32::MAX,
    };
    let last = MAX_ELEMENTS - NORMALS as u64;
    let quarter = NORMALS as u64 / 4;
    for (noise, start) in [
        (Noise::folded(key, quarter), 0),
        (Noise::folded(key, quarter), last),
        (Noise::new(key), last),
        (Noise::folded(key, MAX_ELEMENTS / 2), last),
    ] {
        check_normals_from(machine, &noise, start)?;
    }
    Ok(())
}

const NORMALS: usize = 8 * 4 * BLOCK as usize;

fn check_normals_from(machine: &mut impl Machine, noise: &Noise, start: u64) -> Result<(), String> {
    machine.clear();
    let problem = Problem { noise: NoiseArguments::new(noise, MAX_ELEMENTS), ..Problem::default() };
    let empty = bytes(&vec![u32::MAX; NORMALS]);
    let at_start = machine.upload(&start.to_le_bytes());
    let (by_four, by_one) = (machine.upload(&empty), machine.upload(&empty));
    let pointers = [at_start, by_four, by_one].map(Argument::Pointer);
    let launch = Launch {
        kernel: "noise_normals".into(),
        grid: 8,
        arguments: [&pointers[..], &[Argument::Problem(problem)]].concat(),
    };
    machine.launch(&launch, 0)?;
    for (name, address) in [("four at a time", by_four), ("one by one", by_one)] {
        let actual = words(&machine.download(address, 4 * NORMALS));
        for (i, bits) in (start..).zip(actual) {
            let (key, element) = noise.locate(i);
            let (actual, expected) = (f64::from(f32::from_bits(bits)), normal(key, element));
            if actual.is_nan() || (actual - expected).abs() > TOLERANCE {
                return Err(format!("normal {i}, {name}, is {actual}, not {expected}"));
            }
        }
    }
    Ok(())
}
