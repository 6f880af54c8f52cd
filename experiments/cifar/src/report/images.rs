//! Test images that are worth looking at.

use anyhow::Result;
use lab::{Picture, Section};

use crate::data::{Dataset, Shape};
use crate::evaluation::results::{Evaluation, Example, Way};
use crate::evaluation::tables;

/// Number of classes named below a picture.
const CLASSES: usize = 3;

/// The images with the least certain and with the most confidently wrong predictions.
pub(super) fn section(set: &Dataset, evaluation: &Evaluation) -> Result<Section> {
    let has_samples = evaluation.way(Way::MonteCarlo).is_some();
    let way = if has_samples { Way::MonteCarlo } else { Way::Mean };
    let mut legend = format!(
        "Test images with their true class, the likeliest classes ({}), and the entropy H of the prediction",
        tables::name(way, &evaluation.protocol)
    );
    legend += if has_samples {
        " with its part I that comes from not knowing the weights, in nats."
    } else {
        ", in nats."
    };
    let mut section = Section::new("Images").paragraph(legend);
    for (title, examples) in [
        ("Least certain", &evaluation.most_uncertain),
        ("Wrong, and most confident", &evaluation.confidently_wrong),
    ] {
        section = section.heading(title);
        section = if examples.is_empty() {
            section.paragraph("None: every test image is classified right.")
        } else {
            pictures(section, set, examples)?
        };
    }
    Ok(section)
}

fn pictures(section: Section, set: &Dataset, examples: &[Example]) -> Result<Section> {
    let drawn: Vec<(Vec<u8>, String)> = examples
        .iter()
        .map(|example| {
            let pixels = set.shape.pixels();
            let image = &set.test.images[example.image * pixels..][..pixels];
            (rgb(image, set.shape), caption(example, &set.classes))
        })
        .collect();
    let size = set.shape.size;
    let pictures: Vec<Picture<'_>> = drawn
        .iter()
        .map(|(rgb, caption)| Picture { width: size, height: size, rgb, caption })
        .collect();
    Ok(section.pictures(&pictures)?)
}

fn caption(example: &Example, classes: &[String]) -> String {
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by(|a, b| example.probabilities[*b].total_cmp(&example.probabilities[*a]));
    let mut lines = vec![format!("true: {}", classes[example.label])];
    for class in order.into_iter().take(CLASSES) {
        let probability = example.probabilities[class];
        lines.push(format!("{} {probability:.3}", classes[class]));
    }
    lines.push(match example.mutual_information {
        Some(information) => format!("H {:.2}, I {information:.2}", example.entropy),
        None => format!("H {:.2}", example.entropy),
    });
    lines.join("\n")
}

/// Converts the planes of a colour or grey image to interleaved RGB.
fn rgb(image: &[u8], shape: Shape) -> Vec<u8> {
    let plane = shape.size * shape.size;
    let channel = |channel: usize| &image[channel.min(shape.channels - 1) * plane..][..plane];
    let planes = [channel(0), channel(1), channel(2)];
    (0..plane).flat_map(|pixel| planes.map(|plane| plane[pixel])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_become_pixels_and_grey_becomes_colours() {
        let colours = Shape { channels: 3, size: 2 };
        let planes = [1, 2, 3, 4, 10, 20, 30, 40, 100, 150, 200, 250];
        let pixels = [1, 10, 100, 2, 20, 150, 3, 30, 200, 4, 40, 250];
        assert_eq!(rgb(&planes, colours), pixels);
        let grey = Shape { channels: 1, size: 1 };
        assert_eq!(rgb(&[7], grey), [7, 7, 7]);
    }

    #[test]
    fn a_caption_names_the_truth_and_the_likeliest_classes() {
        let classes = ["cat", "dog", "ship", "frog"].map(String::from);
        let example = Example {
            image: 0,
            label: 1,
            predicted: 2,
            probabilities: vec![0.1, 0.2, 0.6, 0.1],
            entropy: 1.0889,
            mutual_information: Some(0.25),
        };
        let text = caption(&example, &classes);
        assert_eq!(text, "true: dog\nship 0.600\ndog 0.200\ncat 0.100\nH 1.09, I 0.25");
    }
}
