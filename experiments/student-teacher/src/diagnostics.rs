//! Diagnostics that tell whether Markov chains have converged.

/// The effective number of independent draws in all chains: the number of draws over the
/// autocorrelation time, which is summed over pairs of lags as long as the sums of pairs are
/// positive (Geyer's initial positive sequence).
pub fn effective_size(chains: &[Vec<f64>]) -> f64 {
    chains.iter().map(|chain| effective_size_of_one(chain)).sum()
}

fn effective_size_of_one(chain: &[f64]) -> f64 {
    let count = chain.len() as f64;
    let mean = chain.iter().sum::<f64>() / count;
    let autocovariance = |lag: usize| {
        let pairs = chain.iter().zip(&chain[lag..]);
        pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / count
    };
    let variance = autocovariance(0);
    if variance == 0.0 {
        return count;
    }
    let mut time = -1.0;
    for pair in 0..chain.len() / 2 {
        let sum = (autocovariance(2 * pair) + autocovariance(2 * pair + 1)) / variance;
        if sum <= 0.0 {
            break;
        }
        time += 2.0 * sum;
    }
    count / time.max(1.0)
}

/// Split R-hat (Gelman et al., Bayesian Data Analysis): the standard deviation of all draws over
/// that within halves of chains. It is 1 if the chains agree.
pub fn split_r_hat(chains: &[Vec<f64>]) -> f64 {
    let halves: Vec<&[f64]> = chains
        .iter()
        .flat_map(|chain| {
            let half = chain.len() / 2;
            [&chain[..half], &chain[half..2 * half]]
        })
        .collect();
    let count = halves[0].len() as f64;
    let (means, variances): (Vec<f64>, Vec<f64>) =
        halves.iter().map(|half| mean_and_variance(half)).unzip();
    let within = variances.iter().sum::<f64>() / variances.len() as f64;
    let (_, between) = mean_and_variance(&means);
    ((count - 1.0) / count + between / within).sqrt()
}

/// The mean, and the unbiased variance (zero for a single value).
pub fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, squares / (count - 1.0).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Purpose, generator, normals};

    /// An autoregressive chain `x <- r x + z` has the autocorrelation time `(1 + r) / (1 - r)`.
    fn autoregressive(r: f64, seed: u64) -> Vec<f64> {
        let mut x = 0.0;
        normals(40_000, &mut generator(seed, Purpose::Gaussian))
            .into_iter()
            .map(|z| {
                x = r * x + z;
                x
            })
            .collect()
    }

    #[test]
    fn the_effective_size_is_that_of_a_known_chain() {
        for r in [0.0, 0.5, 0.9] {
            let chains = [autoregressive(r, 1), autoregressive(r, 2)];
            let expected = 80_000.0 * (1.0 - r) / (1.0 + r);
            let ratio = effective_size(&chains) / expected;
            assert!((ratio - 1.0).abs() < 0.15, "r {r}: {ratio}");
        }
    }

    #[test]
    fn r_hat_tells_chains_that_disagree() {
        let same = [autoregressive(0.5, 1), autoregressive(0.5, 2)];
        assert!((split_r_hat(&same) - 1.0).abs() < 0.01);
        let shifted: Vec<f64> = same[1].iter().map(|x| x + 2.0).collect();
        assert!(split_r_hat(&[same[0].clone(), shifted]) > 1.2);
    }
}
