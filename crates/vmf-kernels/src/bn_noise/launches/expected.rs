//! The launches of expected activations.

use super::{Argument, BLOCK, Launch, Plan, Pointers, Windows, storage_name};
use crate::Error;

impl Plan {
    /// Computes the expected activation from given statistics: reads u, mean, variance and
    /// deviation, writes statistics and y.
    pub fn expected(&self, at: &Pointers) -> Vec<Launch> {
        let pointers = [at.u, at.statistics, at.deviation, at.y];
        vec![self.given_statistics(at), self.elementwise_eval("expected", &pointers)]
    }

    /// The same with maximum pooling before the activation, over 2x2 windows side by side of images
    /// of this height and width.
    pub fn expected_pooled(&self, at: &Pointers, image: [usize; 2]) -> Result<Vec<Launch>, Error> {
        let problem = *self.problem();
        let positions = u32::try_from(image[0] * image[1]).unwrap_or(u32::MAX);
        if positions != problem.positions || image[0].min(image[1]) < 2 {
            return Err(Error::Value {
                name: "height and width",
                value: format!("{image:?}"),
                requirement: "those of the images, and at least 2",
            });
        }
        let [height, width] = image.map(|size| size as u32);
        let windows = Windows {
            input_width: width,
            output_width: width / 2,
            output_height: height / 2,
            unused: 0,
        };
        let planes = u64::from(problem.batch) * u64::from(problem.channels);
        let outputs = planes * u64::from(windows.output_width * windows.output_height);
        let pointers = [at.u, at.statistics, at.deviation, at.y].map(Argument::Pointer);
        let pooled = Launch {
            kernel: storage_name("expected_pooled", self.storage()),
            grid: outputs.div_ceil(u64::from(BLOCK)).min(self.resident_blocks()) as u32,
            arguments: pointers
                .into_iter()
                .chain([Argument::Problem(problem), Argument::Windows(windows)])
                .collect(),
        };
        Ok(vec![self.given_statistics(at), pooled])
    }
}
