//! What a learned noise scale says about the weights of a layer:
//! `cargo run -p vmf-core --example noise_of_layers`.
//!
//! Each row is a noise scale `sigma_eff` in a layer of VGG16. The expected cosine says how far a
//! sampled filter points along the mean filter, `kappa` is the concentration of its distribution on
//! the sphere, and the KL is what one filter pays for it in the training objective.

use vmf_core::{Sphere, expected_cosine};

fn main() -> Result<(), vmf_core::Error> {
    println!("layer        inputs  sigma_eff  expected cosine       kappa  KL per filter (nats)");
    for (layer, inputs) in [("first", 27), ("third", 576), ("last", 4608)] {
        let sphere = Sphere::new(inputs)?;
        for sigma_eff in [0.1, 0.5, 2.0, 10.0] {
            println!(
                "{layer:12} {inputs:6} {sigma_eff:10} {:16.4} {:11.1} {:21.2}",
                expected_cosine(sigma_eff),
                sphere.kappa_from_sigma_eff(sigma_eff),
                sphere.kl_approx(sigma_eff),
            );
        }
    }
    Ok(())
}
