//! What the passes have gathered, merged over the processes that share the batch.

use super::accumulate::{Sums, Welford};
use crate::across::Across;
use crate::error::Error;

/// Merges the moments of every channel:
/// ```text
/// n = sum of n_r,   mean = sum of n_r mean_r / n,   M2 = sum of (M2_r + n_r mean_r^2) - n mean^2
/// ```
pub(super) fn merge_moments(across: Across, channels: &mut [Welford]) -> Result<(), Error> {
    if across.is_alone() {
        return Ok(());
    }
    let mut sums: Vec<f64> = Vec::with_capacity(2 * channels.len() + 1);
    sums.push(channels.first().map_or(0.0, |channel| channel.count));
    sums.extend(channels.iter().map(|channel| channel.count * channel.mean));
    sums.extend(channels.iter().map(|c| c.squares + c.count * c.mean * c.mean));
    across.sum(&mut sums)?;
    let (count, sums) = (sums[0], &sums[1..]);
    let (first, second) = sums.split_at(channels.len());
    for ((channel, first), second) in channels.iter_mut().zip(first).zip(second) {
        let mean = first / count;
        *channel = Welford { count, mean, squares: (second - first * mean).max(0.0) };
    }
    Ok(())
}

/// The sums of g and g xhat over the processes, and the elements they were taken over. The sums of
/// g z stay those of this process: they are the gradient of a parameter, which is added up with all
/// others.
pub(super) fn merge_sums(
    across: Across,
    elements: usize,
    sums: &[Sums],
) -> Result<(Vec<Sums>, f64), Error> {
    let mut values: Vec<f64> = Vec::with_capacity(2 * sums.len() + 1);
    values.push(elements as f64);
    values.extend(sums.iter().map(|sums| sums.g));
    values.extend(sums.iter().map(|sums| sums.g_xhat));
    across.sum(&mut values)?;
    let (g, g_xhat) = values[1..].split_at(sums.len());
    let merged = g.iter().zip(g_xhat).map(|(&g, &g_xhat)| Sums { g, g_xhat, g_z: 0.0 });
    Ok((merged.collect(), values[0]))
}
