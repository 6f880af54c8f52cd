//! Level 1: the CUDA source, executed on the CPU through the shim.
#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::sync::LazyLock;

use cuda_check::case::{self, Case};
use cuda_check::check;
use cuda_check::expected;
use cuda_check::host::{HostMachine, HostProgram};
use cuda_check::machine::{Machine, Program};
use cuda_check::mutant::expect_all_caught;
use cuda_check::{noise, training};
use vmf_kernels::bn_noise::launches::{Argument, BLOCK, Launch, Storage};

fn compiled(storage: Storage) -> HostProgram {
    HostProgram::compile(&Program::new(storage)).unwrap()
}

/// Compiled once for all tests that use it.
fn single_precision() -> &'static HostProgram {
    static PROGRAM: LazyLock<HostProgram> = LazyLock::new(|| compiled(Storage::F32));
    &PROGRAM
}

#[test]
fn noise_agrees_with_the_cpu() {
    let program = single_precision();
    noise::check(&mut HostMachine::new(program)).unwrap();
}

/// Checks every case in two orders of the threads, which must give the same bits.
fn check_storage(program: &HostProgram, storage: Storage) {
    let machine = &mut HostMachine::new(program);
    for case in check::cases() {
        check::case(machine, &case, storage, &[0, 1]).unwrap();
    }
    expected::check(machine, storage).unwrap();
    training::check(machine, storage).unwrap();
}

#[test]
fn f32_agrees_with_the_cpu() {
    check_storage(single_precision(), Storage::F32);
}

#[test]
fn f16_agrees_with_the_cpu() {
    check_storage(&compiled(Storage::F16), Storage::F16);
}

#[test]
fn bf16_agrees_with_the_cpu() {
    check_storage(&compiled(Storage::Bf16), Storage::Bf16);
}

#[test]
fn a_mean_much_larger_than_the_deviation_is_no_problem() {
    let program = single_precision();
    for positions in [1, 63, 64] {
        let machine = &mut HostMachine::new(program);
        check::case(machine, &check::far_from_zero(positions), Storage::F32, &[0]).unwrap();
    }
}

#[test]
fn many_schedules_give_the_same_bits() {
    let program = single_precision();
    let machine = &mut HostMachine::new(program);
    for (batch, channels, positions) in [(40, 6, 16), (3, 2, 1023), (70, 40, 1)] {
        let case = Case { multiprocessors: 10, ..Case::new(batch, channels, positions) };
        let orders: Vec<u32> = (0..8).collect();
        check::case(machine, &case, Storage::F32, &orders).unwrap();
    }
}

#[test]
fn every_mutant_is_caught() {
    expect_all_caught(&Program::new(Storage::F32), |mutant| {
        let compiled = HostProgram::compile(mutant).unwrap();
        check::all(&mut HostMachine::new(&compiled))
    });
}

#[test]
fn swapped_launch_arguments_are_caught() {
    let program = single_precision();
    let (case, storage) = (Case::new(6, 4, 16), Storage::F32);
    let counts = RefCell::new(Vec::new());
    case::run(&mut HostMachine::new(program), &case, storage, 0, |launches| {
        let pointers = |launch: &Launch| {
            let addresses = launch.arguments.iter().map_while(|argument| match argument {
                Argument::Pointer(address) => Some(*address),
                _ => None,
            });
            addresses.collect::<Vec<u64>>()
        };
        *counts.borrow_mut() = launches.iter().map(pointers).collect();
    })
    .unwrap();
    // Swap each pair of neighbouring pointers of every launch. An optional tensor that is not there
    // is null, and a kernel that is given it in place of another would end the process.
    for (launch, pointers) in counts.into_inner().into_iter().enumerate() {
        for pair in (1..pointers.len()).filter(|&pair| !pointers[pair - 1..=pair].contains(&0)) {
            let machine = &mut HostMachine::new(program);
            let found = case::run(machine, &case, storage, 0, |launches| {
                launches[launch].arguments.swap(pair - 1, pair);
            })
            .and_then(|outcome| check::compare(&case, storage, &outcome));
            assert!(found.is_err(), "launch {launch}: arguments {} and {pair}", pair - 1);
        }
    }
}

#[test]
fn swapped_arguments_of_expected_activations_are_caught() {
    let (program, storage) = (single_precision(), Storage::F32);
    for case in expected::cases().into_iter().filter(|case| case.image == [4, 4]) {
        // The first launch prepares three statistics, the second takes four tensors.
        for (launch, pointers) in [(0, 3), (1, 4)] {
            for pair in 1..pointers {
                let machine = &mut HostMachine::new(program);
                let found = case
                    .run(machine, storage, 0, |launches| {
                        launches[launch].arguments.swap(pair - 1, pair);
                    })
                    .and_then(|y| case.compare(storage, &y));
                assert!(found.is_err(), "{case:?} launch {launch}: {} and {pair}", pair - 1);
            }
        }
    }
}

/// Kernels with defects that the shim must report.
#[test]
fn the_shim_reports_undefined_behaviour() {
    let defects = [
        (
            "a barrier is not reached by all threads",
            "if (threadIdx.x < 100) return; __syncthreads();",
        ),
        (
            "threads wait at different barriers",
            "if (threadIdx.x < 100) {\n __syncthreads();\n } else {\n __syncthreads();\n }",
        ),
        (
            "names a lane that does not exist or has exited",
            "if (threadIdx.x == 7) return; __shfl_down_sync(ALL_LANES, 1.0f, 1);",
        ),
        ("whose mask leaves it out", "__shfl_down_sync(0x0000ffffu, 1.0f, 1);"),
        ("wrote outside a buffer", "out[BLOCK] = 1.0f;"),
    ];
    for (message, body) in defects {
        let program = Program {
            kernels: vec!["defect".into()],
            source: Program::new(Storage::F32).source
                + &format!("extern \"C\" __global__ void defect(float *out) {{ {body} }}"),
        };
        let compiled = HostProgram::compile(&program).unwrap();
        let mut machine = HostMachine::new(&compiled);
        let out = machine.upload(&[0; 4 * BLOCK as usize]);
        let launch =
            Launch { kernel: "defect".into(), grid: 1, arguments: vec![Argument::Pointer(out)] };
        let error = machine.launch(&launch, 0).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}
