//! Checkpoints: resuming bit for bit, refusing what does not fit, and files that are damaged or
//! hostile.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Optimizer, VarMap};
use common::{Model, PLAN, images, named, small_vgg, state, values};
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;
use vmf_candle::prelude::*;

/// The system's allocator, which records the largest request. Reading a small file must not make a
/// large one.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn train(model: &Model, adam: &mut Adam, steps: std::ops::Range<u32>) -> Result<()> {
    for step in steps {
        let (xs, labels) = images(16, 16 * step as usize)?;
        model.step(adam, (&xs, &labels), Pass::train(7, step))?;
    }
    Ok(())
}

fn progress() -> Progress {
    Progress {
        config: json!({ "plan": PLAN }),
        epoch: 1,
        step: 3,
        seed: u64::MAX,
        state: json!({ "best_nll": 0.5 }),
    }
}

#[test]
fn a_resumed_run_continues_bit_for_bit() -> Result<()> {
    let scratch = tempdir()?;
    let path = scratch.path().join("model.safetensors");
    let unbroken = Model::new(1)?;
    let mut optimizer = unbroken.adam()?;
    train(&unbroken, &mut optimizer, 0..3)?;
    let checkpoint =
        Checkpoint::capture(&unbroken.vars, &unbroken.posterior, Some(&optimizer), progress())?;
    checkpoint.save(&path)?;
    train(&unbroken, &mut optimizer, 3..6)?;

    let resumed = Model::new(2)?;
    let mut optimizer = resumed.adam()?;
    assert_ne!(state(&resumed.vars), state(&unbroken.vars));
    let checkpoint = Checkpoint::open(&path)?;
    assert_eq!(checkpoint.progress(), &progress());
    checkpoint.restore(&resumed.vars, &resumed.posterior, Some(&mut optimizer))?;
    train(&resumed, &mut optimizer, 3..6)?;
    assert_eq!(state(&resumed.vars), state(&unbroken.vars));

    // Without the moments it would not.
    let forgetful = Model::new(2)?;
    let mut optimizer = forgetful.adam()?;
    checkpoint.restore(&forgetful.vars, &forgetful.posterior, None)?;
    train(&forgetful, &mut optimizer, 3..6)?;
    assert_ne!(state(&forgetful.vars), state(&unbroken.vars));
    Ok(())
}

#[test]
fn the_file_tells_the_posterior_and_serves_inference() -> Result<()> {
    let scratch = tempdir()?;
    let path = scratch.path().join("model.safetensors");
    let model = Model::new(1)?;
    train(&model, &mut model.adam()?, 0..3)?;
    Checkpoint::capture(&model.vars, &model.posterior, None, progress())?.save(&path)?;
    let checkpoint = Checkpoint::open(&path)?;
    assert_eq!(checkpoint.summary()?, model.posterior.summary()?);

    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let loaded = small_vgg(&PLAN, &Posterior::new(), vb)?;
    let (xs, _) = images(4, 0)?;
    for pass in [Pass::mean(), Pass::sample(3, 1)] {
        let (ours, theirs) = (model.forward(&xs, &pass)?, loaded.forward(&xs, &pass)?);
        assert_eq!(values(&ours), values(&theirs));
    }

    // The `safetensors` crate accepts the file, and saving again writes the same bytes.
    let bytes = std::fs::read(&path)?;
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), named(&model.vars).len());
    checkpoint.save(scratch.path().join("again"))?;
    assert_eq!(bytes, std::fs::read(scratch.path().join("again"))?);
    let left: Vec<_> = std::fs::read_dir(scratch.path())?.collect();
    assert_eq!(left.len(), 2, "a temporary file was left: {left:?}");
    Ok(())
}

/// `golden/version_1.safetensors` was written by version 1 of the format, which called the state of
/// the trainer `metrics`.
#[test]
fn files_of_version_1_open() -> Result<()> {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/version_1.safetensors");
    let checkpoint = Checkpoint::open(golden)?;
    let expected = Progress {
        config: json!({ "width": 4 }),
        epoch: 2,
        step: 17,
        seed: 5,
        state: json!({ "step_in_epoch": 3, "best_nll": 0.25 }),
    };
    assert_eq!(checkpoint.progress(), &expected);

    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let config = VmfConfig::default().relu().sigma_groups(2);
    vmf_linear(3, 4, config, &posterior, seeded(&vars, 1, DType::F32, &Device::Cpu).pp("layer"))?;
    let mut adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
    checkpoint.restore(&vars, &posterior, Some(&mut adam))?;
    assert_eq!(checkpoint.summary()?, posterior.summary()?);
    assert!(adam.state()?.iter().all(|(_, moments)| moments.steps == 1));

    // Saved again, it is a file of the present version with the same contents.
    let scratch = tempdir()?;
    checkpoint.save(scratch.path().join("again"))?;
    let again = Checkpoint::open(scratch.path().join("again"))?;
    assert_eq!(again.progress(), &expected);
    let text = String::from_utf8_lossy(&std::fs::read(scratch.path().join("again"))?).into_owned();
    assert!(text.contains(r#"\"version\":3"#) && text.contains(r#"\"state\""#), "{text}");
    Ok(())
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() -> Result<()> {
    let model = Model::new(1)?;
    let mut optimizer = model.adam()?;
    train(&model, &mut optimizer, 0..1)?;
    let with_moments =
        Checkpoint::capture(&model.vars, &model.posterior, Some(&optimizer), progress())?;
    let without = Checkpoint::capture(&model.vars, &model.posterior, None, progress())?;

    let other = |plan: &[usize], dtype: DType| -> Result<(VarMap, Posterior)> {
        let (vars, posterior) = (VarMap::new(), Posterior::new());
        small_vgg(plan, &posterior, seeded(&vars, 5, dtype, &Device::Cpu))?;
        Ok((vars, posterior))
    };
    for (plan, dtype, expected) in [
        (&[8, 0, 16, 0][..], DType::F32, "features.7"),
        (&[8, 0, 16, 16, 16][..], DType::F32, "features.10"),
        (&[8, 0, 16, 12, 0][..], DType::F32, "it is F32 [10, 12]"),
        (&PLAN[..], DType::F64, "F64"),
    ] {
        let (vars, posterior) = other(plan, dtype)?;
        let mut optimizer = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
        let before = state(&vars);
        let error = with_moments.restore(&vars, &posterior, Some(&mut optimizer)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(state(&vars), before);
        assert_eq!(optimizer.state()?.len(), 0);
    }
    let fresh = Model::new(2)?;
    let before = state(&fresh.vars);
    let error =
        without.restore(&fresh.vars, &fresh.posterior, Some(&mut fresh.adam()?)).unwrap_err();
    assert!(error.to_string().contains("no optimizer state"), "{error}");
    assert_eq!(state(&fresh.vars), before);
    Ok(())
}

#[test]
fn a_failed_save_leaves_the_old_file() -> Result<()> {
    let scratch = tempdir()?;
    let model = Model::new(1)?;
    let checkpoint = Checkpoint::capture(&model.vars, &model.posterior, None, progress())?;
    assert!(checkpoint.save(scratch.path().join("missing/model.safetensors")).is_err());
    // A directory in the place of the file: everything is written but the rename fails.
    let taken = scratch.path().join("taken");
    std::fs::create_dir(&taken)?;
    std::fs::write(taken.join("kept"), "kept")?;
    assert!(checkpoint.save(&taken).is_err());
    assert_eq!(std::fs::read_to_string(taken.join("kept"))?, "kept");
    assert_eq!(std::fs::read_dir(scratch.path())?.count(), 1);
    Ok(())
}

/// A file from its header and data.
fn assemble(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn hostile_files_are_errors() -> Result<()> {
    let scratch = tempdir()?;
    let path = scratch.path().join("hostile");
    let document = r#"{\"format\":\"vmf-checkpoint\",\"version\":1,\"progress\":{},\"layers\":[],\"optimizer_steps\":null}"#;
    let metadata = format!(r#""__metadata__":{{"vmf":"{document}"}}"#);
    let tensor = |name: &str, shape: &str, start: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let sound = format!("{{{metadata},{}}}", tensor("a", "[2]", 0, 8));
    std::fs::write(&path, assemble(&sound, &[0; 8]))?;
    Checkpoint::open(&path)?;

    let a = tensor("a", "[2]", 0, 8);
    let nested = "[".repeat(100_000);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("only 5 bytes", vec![1, 2, 3, 4, 5]),
        ("claims", u64::MAX.to_le_bytes().to_vec()),
        ("claims", [99_000_000u64.to_le_bytes(), [0; 8]].concat()),
        ("header", assemble("not json", &[])),
        ("header", assemble(&nested, &[])),
        ("header", assemble("\"a string\"", &[])),
        ("header", vec![8, 0, 0, 0, 0, 0, 0, 0, 255, 254, 253, 252, 251, 250, 249, 248]),
        ("no vmf document", assemble(&format!("{{{a}}}"), &[0; 8])),
        ("occurs twice", assemble(&format!("{{{metadata},{a},{a}}}"), &[0; 8])),
        ("occurs twice", assemble(&format!("{{{metadata},{metadata},{a}}}"), &[0; 8])),
        ("occurs twice", assemble(r#"{"__metadata__":{"vmf":"1","vmf":"2"}}"#, &[])),
        ("not valid", assemble(r#"{"__metadata__":{"vmf":"{"}}"#, &[])),
        ("not valid", assemble(r#"{"__metadata__":{"vmf":"[]"}}"#, &[])),
        ("header", assemble(r#"{"__metadata__":{"vmf":3}}"#, &[])),
        ("format", assemble(r#"{"__metadata__":{"vmf":"{\"format\":\"x\",\"version\":1}"}}"#, &[])),
        ("version 4", assemble(&format!("{{{}}}", metadata.replace(r#"\":1"#, r#"\":4"#)), &[])),
        ("checksum is missing", assemble(&sound.replace(r#"\":1"#, r#"\":3"#), &[0; 8])),
        ("version 0", assemble(&format!("{{{}}}", metadata.replace(r#"\":1"#, r#"\":0"#)), &[])),
        ("belong to no tensor", assemble(&sound, &[0; 9])),
        ("past the end", assemble(&sound, &[0; 7])),
        (
            "overlaps",
            assemble(&format!("{{{metadata},{a},{}}}", tensor("b", "[2]", 4, 12)), &[0; 12]),
        ),
        (
            "overlaps",
            assemble(&format!("{{{metadata},{a},{}}}", tensor("b", "[2]", 0, 8)), &[0; 8]),
        ),
        ("gap", assemble(&format!("{{{metadata},{a},{}}}", tensor("b", "[2]", 9, 17)), &[0; 17])),
        (
            "the header says",
            assemble(&format!("{{{metadata},{}}}", tensor("a", "[3]", 0, 8)), &[0; 8]),
        ),
        (
            "the header says",
            assemble(
                &format!(
                    "{{{metadata},{}}}",
                    tensor("a", "[4611686018427387904,4611686018427387904,0]", 0, 0)
                ),
                &[],
            ),
        ),
        (
            "the header says",
            assemble(
                &format!("{{{metadata},{}}}", tensor("a", "[9223372036854775808,2]", 0, 8)),
                &[0; 8],
            ),
        ),
        (
            "past the end",
            assemble(&format!("{{{metadata},{}}}", tensor("a", "[2]", 0, 1 << 60)), &[0; 8]),
        ),
        ("dtype", assemble(&format!("{{{metadata},{}}}", a.replace("F32", "F33")), &[0; 8])),
        ("header", assemble(&format!("{{{metadata},{}}}", a.replace("[2]", "[-2]")), &[0; 8])),
        (
            "header",
            assemble(&format!("{{{metadata},{}}}", a.replace("[2]", "[2],\"x\":1")), &[0; 8]),
        ),
        (
            "belongs to no parameter",
            assemble(
                &format!("{{{metadata},{}}}", tensor("optimizer.first.a", "[2]", 0, 8)),
                &[0; 8],
            ),
        ),
        (
            "is missing",
            assemble(&format!("{{{},{a}}}", metadata.replace("null", r#"{\"a\":1}"#)), &[0; 8]),
        ),
    ];
    for (expected, bytes) in cases {
        LARGEST.store(0, Ordering::Relaxed);
        std::fs::write(&path, &bytes)?;
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        let expected = if expected == "empty" { "only 0 bytes" } else { expected };
        assert!(error.contains(expected), "expected {expected:?}: {error}");
    }
    assert!(Checkpoint::open(scratch.path().join("absent")).is_err());
    assert!(Checkpoint::open(scratch.path()).is_err());
    Ok(())
}

/// A seeded generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

/// One to four damages: flipped bits, cuts, repeated pieces, numbers made huge, bytes of the header
/// replaced.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap())
            .min(bytes.len() as u64 - 8) as usize;
        let at = random.below(bytes.len());
        let in_header = 8 + random.below(header - 8);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[in_header.min(at)] ^= 1 << random.below(8),
            2 => bytes.truncate(at.max(16)),
            3 => bytes[random.below(8)] = random.below(256) as u8,
            4 => {
                let end = (in_header + random.below(200)).min(bytes.len());
                let piece = bytes[in_header..end].to_vec();
                bytes.splice(in_header..in_header, piece);
            }
            5 => {
                let digits = (8..header).filter(|i| bytes[*i].is_ascii_digit()).collect::<Vec<_>>();
                if let Some(&digit) = digits.get(random.below(digits.len())) {
                    let more = vec![b'9'; random.below(25)];
                    bytes.splice(digit..digit, more);
                }
            }
            6 => {
                let end = (in_header + random.below(30)).min(bytes.len());
                bytes.drain(in_header..end);
            }
            _ => bytes[in_header] = b"{}[]\",:0-e."[random.below(11)],
        }
        if bytes.len() < 16 {
            bytes.resize(16, 0);
        }
    }
    // Half of the time the length of the header is corrected, so that damage gets past that check.
    if random.below(2) == 0
        && let Some(end) = bytes.windows(2).rposition(|pair| pair == b"}}")
    {
        let length = (end + 2).saturating_sub(8) as u64;
        bytes[..8].copy_from_slice(&length.to_le_bytes());
    }
}

#[test]
fn thousands_of_damaged_files_neither_panic_nor_allocate_what_they_claim() -> Result<()> {
    let scratch = tempdir()?;
    let path = scratch.path().join("mutant");
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F32, &Device::Cpu);
    let network = small_vgg(&[2, 0], &posterior, vb)?;
    let mut optimizer = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
    let (xs, labels) = images(4, 0)?;
    let nll = cross_entropy(&network.forward(&xs, &Pass::train(1, 0))?, &labels)?;
    optimizer.backward_step(&nll)?;
    let checkpoint = Checkpoint::capture(&vars, &posterior, Some(&optimizer), progress())?;
    checkpoint.save(&path)?;
    let sound = std::fs::read(&path)?;
    let before = state(&vars);

    let mut random = Random(1);
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..4000 {
        let mut bytes = sound.clone();
        mutate(&mut bytes, &mut random);
        if bytes == sound {
            continue;
        }
        std::fs::write(&path, &bytes)?;
        LARGEST.store(0, Ordering::Relaxed);
        let opened = Checkpoint::open_unverified(&path);
        let largest = LARGEST.load(Ordering::Relaxed);
        // Other tests run beside this one and allocate too, but none near a megabyte.
        assert!(largest < 64 * bytes.len() + (1 << 20), "round {round}: {largest} bytes");
        assert!(Checkpoint::open(&path).is_err(), "round {round}: the checksum hides the damage");
        match opened {
            Err(_) => refused += 1,
            Ok(mutant) => match mutant.restore(&vars, &posterior, Some(&mut optimizer)) {
                Err(_) => {
                    refused += 1;
                    assert_eq!(state(&vars), before, "round {round}");
                }
                // Damage to a number inside a tensor or a string looks like another value, which
                // only the checksum shows.
                Ok(()) => {
                    accepted += 1;
                    checkpoint.restore(&vars, &posterior, Some(&mut optimizer))?;
                }
            },
        }
    }
    assert!(refused > 3000, "{refused} refused, {accepted} accepted");
    assert!(
        accepted > 10,
        "{refused} refused, {accepted} accepted: nothing got past the first check"
    );
    Ok(())
}

#[test]
fn tensors_of_every_dtype_survive() -> Result<()> {
    let scratch = tempdir()?;
    let path = scratch.path().join("model");
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let vars = VarMap::new();
        let vb = seeded(&vars, 5, dtype, &Device::Cpu);
        vb.get_with_hints((3, 5), "w", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
        vb.get((0, 4), "empty")?;
        vb.get((), "scalar")?;
        Checkpoint::capture(&vars, &Posterior::new(), None, Progress::default())?.save(&path)?;
        let before = state(&vars);
        for (_, var) in named(&vars) {
            var.set(&Tensor::ones(var.shape(), dtype, &Device::Cpu)?)?;
        }
        Checkpoint::open(&path)?.restore(&vars, &Posterior::new(), None)?;
        assert_eq!(state(&vars), before);
    }
    Ok(())
}
