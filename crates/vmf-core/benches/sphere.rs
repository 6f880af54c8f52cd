//! Cost of the functions that a training loop or a sampler calls: `cargo bench -p vmf-core`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use vmf_core::{Sphere, VonMisesFisher};

const DIMS: [usize; 4] = [3, 27, 576, 1_000_000];

fn functions(criterion: &mut Criterion) {
    type Function = fn(&Sphere, f64) -> f64;
    let functions: [(&str, Function); 5] = [
        ("A", Sphere::mean_resultant_length),
        ("KL", Sphere::kl),
        ("ln C", Sphere::log_normalizer),
        ("KL_approx", Sphere::kl_approx),
        ("kappa from sigma_eff", Sphere::kappa_from_sigma_eff),
    ];
    for (name, function) in functions {
        let mut group = criterion.benchmark_group(name);
        for dim in DIMS {
            let sphere = Sphere::new(dim).expect("at least two dimensions");
            // A concentration where every term counts; as a sigma_eff it is merely large or small.
            let argument = if name.contains("KL_approx") || name.contains("sigma") {
                0.5
            } else {
                0.7 * dim as f64
            };
            group.bench_function(BenchmarkId::from_parameter(dim), |bencher| {
                bencher.iter(|| function(black_box(&sphere), black_box(argument)));
            });
        }
    }
}

fn sampling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sample");
    for dim in [3, 27, 576, 4608] {
        let mut mean = vec![0.0; dim];
        mean[0] = 1.0;
        let q = VonMisesFisher::new(mean, dim as f64).expect("a unit vector");
        let mut rng = Pcg64::seed_from_u64(1);
        let mut w = vec![0.0; dim];
        group.throughput(Throughput::Elements(dim as u64));
        group.bench_function(BenchmarkId::from_parameter(dim), |bencher| {
            bencher.iter(|| {
                q.sample_into(&mut rng, black_box(&mut w)).expect("the buffer has the right length")
            });
        });
    }
}

criterion_group!(benches, functions, sampling);
criterion_main!(benches);
