//! Level 3: the PTX that NVRTC makes of the kernels, executed on the CPU.

use cuda_check::case::Case;
use cuda_check::check;
use cuda_check::expected;
use cuda_check::machine::Program;
use cuda_check::mutant::expect_all_caught;
use cuda_check::ptx::PtxMachine;
use cuda_check::{noise, training};
use ptx_machine::Module;
use vmf_kernels::bn_noise::cuda::compile_source;
use vmf_kernels::bn_noise::launches::Storage;

fn module(program: &Program, architecture: &str) -> Module {
    let ptx = compile_source(&program.source, architecture).unwrap();
    Module::parse(&ptx.to_src()).unwrap()
}

/// Runs every case on the oldest and the newest architecture. Those in between run fewer.
fn check_storage(storage: Storage) {
    for architecture in ["compute_75", "compute_120"] {
        let module = module(&Program::new(storage), architecture);
        let machine = &mut PtxMachine::new(&module);
        noise::check(machine).unwrap();
        for case in check::cases() {
            check::case(machine, &case, storage, &[0, 1]).unwrap();
        }
        expected::check(machine, storage).unwrap();
        training::check(machine, storage).unwrap();
    }
}

#[test]
fn f32_agrees_with_the_cpu() {
    check_storage(Storage::F32);
}

#[test]
fn f16_agrees_with_the_cpu() {
    check_storage(Storage::F16);
}

#[test]
fn bf16_agrees_with_the_cpu() {
    check_storage(Storage::Bf16);
}

#[test]
fn architectures_between_agree_with_the_cpu() {
    for architecture in ["compute_80", "compute_86", "compute_89", "compute_90", "compute_100"] {
        let module = module(&Program::new(Storage::F32), architecture);
        let machine = &mut PtxMachine::new(&module);
        let case = Case { multiprocessors: 10, ..Case::new(6, 6, 16) };
        for case in [case, Case::new(40, 6, 49), check::far_from_zero(64)] {
            check::case(machine, &case, Storage::F32, &[0, 1, 2, 3]).unwrap();
        }
    }
}

#[test]
fn every_mutant_is_caught() {
    expect_all_caught(&Program::new(Storage::F32), |mutant| {
        let module = module(mutant, "compute_80");
        check::all(&mut PtxMachine::new(&module))
    });
}
