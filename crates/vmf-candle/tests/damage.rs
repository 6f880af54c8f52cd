//! Checkpoints that a disk has damaged, and values that no network can use.

mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Optimizer, VarMap};
use common::{heard, images, named, small_vgg};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use vmf_candle::prelude::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A path for a file, in a folder that is removed in the end.
struct Scratch(PathBuf, #[expect(dead_code, reason = "dropping it removes the folder")] TempDir);

impl Scratch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self(folder.path().join("checkpoint"), folder)
    }

    /// Whether these bytes open as a checkpoint.
    fn opens(&self, bytes: &[u8]) -> bool {
        std::fs::write(&self.0, bytes).unwrap();
        Checkpoint::open(&self.0).is_ok()
    }
}

/// A small network after one step of training, and its optimizer.
fn trained() -> Result<(VarMap, Posterior, Adam)> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, 5, DType::F32, &Device::Cpu);
    let network = small_vgg(&[2, 0], &posterior, vb)?;
    let mut adam = Adam::for_model(&vars, &posterior, AdamConfig::default())?;
    let (xs, labels) = images(4, 0)?;
    adam.backward_step(&cross_entropy(&network.forward(&xs, &Pass::train(1, 0))?, &labels)?)?;
    Ok((vars, posterior, adam))
}

fn saved(scratch: &Scratch) -> Result<Vec<u8>> {
    let (vars, posterior, adam) = trained()?;
    let progress = Progress { seed: 3, ..Progress::default() };
    Checkpoint::capture(&vars, &posterior, Some(&adam), progress)?.save(&scratch.0)?;
    Ok(std::fs::read(&scratch.0)?)
}

/// The checksum is the SHA-256 of the file with the checksum's own digits read as zeros, so that
/// any program can compare it.
#[test]
fn the_checksum_is_that_of_the_whole_file() -> Result<()> {
    let scratch = Scratch::new();
    let mut bytes = saved(&scratch)?;
    let key = br#""sha256":""#;
    let start = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len();
    let digits = String::from_utf8(bytes[start..start + 64].to_vec()).unwrap();
    bytes[start..start + 64].fill(b'0');
    let expected: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digits, expected);
    assert!(Checkpoint::open(&scratch.0)?.is_verified());
    // Written by Python's `json` and `hashlib`.
    assert!(Checkpoint::open(golden("version_3.safetensors"))?.is_verified());
    Ok(())
}

#[test]
fn every_flipped_bit_is_noticed() -> Result<()> {
    let scratch = Scratch::new();
    let sound = saved(&scratch)?;
    assert!(scratch.opens(&sound));
    // 61 has no factor in common with 8, so that each bit of a byte has its turn.
    for bit in (0..8 * sound.len()).step_by(61) {
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!scratch.opens(&bytes), "bit {bit} of {}", 8 * sound.len());
    }
    Ok(())
}

#[test]
fn zeroed_and_random_blocks_are_noticed() -> Result<()> {
    let scratch = Scratch::new();
    let sound = saved(&scratch)?;
    let mut state = 1u64;
    for size in [4, 64, 512] {
        for start in (0..sound.len() - size).step_by(2 * size - 3) {
            let mut zeroed = sound.clone();
            zeroed[start..start + size].fill(0);
            let mut random = sound.clone();
            for byte in &mut random[start..start + size] {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            for bytes in [zeroed, random] {
                assert!(bytes == sound || !scratch.opens(&bytes), "{size} bytes at {start}");
            }
        }
    }
    // A copy that was cut short, and one that was cut short and filled up.
    for end in (0..sound.len()).step_by(101) {
        let mut bytes = sound[..end].to_vec();
        assert!(!scratch.opens(&bytes), "the first {end} bytes");
        bytes.resize(sound.len(), 0);
        assert!(bytes == sound || !scratch.opens(&bytes), "the first {end} bytes, then zeros");
    }
    Ok(())
}

#[test]
fn the_error_says_that_the_file_is_damaged_and_the_check_can_be_skipped() -> Result<()> {
    let scratch = Scratch::new();
    let mut bytes = saved(&scratch)?;
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(!scratch.opens(&bytes));
    let error = Checkpoint::open(&scratch.0).unwrap_err();
    assert!(matches!(error, vmf_candle::Error::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("SHA-256"), "{error}");
    let unverified = Checkpoint::open_unverified(&scratch.0)?;
    assert!(!unverified.is_verified());
    assert_eq!(unverified.progress().seed, 3);
    Ok(())
}

/// `golden/version_2.safetensors` was written by version 2 of the format.
#[test]
fn files_without_a_checksum_open_with_a_warning() -> Result<()> {
    for name in ["version_1.safetensors", "version_2.safetensors"] {
        let mut opened = None;
        let said = heard(|| {
            opened = Some(Checkpoint::open(golden(name))?);
            Ok(())
        });
        assert!(said.contains("has no checksum") && said.contains(name), "{said}");
        let checkpoint = opened.unwrap();
        assert!(!checkpoint.is_verified());
        assert_eq!((checkpoint.progress().epoch, checkpoint.progress().step), (2, 17));
        // Saved again, it has one.
        let scratch = Scratch::new();
        checkpoint.save(&scratch.0)?;
        let said = heard(|| {
            assert!(Checkpoint::open(&scratch.0)?.is_verified());
            Ok(())
        });
        assert_eq!(said, "");
    }
    Ok(())
}

#[test]
fn values_that_are_not_finite_are_not_saved() -> Result<()> {
    let scratch = Scratch::new();
    let sound = saved(&scratch)?;
    let (vars, posterior, mut adam) = trained()?;
    let save = |vars: &VarMap, adam: &Adam| -> String {
        let checkpoint =
            Checkpoint::capture(vars, &posterior, Some(adam), Progress::default()).unwrap();
        checkpoint.save(&scratch.0).unwrap_err().to_string()
    };
    for (name, var) in named(&vars) {
        let before = var.as_detached_tensor().copy()?;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = before.flatten_all()?.to_vec1::<f32>()?;
            *values.last_mut().unwrap() = bad;
            var.set(&Tensor::from_vec(values, before.shape(), &Device::Cpu)?)?;
            let error = save(&vars, &adam);
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
        var.set(&before)?;
    }
    let mut state = adam.state()?;
    state[0].1.second = (&state[0].1.second + f64::INFINITY)?;
    let name = format!("the moments of {:?}", state[0].0);
    adam.load_state(state)?;
    assert!(save(&vars, &adam).contains(&name));
    // The file that was there is still there.
    assert!(std::fs::read(&scratch.0)? == sound);
    Ok(())
}

#[test]
fn values_that_are_not_finite_do_not_load() -> Result<()> {
    let scratch = Scratch::new();
    // Without a checksum, so that the values alone are what is wrong.
    let sound = std::fs::read(golden("version_2.safetensors"))?;
    let tensors = safetensors::SafeTensors::deserialize(&sound).unwrap();
    assert!(scratch.opens(&sound));
    let mut tried = 0;
    for (name, view) in tensors.iter() {
        let start = view.data().as_ptr() as usize - sound.as_ptr() as usize;
        let wide = view.dtype() == safetensors::Dtype::F64;
        let values = [f64::NAN, f64::INFINITY, -1e30];
        for value in if name.ends_with("_var") { &values[..] } else { &values[..2] } {
            let mut bytes = sound.clone();
            match wide {
                true => bytes[start..start + 8].copy_from_slice(&value.to_le_bytes()),
                false => bytes[start..start + 4].copy_from_slice(&(*value as f32).to_le_bytes()),
            }
            std::fs::write(&scratch.0, &bytes)?;
            let error = Checkpoint::open(&scratch.0).unwrap_err().to_string();
            let named = name.trim_start_matches("optimizer.first.");
            let named = named.trim_start_matches("optimizer.second.");
            let is_covariance = name == "posterior.output_covariance";
            assert!(error.contains(named) || is_covariance, "{name}: {error}");
            tried += 1;
        }
    }
    assert!(tried >= 20, "{tried}");
    Ok(())
}
