//! Level 2: the kernels compiled by NVRTC and assembled by ptxas, for every architecture from sm_75
//! to sm_120.
//!
//! The variable `PTXAS` names the assembler. If it is not set, `ptxas` is searched on the path.

use std::process::Command;

use vmf_kernels::bn_noise::cuda::{compile, compile_source};
use vmf_kernels::bn_noise::launches::{Storage, kernels};

const ARCHITECTURES: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

/// What ptxas reports about a kernel.
struct Usage {
    kernel: String,
    registers: u32,
    /// Bytes of stack, of spilled stores and of spilled loads.
    memory: [u32; 3],
}

fn numbers(line: &str) -> Vec<u32> {
    line.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// Reads the report of `ptxas -v`: the kernel's name, then a line on its memory, then one on its
/// registers.
fn usages(report: &str) -> Vec<Usage> {
    let (mut usages, mut kernel, mut memory) = (Vec::new(), None, None);
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split_once('\'').map(|(name, _)| name.to_string());
        } else if line.contains("bytes stack frame") {
            memory = numbers(line).try_into().ok();
        } else if let Some((_, rest)) = line.split_once("Used ") {
            let (Some(kernel), Some(memory)) = (kernel.take(), memory.take()) else {
                continue;
            };
            let registers = numbers(rest)[0];
            usages.push(Usage { kernel, registers, memory });
        }
    }
    usages
}

fn assemble(ptx: &str, architecture: u32) -> Vec<Usage> {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let input = format!("{folder}/kernels_{architecture}.ptx");
    std::fs::write(&input, ptx).unwrap();
    let ptxas = std::env::var("PTXAS").unwrap_or_else(|_| "ptxas".into());
    let run = Command::new(&ptxas)
        .args(["-v", &format!("-arch=sm_{architecture}"), "-o", "/dev/null", &input])
        .output()
        .unwrap_or_else(|error| panic!("{ptxas} does not start ({error}); set PTXAS"));
    let report = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "sm_{architecture}: {report}");
    usages(&report)
}

#[test]
fn kernels_assemble_without_spills() {
    for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
        for architecture in ARCHITECTURES {
            let ptx = compile(storage, &format!("compute_{architecture}")).unwrap();
            let usages = assemble(&ptx.to_src(), architecture);
            let mut names: Vec<&str> = usages.iter().map(|usage| usage.kernel.as_str()).collect();
            let mut expected = kernels(storage);
            names.sort_unstable();
            expected.sort_unstable();
            assert_eq!(names, expected, "sm_{architecture}");
            let registers: Vec<String> = usages
                .iter()
                .map(|usage| format!("{} {}", usage.kernel, usage.registers))
                .collect();
            println!("sm_{architecture} registers: {}", registers.join(", "));
            for usage in usages {
                assert_eq!(usage.memory, [0; 3], "sm_{architecture}: {} spills", usage.kernel);
                // Three blocks of 256 threads fit if a thread uses at most 85 registers.
                assert!(usage.registers <= 80, "{}: {}", usage.kernel, usage.registers);
            }
        }
    }
}

#[test]
fn an_error_in_the_source_is_reported() {
    let error = compile_source("__global__ void kernel() { nonsense; }", "compute_80").unwrap_err();
    assert!(error.to_string().contains("nonsense"), "{error}");
}
