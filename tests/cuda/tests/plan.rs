//! How the launcher divides the work, and what it refuses.

use vmf_kernels::Error;
use vmf_kernels::bn_noise::launches::{BLOCK, Plan, Pointers, Storage, Tiling};
use vmf_kernels::bn_noise::{Config, Shape};
use vmf_kernels::noise::{Noise, NoiseKey};

/// The multiprocessors of an A100.
const MULTIPROCESSORS: u32 = 108;

fn plan(batch: usize, channels: usize, positions: usize) -> Plan {
    let config = Config::new(Shape::nchw(batch, channels, positions));
    let noise = Noise::new(NoiseKey::default());
    Plan::new(&config, Some((&noise, 1)), Storage::F32, true, MULTIPROCESSORS).unwrap()
}

#[test]
fn channels_are_cut_into_parts_where_they_are_few_and_large() {
    for (batch, channels, positions) in
        [(64, 3, 224 * 224), (64, 64, 1024), (256, 64, 3136), (4096, 10, 1)]
    {
        let launches = plan(batch, channels, positions).forward_train(&Pointers::default());
        assert_eq!(launches.len(), 3, "a merge for ({batch}, {channels}, {positions})");
    }
    for (batch, channels, positions) in [(256, 2048, 49), (64, 2048, 64), (8, 64, 16)] {
        let plan = plan(batch, channels, positions);
        assert_eq!(plan.partials(), 0, "no merge for ({batch}, {channels}, {positions})");
    }
}

#[test]
fn parts_cover_a_tile_and_none_is_empty() {
    for batch in [1, 2, 7, 64, 1000] {
        for channels in [1, 3, 32, 100] {
            for positions in [1, 2, 4, 9, 36, 1023, 4096] {
                let plan = plan(batch, channels, positions);
                let Tiling { part_length, channels_per_tile, parts } = plan.tiling();
                let by_four = positions % 4 == 0;
                let columns = positions as u64 / if by_four { 4 } else { 1 };
                let forward = plan.forward_train(&Pointers::default()).remove(0);
                assert_eq!(forward.kernel.ends_with("by4"), by_four);
                let work = match channels_per_tile {
                    1 => batch as u64 * columns,
                    _ => batch as u64,
                };
                let parts = u64::from(parts);
                assert!(parts * part_length >= work && (parts - 1) * part_length < work);
                // The threads of a block must cover at least one row of a tile of several channels.
                assert!(
                    channels_per_tile == 1
                        || u64::from(channels_per_tile) * columns <= u64::from(BLOCK)
                );
            }
        }
    }
}

#[test]
fn what_the_kernels_cannot_do_is_an_error() {
    let noise = Noise::new(NoiseKey::default());
    let plan =
        |shape, noise| Plan::new(&Config::new(shape), noise, Storage::F16, true, MULTIPROCESSORS);
    assert!(plan(Shape::hwnc(4, 8, 1), None).is_ok());
    assert!(matches!(plan(Shape::hwnc(4, 8, 4), None), Err(Error::Value { name: "layout", .. })));
    assert!(matches!(plan(Shape::nchw(0, 8, 4), None), Err(Error::EmptyShape { .. })));
    assert!(matches!(
        plan(Shape::nchw(1 << 20, 1 << 10, 1 << 5), None),
        Err(Error::TooManyElements { .. })
    ));
    assert!(matches!(
        plan(Shape::nchw(1 << 32, 1, 1), None),
        Err(Error::Value { name: "batch", .. })
    ));
    for groups in [0, 3, 16] {
        assert!(matches!(
            plan(Shape::nchw(4, 8, 4), Some((&noise, groups))),
            Err(Error::SigmaGroups { .. })
        ));
    }
    let folded = Noise::folded(NoiseKey::default(), 100);
    assert!(matches!(plan(Shape::nchw(4, 8, 4), Some((&folded, 1))), Err(Error::Folding { .. })));
}
