//! Scores the predictions of a network.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use vmf_candle::ranks::Ranks;
use vmf_candle::{Forward, Pass, Samples};
use vmf_core::metrics::{Predictions, Temperature};

use super::outputs::{self, BATCH, Outputs};
use super::results::{
    Evaluation, Example, FitOn, Measured, Network, Protocol, Quality, Tempered, VERSION, Way,
};
use super::tables;
use crate::data::batches::Batches;
use crate::data::{Dataset, Split};
use crate::interrupt;
use crate::terminal::printable;
use crate::trained::Trained;

/// Length of each list of examples.
const EXAMPLES: usize = 16;

/// The range that temperatures are clamped to. If the network is right on every image that the
/// temperature is fitted to, the best temperature is 0, and a single mistake on another image would
/// then have an infinite NLL.
const TEMPERATURES: (f64, f64) = (0.05, 20.0);

/// Evaluates a network in each way in which it can predict.
pub(super) fn measure(trained: &Trained, set: &Dataset, protocol: Protocol) -> Result<Evaluation> {
    let Trained { model, device, .. } = trained;
    let settings = &trained.config.settings;
    let (is_noisy, has_samples) = (settings.method.is_noisy(), settings.method.has_samples());
    let held_out = (protocol.fit_on == FitOn::HeldOut).then_some(&set.held_out);
    let splits = [Some(&set.test), held_out];
    let sizes = splits.iter().flatten().map(|split| split.len().div_ceil(BATCH) as u64);
    let batches: u64 = sizes.sum();
    let passes =
        2 + u64::from(is_noisy) + if has_samples { u64::from(protocol.samples) } else { 0 };
    let task = format!("evaluating {}", printable(&trained.folder));
    let bar = lab::ProgressBar::new(task, batches * passes);

    bar.message("statistics");
    outputs::measure_statistics(
        model,
        &trained.posterior,
        set,
        settings,
        (device, Ranks::alone()),
    )?;
    let classes = set.classes.len();
    let mut ways = Vec::new();
    let mut add = |way| -> Result<Outputs> {
        bar.message(tables::name(way, &protocol));
        let seen = |passes: u64| {
            bar.advance(passes);
            interrupt::check()
        };
        let predict = |split| predict(trained, set, split, way, &protocol, &seen);
        let predicted = predict(&set.test)?;
        let held_out = held_out.map(predict).transpose()?;
        ways.push(judge(way, &predicted, held_out.as_ref(), classes, &protocol)?);
        Ok(predicted)
    };
    let mut predicted = add(Way::Mean)?;
    add(Way::MeanAsTrained)?;
    if is_noisy {
        add(Way::Expected)?;
    }
    if has_samples {
        predicted = add(Way::MonteCarlo)?;
    }
    let examples = examples(&predicted, classes, has_samples)?;
    Ok(Evaluation {
        version: VERSION,
        network: Network::of(trained),
        protocol,
        ways,
        most_uncertain: most(&examples, |example| Some(example.entropy)),
        confidently_wrong: most(&examples, |example| {
            let is_wrong = example.predicted != example.label;
            is_wrong.then(|| example.probabilities[example.predicted])
        }),
    })
}

/// What a network predicts in one way for the images of a split. `seen` is told how many passes
/// over a batch were made.
pub(super) fn predict(
    trained: &Trained,
    set: &Dataset,
    split: &Arc<Split>,
    way: Way,
    protocol: &Protocol,
    seen: &dyn Fn(u64) -> Result<()>,
) -> Result<Outputs> {
    let Trained { model, device, posterior, .. } = trained;
    let batches = Batches::in_order(set, split, BATCH);
    let as_trained = |images: &Tensor, _: &Pass| model.forward(images, &Pass::mean_as_trained());
    let one = || seen(1);
    match way {
        Way::Expected => {
            outputs::outputs(model, batches, Samples::expected(posterior), device, one)
        }
        Way::Mean => outputs::outputs(model, batches, Samples::mean(), device, one),
        Way::MeanAsTrained => outputs::outputs(&as_trained, batches, Samples::mean(), device, one),
        Way::MonteCarlo if trained.config.settings.method.draws_weights() => {
            weight_draws(trained, set, split, protocol, one)
        }
        Way::MonteCarlo => {
            let samples = Samples::monte_carlo(protocol.samples, protocol.seed);
            outputs::outputs(model, batches, samples, device, || seen(protocol.samples.into()))
        }
    }
}

/// The mean prediction over draws of all weights, with the running statistics that training
/// collected under such draws.
fn weight_draws(
    trained: &Trained,
    set: &Dataset,
    split: &Arc<Split>,
    protocol: &Protocol,
    seen: impl Fn() -> Result<()>,
) -> Result<Outputs> {
    let mut posterior = trained.ivon.borrow_mut();
    let posterior = posterior.as_mut().context("this network has no posterior over its weights")?;
    let model = &trained.model;
    let as_trained = |images: &Tensor, _: &Pass| model.forward(images, &Pass::mean_as_trained());
    let mut draw = |sample: u32| {
        posterior.draw(protocol.seed, 0, sample + 1)?;
        let batches = Batches::in_order(set, split, BATCH);
        let found = outputs::outputs(&as_trained, batches, Samples::mean(), &trained.device, &seen);
        posterior.restore()?;
        found
    };
    let draws: Vec<Outputs> = (0..protocol.samples).map(&mut draw).collect::<Result<_>>()?;
    Outputs::mixed(&draws, set.classes.len())
}

/// Scores one way to predict, with and without temperature scaling. The temperature is fitted to
/// the predictions for the images that were held out, or to those for the first test images.
pub(super) fn judge(
    way: Way,
    outputs: &Outputs,
    held_out: Option<&Outputs>,
    classes: usize,
    protocol: &Protocol,
) -> Result<Measured> {
    let Outputs { labels, mutual_information, .. } = outputs;
    // A pass at the mean of the weights has no mutual information to report.
    let information = |from: usize| {
        let part = &mutual_information[from..];
        let sum: f64 = part.iter().map(|value| f64::from(*value)).sum();
        matches!(way, Way::Expected | Way::MonteCarlo).then(|| sum / part.len() as f64)
    };
    let first = protocol.fitted_test_images();
    let all = outputs.between(0, labels.len(), classes)?;
    let fitted = match held_out {
        Some(held_out) => held_out.between(0, held_out.labels.len(), classes)?,
        None => outputs.between(0, first, classes)?,
    };
    let rest = outputs.between(first, labels.len(), classes)?;
    let temperature = fit(&fitted)?;
    let nll_at = |temperature: Temperature| -> Result<f64> {
        let rescaled = temperature.rescale(&fitted);
        let labels = fitted.labels();
        Ok(Quality::of(&Predictions::new(&rescaled, labels, classes)?, None).nll)
    };
    let rescaled = temperature.rescale(&rest);
    let rescaled = Predictions::new(&rescaled, rest.labels(), classes)?;
    Ok(Measured {
        way,
        all: Quality::of(&all, information(0)),
        tempered: Tempered {
            temperature: temperature.value(),
            fit_nll_before: nll_at(Temperature::ONE)?,
            fit_nll_after: nll_at(temperature)?,
            before: Quality::of(&rest, information(first)),
            // A temperature rescales the predictive distribution. It does not change the samples
            // that this distribution is the mean of.
            after: Quality::of(&rescaled, None),
        },
    })
}

/// The temperature with the lowest NLL within [`TEMPERATURES`]. The NLL is convex in the inverse
/// temperature, so this is the unconstrained optimum, clamped.
fn fit(predictions: &Predictions<'_, f32>) -> Result<Temperature> {
    let best = Temperature::fit_probabilities(predictions).temperature;
    let (low, high) = TEMPERATURES;
    Ok(Temperature::new(best.value().clamp(low, high))?)
}

fn examples(outputs: &Outputs, classes: usize, is_noisy: bool) -> Result<Vec<Example>> {
    let predictions = Predictions::new(&outputs.probabilities, &outputs.labels, classes)?;
    let entropies = predictions.entropy();
    let rows = predictions.rows().zip(predictions.top()).enumerate();
    let example = |(image, (row, (predicted, _))): (usize, (&[f32], (usize, f64)))| Example {
        image,
        label: predictions.labels()[image],
        predicted,
        probabilities: row.iter().map(|p| f64::from(*p)).collect(),
        entropy: entropies[image],
        mutual_information: is_noisy.then(|| f64::from(outputs.mutual_information[image])),
    };
    Ok(rows.map(example).collect())
}

/// The examples of the highest rank, in descending order. Examples without a rank are left out.
fn most(examples: &[Example], rank: impl Fn(&Example) -> Option<f64>) -> Vec<Example> {
    let ranked = examples.iter().filter_map(|e| Some((rank(e)?, e)));
    let mut ranked: Vec<(f64, &Example)> = ranked.collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let first = ranked.into_iter().take(EXAMPLES);
    first.map(|(_, example)| example.clone()).collect()
}

/// The protocol for these options. A temperature is fitted to the images that were held out. If
/// there are none, a fifth of the test images is set aside for it.
pub(super) fn protocol(set: &Dataset, samples: u32, seed: u64) -> Result<Protocol> {
    let test_images = set.test.len();
    let (fit_on, fit_images) = match set.held_out.len() {
        0 => (FitOn::Test, (test_images / 5).max(1)),
        images => (FitOn::HeldOut, images),
    };
    ensure!(
        test_images >= 2,
        "{test_images} test image cannot be used both to fit a temperature and to judge it: use --test-images 2 or more"
    );
    ensure!(samples > 0, "--samples is 0; it must be at least 1");
    Ok(Protocol { test_images, fit_on, fit_images, samples, seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(fit_images: usize) -> Protocol {
        Protocol { test_images: 0, fit_on: FitOn::Test, fit_images, samples: 1, seed: 0 }
    }

    /// Rows of two classes with this probability for the first, and the labels.
    fn outputs(rows: &[(f32, u32)]) -> Outputs {
        Outputs {
            labels: rows.iter().map(|(_, label)| *label).collect(),
            probabilities: rows.iter().flat_map(|(p, _)| [*p, 1.0 - p]).collect(),
            mutual_information: rows.iter().map(|(p, _)| *p / 10.0).collect(),
            energy: vec![0.0; rows.len()],
        }
    }

    #[test]
    fn the_temperature_is_fitted_to_the_first_images_and_judged_by_the_others() {
        // The network says 0.9. Among the first four it is right three times, among the others
        // always.
        let first = [(0.9, 0), (0.9, 0), (0.9, 0), (0.9, 1)];
        let rows = [&first[..], &[(0.9, 0); 6]].concat();
        let judged = judge(Way::Mean, &outputs(&rows), None, 2, &protocol(4)).unwrap();
        let tempered = &judged.tempered;
        // 0.9 becomes 0.75, which is what the first four deserve: odds of 3 in place of 9, half the
        // logarithm.
        assert!((tempered.temperature - 2.0).abs() < 1e-5, "{tempered:?}");
        assert!((tempered.after.nll + 0.75_f64.ln()).abs() < 1e-5);
        assert!((tempered.before.nll + 0.9_f64.ln()).abs() < 1e-5);
        assert!(tempered.fit_nll_after < tempered.fit_nll_before);
        assert!((judged.all.accuracy - 0.9).abs() < 1e-12);
        assert_eq!(judged.all.mutual_information, None);

        // With images that were held out, all test images judge.
        let held_out = Protocol { fit_on: FitOn::HeldOut, ..protocol(4) };
        let (test, fit) = (outputs(&[(0.9, 0); 6]), outputs(&first));
        let judged = judge(Way::Mean, &test, Some(&fit), 2, &held_out).unwrap();
        assert!((judged.tempered.temperature - 2.0).abs() < 1e-5);
        assert!((judged.tempered.after.nll + 0.75_f64.ln()).abs() < 1e-5);
        assert_eq!(judged.tempered.before, judged.all);
    }

    #[test]
    fn a_network_without_mistakes_keeps_a_temperature_that_survives_one() {
        let rows = [(0.9, 0), (0.8, 0), (0.7, 0), (0.6, 1)];
        let judged = judge(Way::MonteCarlo, &outputs(&rows), None, 2, &protocol(3)).unwrap();
        assert_eq!(judged.tempered.temperature, TEMPERATURES.0);
        assert!(judged.tempered.fit_nll_after <= judged.tempered.fit_nll_before);
        assert!(judged.tempered.after.nll.is_finite());
        let information = judged.all.mutual_information.unwrap();
        assert!((information - 0.075).abs() < 1e-6, "{information}");
    }

    #[test]
    fn examples_are_the_most_uncertain_and_the_most_wrong() {
        let rows = [(0.9, 0), (0.55, 0), (0.99, 1), (0.3, 0), (0.1, 1)];
        let examples = examples(&outputs(&rows), 2, true).unwrap();
        let order = |list: Vec<Example>| -> Vec<usize> { list.iter().map(|e| e.image).collect() };
        let uncertain = most(&examples, |example| Some(example.entropy));
        assert_eq!(order(uncertain)[..2], [1, 3]);
        let wrong =
            most(&examples, |e| (e.predicted != e.label).then(|| e.probabilities[e.predicted]));
        assert_eq!(order(wrong), [2, 3]);
    }
}
