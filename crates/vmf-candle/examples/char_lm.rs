//! A character-level language model in the style of OLMo 2, and how far to trust its next
//! character.
//!
//! ```text
//! cargo run --release -p vmf-candle --example char_lm              # the repository's own documents
//! cargo run --release -p vmf-candle --example char_lm -- my.txt    # a text of your own
//! cargo run --release -p vmf-candle --example char_lm -- my.txt 3000   # more training steps
//! ```
//!
//! The same network is trained three ways: without noise (map), with noise that is learned without
//! a KL (none), and as a variational network (vmf). The last tenth of the text is held out. The
//! table shows how well each predicts it, in bits per character, and whether its probabilities mean
//! what they say.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{Embedding, Init, Optimizer, VarBuilder, VarMap};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vmf_candle::ops::{linear, rms_norm};
use vmf_candle::prelude::*;

const SEED: u64 = 1;
const WIDTH: usize = 96;
const HEADS: usize = 4;
const BLOCKS: usize = 3;
const CONTEXT: usize = 64;
const BATCH: usize = 32;
const STEPS: u32 = 1000;
/// Characters that occur less often become one character, the last of the vocabulary.
const RARE: usize = 5;

/// How a network is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    /// Without noise.
    Map,
    /// With noise that is learned without the KL.
    None,
    /// With the KL.
    Vmf,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let text = match arguments.next() {
        Some(path) => read(Path::new(&path))?,
        None => documents()?,
    };
    let steps = match arguments.next().map(|steps| steps.parse::<u32>()) {
        None => STEPS,
        Some(Ok(steps)) if steps > 0 => steps,
        Some(_) => candle_core::bail!("the second argument is the number of training steps"),
    };
    let text = Text::new(&text)?;
    println!(
        "{} characters to train on, {} held out, {} different\n",
        text.train.len(),
        text.test.len(),
        text.classes
    );
    println!("{:18}{:>12}{:>8}{:>8}{:>10}", "", "bits/char", "NLL", "ECE", "accuracy");
    for method in [Method::Map, Method::None, Method::Vmf] {
        train_and_score(&text, method, steps)?;
    }
    Ok(())
}

/// A network trained by a method, scored on the held-out text.
fn train_and_score(text: &Text, method: Method, steps: u32) -> Result<()> {
    let (vars, posterior) = (VarMap::new(), Posterior::new());
    let vb = seeded(&vars, SEED, DType::F32, &Device::Cpu);
    let model = Model::new(text.classes, &posterior, vb)?;
    let lr = 3e-3;
    let config = AdamConfig { lr, clip_norm: Some(1.0), ..Default::default() };
    let mut adam = Adam::for_model(&vars, &posterior, config)?;
    let examples = text.train.len();
    let beta = Schedule::warmup(posterior.suggested_beta(examples), 0.2 * f64::from(steps));
    let mut rng = StdRng::seed_from_u64(SEED);
    let start = Instant::now();
    for step in 0..steps {
        let (tokens, next) = text.batch(&mut rng)?;
        let pass = match method {
            Method::Vmf | Method::None => Pass::train(SEED, step),
            Method::Map => Pass::train_noiseless(),
        };
        let nll = cross_entropy(&model.forward(&tokens, &pass)?, &next)?;
        let loss = match method {
            Method::Vmf => {
                let beta = beta.at(f64::from(step));
                Elbo::new(examples).beta(beta).loss(&nll, &posterior)?.total
            }
            Method::Map | Method::None => nll,
        };
        // A short warm-up, and then down to a tenth along a cosine.
        let progress = f64::from(step) / f64::from(steps);
        let cosine = 0.55 + 0.45 * (std::f64::consts::PI * progress).cos();
        adam.set_learning_rate(lr * cosine * (f64::from(step + 1) / 50.0).min(1.0));
        adam.backward_step(&loss)?;
    }
    let seconds = start.elapsed().as_secs_f64() / f64::from(steps);

    let name = format!("{method:?}").to_lowercase();
    if method == Method::Map {
        score(&model, text, &name, &Samples::mean())?;
    } else {
        let inputs: Result<Vec<Tensor>> = (0..8).map(|_| Ok(text.batch(&mut rng)?.0)).collect();
        reestimate(&model, &posterior, inputs?.into_iter().map(Ok))?;
        score(&model, text, &format!("{name}, expected"), &Samples::expected(&posterior))?;
        score(&model, text, &format!("{name}, 8 samples"), &Samples::monte_carlo(8, SEED))?;
        score(&model, text, &format!("{name}, noise off"), &Samples::mean())?;
    }
    if method == Method::Vmf {
        println!("\n{}", posterior.summary()?);
    }
    println!("{:18}{:.0} ms per step\n", "", 1e3 * seconds);
    Ok(())
}

/// A row of the table.
fn score(model: &Model, text: &Text, name: &str, samples: &Samples) -> Result<()> {
    let (mut probs, mut labels) = (Vec::new(), Vec::new());
    for (tokens, next) in text.test_batches()? {
        probs.push(predict(model, &tokens, samples.clone())?.probs.flatten_to(1)?);
        labels.push(next.flatten_all()?);
    }
    let score = Calibration::of(&Tensor::cat(&probs, 0)?, &Tensor::cat(&labels, 0)?)?;
    let (bits, nll, ece, accuracy) = (score.nll / LN_2, score.nll, score.ece, score.accuracy);
    println!("{name:18}{bits:12.3}{nll:8.3}{ece:8.3}{accuracy:10.3}");
    Ok(())
}

/// Characters in, logits of the next character out.
struct Model {
    embedding: Embedding,
    blocks: Vec<TransformerBlock>,
    gain: Tensor,
    head: Tensor,
}

impl Model {
    fn new(classes: usize, posterior: &Posterior, vb: VarBuilder) -> Result<Self> {
        let config = TransformerConfig::new(WIDTH, HEADS).causal().rotary(CONTEXT, 10_000.0);
        let block = |i| TransformerBlock::new(&config, posterior, vb.pp(format!("blocks.{i}")));
        let init = Init::Randn { mean: 0.0, stdev: 1.0 / (WIDTH as f64).sqrt() };
        Ok(Self {
            embedding: candle_nn::embedding(classes, WIDTH, vb.pp("embedding"))?,
            blocks: (0..BLOCKS).map(block).collect::<Result<_>>()?,
            gain: vb.get_with_hints(WIDTH, "norm.weight", Init::Const(1.0))?,
            head: vb.get_with_hints((classes, WIDTH), "head.weight", init)?,
        })
    }
}

impl Forward for Model {
    fn forward(&self, tokens: &Tensor, pass: &Pass) -> Result<Tensor> {
        let mut xs = self.embedding.forward(tokens)?;
        for block in &self.blocks {
            xs = block.forward(&xs, pass)?;
        }
        linear(&rms_norm(&xs, Some(&self.gain), 1e-5)?, &self.head)
    }
}

/// A text as numbers, in two parts.
struct Text {
    train: Vec<u32>,
    test: Vec<u32>,
    classes: usize,
}

impl Text {
    fn new(text: &str) -> Result<Self> {
        let mut counts = BTreeMap::<char, usize>::new();
        text.chars().for_each(|c| *counts.entry(c).or_default() += 1);
        let known: Vec<char> =
            counts.into_iter().filter(|(_, count)| *count >= RARE).map(|(c, _)| c).collect();
        let number = |c: char| known.binary_search(&c).unwrap_or(known.len()) as u32;
        let mut train: Vec<u32> = text.chars().map(number).collect();
        let test = train.split_off(train.len() * 9 / 10);
        if test.len() <= CONTEXT {
            candle_core::bail!("the text is too short: it needs {} characters", 20 * CONTEXT);
        }
        Ok(Self { train, test, classes: known.len() + 1 })
    }

    /// Windows of the training text, and the characters that follow each of theirs.
    fn batch(&self, rng: &mut StdRng) -> Result<(Tensor, Tensor)> {
        let starts: Vec<usize> =
            (0..BATCH).map(|_| rng.random_range(0..self.train.len() - CONTEXT)).collect();
        windows(&self.train, &starts)
    }

    /// The held-out text in windows side by side.
    fn test_batches(&self) -> Result<Vec<(Tensor, Tensor)>> {
        let starts: Vec<usize> = (0..self.test.len() - CONTEXT).step_by(CONTEXT).collect();
        starts.chunks(BATCH).map(|starts| windows(&self.test, starts)).collect()
    }
}

fn windows(text: &[u32], starts: &[usize]) -> Result<(Tensor, Tensor)> {
    let all: Vec<u32> =
        starts.iter().flat_map(|&start| &text[start..=start + CONTEXT]).copied().collect();
    let all = Tensor::from_vec(all, (starts.len(), CONTEXT + 1), &Device::Cpu)?;
    let last = D::Minus1;
    Ok((all.narrow(last, 0, CONTEXT)?.contiguous()?, all.narrow(last, 1, CONTEXT)?.contiguous()?))
}

fn read(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| {
        candle_core::Error::Msg(format!("cannot read {}: {error}", path.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All Markdown files of the repository, in the order of their paths.
fn documents() -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut folders, mut files) = (vec![root], Vec::<PathBuf>::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let (path, name) = {
                let entry = entry?;
                (entry.path(), entry.file_name())
            };
            let hidden = name.to_string_lossy().starts_with('.') || name == "target";
            match path.is_dir() {
                _ if hidden => {}
                true => folders.push(path),
                false if path.extension().is_some_and(|e| e == "md") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    files.iter().map(|path| read(path)).collect()
}
