//! Batches of images, shuffled, augmented and normalized by a thread of their own while the network
//! computes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use candle_core::{Device, Tensor};

use super::random::{Draws, below};
use super::{Dataset, Shape, Split};

/// Number of batches that are prepared in advance. More would only cost memory.
const AHEAD: usize = 4;

/// The largest shift of a crop in pixels.
const MARGIN: i32 = 4;

/// Normalized images with their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    images: Vec<f32>,
    labels: Vec<u32>,
    shape: Shape,
}

impl Batch {
    /// These images of a split, without augmentation.
    pub fn of(set: &Dataset, split: &Split, places: &[u32]) -> Self {
        Self::views(split, set.shape, &set.normalization.tables(), None, places)
    }

    fn views(
        split: &Split,
        shape: Shape,
        tables: &[[f32; 256]],
        views: Option<Views>,
        places: &[u32],
    ) -> Self {
        let mut images = Vec::with_capacity(places.len() * shape.pixels());
        let mut labels = Vec::with_capacity(places.len());
        for &place in places {
            let pixels = &split.images[place as usize * shape.pixels()..][..shape.pixels()];
            let view = views.map_or(View::WHOLE, |views| views.of(place));
            view.normalize(pixels, shape, tables, &mut images);
            labels.push(u32::from(split.labels[place as usize]));
        }
        Self { images, labels, shape }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The labels.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Images of shape (N, channels, height, width) and labels of shape (N).
    pub fn into_tensors(self, device: &Device) -> candle_core::Result<(Tensor, Tensor)> {
        let Shape { channels, size } = self.shape;
        let count = self.labels.len();
        let images = Tensor::from_vec(self.images, (count, channels, size, size), device)?;
        Ok((images, Tensor::from_vec(self.labels, count, device)?))
    }
}

/// How batches are made of the training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of images per batch. Images that do not fill a batch at the end of an epoch are left
    /// out; since the order differs between epochs, these are different images each time.
    pub batch: usize,
    /// Seed of the order and of the augmentation.
    pub seed: u64,
    /// Whether images are shifted by up to four pixels and, if that preserves classes, mirrored.
    pub augment: bool,
}

/// A stream of batches, which a thread of its own prepares. Dropping it ends the thread.
#[derive(Debug)]
pub struct Batches {
    receiver: Receiver<Batch>,
}

impl Iterator for Batches {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        self.receiver.recv().ok()
    }
}

impl Batches {
    /// The training batches of an epoch from number `first` on, for a run that is resumed within an
    /// epoch.
    pub fn training(set: &Dataset, plan: Plan, epoch: u32, first: usize) -> Self {
        Self::training_share(set, plan, 0..plan.batch, epoch, first)
    }

    /// The same, with only these places of each batch, for one of several processes that share it.
    pub fn training_share(
        set: &Dataset,
        plan: Plan,
        share: Range<usize>,
        epoch: u32,
        first: usize,
    ) -> Self {
        let order = Draws::new(plan.seed, "data.order", epoch).permutation(set.train.len());
        let views = Views::of_epoch(set, plan, epoch);
        let whole = order.len() / plan.batch.max(1);
        let places = (first..whole).map(move |number| {
            let start = number * plan.batch;
            order[start + share.start..start + share.end].to_vec()
        });
        Self::start(set, set.train.clone(), views, places)
    }

    /// All training images in order, as the first epoch sees them: augmented, if training augments.
    pub fn as_trained(set: &Dataset, plan: Plan) -> Self {
        let places = in_order(set.train.len(), plan.batch);
        Self::start(set, set.train.clone(), Views::of_epoch(set, plan, 0), places)
    }

    /// All images of a split in order and without augmentation; the last batch may be smaller.
    pub fn in_order(set: &Dataset, split: &Arc<Split>, batch: usize) -> Self {
        Self::start(set, split.clone(), None, in_order(split.len(), batch))
    }

    fn start(
        set: &Dataset,
        split: Arc<Split>,
        views: Option<Views>,
        batches: impl Iterator<Item = Vec<u32>> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mpsc::sync_channel(AHEAD);
        let (shape, tables) = (set.shape, set.normalization.tables());
        std::thread::spawn(move || {
            for places in batches {
                let batch = Batch::views(&split, shape, &tables, views, &places);
                if sender.send(batch).is_err() {
                    return;
                }
            }
        });
        Self { receiver }
    }
}

/// The indices of all images in batches, in order.
fn in_order(images: usize, batch: usize) -> impl Iterator<Item = Vec<u32>> + Send + 'static {
    let (count, batch) = (images as u32, batch.max(1));
    let starts = (0..count).step_by(batch);
    starts.map(move |start| (start..count.min(start + batch as u32)).collect())
}

/// The random view of each image in an epoch.
#[derive(Clone, Copy, Debug)]
struct Views {
    draws: Draws,
    mirrors: bool,
}

impl Views {
    /// The views of an epoch; `None` without augmentation.
    fn of_epoch(set: &Dataset, plan: Plan, epoch: u32) -> Option<Self> {
        plan.augment.then(|| Self {
            draws: Draws::new(plan.seed, "data.augmentation", epoch),
            mirrors: set.mirrors,
        })
    }

    /// One of the 9 x 9 crops of the image padded with four black pixels, mirrored or not.
    fn of(&self, image: u32) -> View {
        let [down, right, flip, _] = self.draws.words(image, 0);
        let moved = |word| below(word, 2 * MARGIN as u32 + 1) as i32 - MARGIN;
        View { down: moved(down), right: moved(right), flip: self.mirrors && flip & 1 == 1 }
    }
}

/// A shift of an image, and whether it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    down: i32,
    right: i32,
    flip: bool,
}

impl View {
    const WHOLE: Self = Self { down: 0, right: 0, flip: false };

    fn normalize(&self, pixels: &[u8], shape: Shape, tables: &[[f32; 256]], out: &mut Vec<f32>) {
        let size = shape.size;
        if *self == Self::WHOLE {
            for (plane, table) in pixels.chunks_exact(size * size).zip(tables) {
                out.extend(plane.iter().map(|&pixel| table[usize::from(pixel)]));
            }
            return;
        }
        let inside = |place: i32| (0..size as i32).contains(&place).then_some(place as usize);
        for (plane, table) in pixels.chunks_exact(size * size).zip(tables) {
            for row in 0..size as i32 {
                let source = inside(row + self.down).map(|row| &plane[row * size..][..size]);
                out.extend((0..size as i32).map(|column| {
                    let column = if self.flip { size as i32 - 1 - column } else { column };
                    let pixel = source.zip(inside(column + self.right));
                    table[usize::from(pixel.map_or(0, |(row, column)| row[column]))]
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic;

    fn set() -> Dataset {
        synthetic::generate(&synthetic::Config {
            train_images: 100,
            test_images: 25,
            label_noise: 0.0,
        })
        .unwrap()
    }

    const PLAN: Plan = Plan { batch: 16, seed: 3, augment: true };

    #[test]
    fn an_epoch_continues_where_it_was_left_and_repeats_exactly() {
        let set = set();
        let epoch: Vec<Batch> = Batches::training(&set, PLAN, 5, 0).collect();
        assert_eq!(epoch.len(), 6);
        let rest: Vec<Batch> = Batches::training(&set, PLAN, 5, 4).collect();
        assert_eq!(rest, epoch[4..]);
        let next: Vec<Batch> = Batches::training(&set, PLAN, 6, 0).collect();
        assert_ne!(next[0], epoch[0]);
    }

    #[test]
    fn the_shares_of_several_processes_are_the_batches_of_one() {
        let set = set();
        let whole: Vec<Batch> = Batches::training(&set, PLAN, 2, 1).collect();
        let share = |places| Batches::training_share(&set, PLAN, places, 2, 1);
        for (whole, (first, second)) in whole.iter().zip(share(0..6).zip(share(6..16))) {
            assert_eq!(whole.labels, [first.labels, second.labels].concat());
            assert_eq!(whole.images, [first.images, second.images].concat());
        }
    }

    #[test]
    fn every_test_image_comes_once_in_its_order() {
        let set = set();
        let batches: Vec<Batch> = Batches::in_order(&set, &set.test, 10).collect();
        let sizes: Vec<usize> = batches.iter().map(Batch::len).collect();
        assert_eq!(sizes, [10, 10, 5]);
        let labels = batches.iter().flat_map(|batch| batch.labels.clone());
        assert!(labels.eq(set.test.labels.iter().map(|label| u32::from(*label))));
        let table = &set.normalization.tables()[0];
        assert_eq!(batches[0].images[5], table[usize::from(set.test.images[5])]);
    }

    #[test]
    fn a_view_moves_pads_with_black_and_mirrors() {
        let shape = Shape { channels: 1, size: 3 };
        let identity: [f32; 256] = std::array::from_fn(|value| value as f32);
        let pixels = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let seen = |down, right, flip| {
            let mut out = Vec::new();
            View { down, right, flip }.normalize(&pixels, shape, &[identity], &mut out);
            out
        };
        assert_eq!(seen(0, 0, true), [3., 2., 1., 6., 5., 4., 9., 8., 7.]);
        assert_eq!(seen(1, 0, false), [4., 5., 6., 7., 8., 9., 0., 0., 0.]);
        assert_eq!(seen(-1, 1, false), [0., 0., 0., 2., 3., 0., 5., 6., 0.]);
        assert_eq!(seen(0, 1, true), [0., 3., 2., 0., 6., 5., 0., 9., 8.]);
    }

    #[test]
    fn all_crops_occur_and_mirrors_only_where_classes_survive_them() {
        let drawn = |mirrors| -> Vec<View> {
            let draws = Draws::new(1, "test", 0);
            let views = Views { draws, mirrors };
            (0..2_000).map(|image| views.of(image)).collect()
        };
        assert!(drawn(false).iter().all(|view| !view.flip));
        let views = drawn(true);
        for moved in -MARGIN..=MARGIN {
            // 222 expected; five standard deviations are 70.
            let down = views.iter().filter(|view| view.down == moved).count();
            let right = views.iter().filter(|view| view.right == moved).count();
            assert!(down.abs_diff(222) < 70 && right.abs_diff(222) < 70);
        }
        let flipped = views.iter().filter(|view| view.flip).count();
        assert!(flipped.abs_diff(1000) < 112, "{flipped}");
    }

    #[test]
    fn a_stream_that_is_dropped_ends_its_thread() {
        let set = set();
        let mut batches = Batches::training(&set, Plan { batch: 1, ..PLAN }, 0, 0);
        assert_eq!(batches.next().map(|batch| batch.len()), Some(1));
        drop(batches);
        // The thread's copy of the images goes with it.
        for _ in 0..200 {
            if Arc::strong_count(&set.train) == 1 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the thread still holds the images");
    }
}
