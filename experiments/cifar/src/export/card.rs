//! The model card: what the network is, how well it performs, and how to use it.

use anyhow::Result;
use lab::{Cell, Table};

use crate::beta::Beta;
use crate::data::Source;
use crate::settings::Method;
use crate::trained::{EXPORTED, Trained};

/// The card as Markdown, with the front matter that the hub reads.
pub(super) fn text(trained: &Trained, temperature: Option<f64>) -> Result<String> {
    let parts = [
        front_matter(trained),
        introduction(trained),
        scores(trained)?,
        noise(trained)?,
        usage(trained, temperature),
    ];
    Ok(parts.join("\n"))
}

/// The name of a data set, and its identifier on the hub if it has one.
fn dataset(source: Source) -> (&'static str, Option<&'static str>) {
    match source {
        Source::Cifar10 => ("CIFAR-10", Some("uoft-cs/cifar10")),
        Source::FashionMnist => ("Fashion-MNIST", Some("zalando-datasets/fashion_mnist")),
        Source::Synthetic => ("a generated data set", None),
    }
}

/// Text as Markdown that shows it and means nothing else. The names come from config.json and from
/// the file system, and could otherwise hold links, images or HTML.
fn escaped(text: &str) -> String {
    const SPECIAL: &str = "\\`*_[]<>&#|~!$:@";
    let mut markdown = String::new();
    for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if SPECIAL.contains(character) {
            markdown.push('\\');
        }
        markdown.push(character);
    }
    markdown
}

fn front_matter(trained: &Trained) -> String {
    let mut lines = vec![
        "---".to_owned(),
        "library_name: candle".into(),
        "pipeline_tag: image-classification".into(),
        "tags:".into(),
        "- image-classification".into(),
        "- uncertainty".into(),
        "- safetensors".into(),
    ];
    if trained.config.settings.method.is_noisy() {
        lines.push("- bayesian".into());
    }
    let (name, identifier) = dataset(trained.config.settings.data);
    if let Some(identifier) = identifier {
        lines.push(format!("datasets:\n- {identifier}"));
    }
    lines.push("metrics:\n- accuracy".into());
    // The hub shows these as results.
    if let (Some(record), Some(identifier)) = (trained.record(), identifier) {
        lines.push(format!(
            "model-index:\n- name: {}\n  results:\n  - task:\n      type: image-classification\n    dataset:\n      \
             name: {name}\n      type: {identifier}\n      split: test\n    metrics:",
            serde_json::Value::from(trained.name())
        ));
        for (kind, title, value) in [
            ("accuracy", "Accuracy", record.test.accuracy),
            ("nll", "Negative log-likelihood", record.test.nll),
            ("ece", "Expected calibration error", record.test.ece),
        ] {
            lines.push(format!("    - type: {kind}\n      name: {title}\n      value: {value:.4}"));
        }
    }
    lines.push("# license: choose one before this is published".into());
    lines.push("---\n".into());
    lines.join("\n")
}

fn introduction(trained: &Trained) -> String {
    let settings = &trained.config.settings;
    let (data, _) = dataset(settings.data);
    let method = match settings.method {
        Method::Vmf => format!(
            "Each convolution is a variational unit, y = relu(BN(w·x) + sigma_eff z) with z ~ N(0, 1): a von Mises-Fisher \
             posterior over the direction of its weights, learned as one number per layer, with the KL weighted by beta = {}{:.3}.",
            if settings.beta == Beta::Auto { "auto, which was found to be " } else { "" },
            trained.beta()
        ),
        Method::None => "Each convolution adds noise after its normalization, y = relu(BN(w·x) + sigma_eff z) with z ~ N(0, 1), \
                         learned without the KL."
            .into(),
        Method::Map => "It has no noise: it is an ordinary network with weights of length 1.".into(),
        Method::Dropout => format!(
            "It is an ordinary network with dropout at rate {}, which Monte Carlo predictions leave on.",
            settings.dropout
        ),
        Method::MeanField => "Each weight of a convolution has a Gaussian posterior of its own (mean-field), trained with local \
                              reparameterization."
            .into(),
        Method::Ivon => "It is an ordinary network with a Gaussian posterior over its weights, trained with IVON.".into(),
        Method::Swa => format!(
            "It is an ordinary network; its weights are the mean over the last {} of its epochs (SWA).",
            settings.swa
        ),
    };
    format!(
        "# {}\n\n{} of width {} for images of 32 x 32 pixels, trained on {data} for {} of {} epochs.\n{method}\n\nIt distinguishes {} classes: {}.\n",
        escaped(&trained.name()),
        settings.model.to_string().to_uppercase(),
        settings.width,
        trained.epoch,
        settings.epochs,
        trained.config.interface.classes.len(),
        trained
            .config
            .interface
            .classes
            .iter()
            .map(|class| escaped(class))
            .collect::<Vec<_>>()
            .join(", ")
    )
}

fn scores(trained: &Trained) -> Result<String> {
    let Some(record) = trained.record() else {
        return Ok("It was saved within an epoch and has not been scored.\n".into());
    };
    let mut table = Table::new(["images", "accuracy", "NLL (nats)", "ECE (15 bins)"]);
    for (images, scores) in [("training, a sample", record.train), ("test", record.test)] {
        table.row([images.into(), scores.accuracy.into(), scores.nll.into(), scores.ece.into()])?;
    }
    let subset = match trained.config.settings.test_images {
        0 => String::new(),
        count => format!(" The test images are the first {count} of the set."),
    };
    Ok(format!(
        "## Scores\n\nWithout noise, after epoch {}.{subset}\n\n{}",
        record.epoch,
        table.markdown()
    ))
}

fn noise(trained: &Trained) -> Result<String> {
    if !trained.config.settings.method.is_noisy() {
        return Ok(String::new());
    }
    let mut table =
        Table::new(["layer", "D", "M", "sigma_eff", "kappa", "expected cosine", "KL (nats)"]);
    for layer in &trained.summary()? {
        table.row([
            layer.name.clone().into(),
            layer.dim.into(),
            layer.units.into(),
            layer.sigma_eff().into(),
            layer.kappa.into(),
            Cell::number(layer.expected_cosine, 3),
            layer.kl.into(),
        ])?;
    }
    Ok(format!(
        "## Learned noise\n\nA layer has M units with D inputs each; the expected cosine is the one between a sampled and the \
         mean direction of the posterior.\n\n{}",
        table.markdown()
    ))
}

/// What to do with the logits of the network without noise.
fn probabilities(temperature: Option<f64>) -> String {
    match temperature {
        None => "probs = logits.softmax(1)".into(),
        Some(temperature) => format!(
            "probs = (logits / model.temperature).softmax(1)  # {temperature:.4}, found without labels: without noise the network is too sure of itself"
        ),
    }
}

fn usage(trained: &Trained, temperature: Option<f64>) -> String {
    let interface = &trained.config.interface;
    let network = trained.config.network();
    format!(
        "## Usage\n
From the command line, with pictures of any size:\n
```sh\ncifar predict DIR picture.png\n```\n
In Rust, with vmf-candle and the network of the package `cifar`:\n
```rust
let trained = cifar::trained::Trained::open(\"DIR\".as_ref(), &Device::Cpu)?;
let prediction = vmf_candle::predict(&trained.model, &images, Samples::monte_carlo(32, 0))?; // probs, entropy, ...
```\n
or with vmf-candle alone, for any network that has the same names:\n
```rust
let checkpoint = vmf_candle::Checkpoint::open(\"DIR/{EXPORTED}\")?;
println!(\"{{}}\", checkpoint.summary()?); // sigma_eff, kappa and KL of each layer
let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
```\n
In Python, without noise, with PyTorch, safetensors and vmf-candle's `python/load_checkpoint.py`:\n
```python
from load_checkpoint import load
model = load(\"DIR/{EXPORTED}\")
logits = model(images)
{probabilities}
```\n
Images have the shape (N, {channels}, {size}, {size}). Pixels from 0 to 1 are normalized by the mean and the deviation of each channel:\n
```text\nmean      {mean:?}\ndeviation {deviation:?}\n```\n",
        probabilities = probabilities(temperature),
        channels = network.in_channels,
        size = interface.shape.size,
        mean = interface.normalization.mean,
        deviation = interface.normalization.deviation,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_card_is_nothing_but_a_name() {
        assert_eq!(escaped("ankle boot"), "ankle boot");
        assert_eq!(
            escaped("<img src=x> [a](http://b)\n# c"),
            r"\<img src=x\> \[a\](http\://b) \# c"
        );
    }
}
