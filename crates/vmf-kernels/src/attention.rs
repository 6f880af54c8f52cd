//! Self-attention with several heads, with its gradients.
//!
//! For each head, with queries Q, keys K and values V of shape (tokens, dim),
//! ```text
//! P = softmax(scale Q Kᵀ),   O = P V
//!
//! dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P (dP - rowsum(P dP)),   dQ = scale dS K,   dK = scale dSᵀ Q
//! ```
//! With a causal mask, token i sees the tokens 0 to i. The heads lie side by side in memory,
//! (batch, tokens, heads, dim), as the product with a linear layer leaves them: nothing is
//! transposed. The scores of a head are normalized while they are in the cache. The backward pass
//! needs P, which the forward pass leaves.

use crate::elementary::dot;
use crate::error::{Error, check_length};
use crate::gemm::{Matrix, gemm_on};
use crate::parallel::ByTask;
use crate::scratch::Scratch;
use crate::simd::{Isa, Kernel, Simd, dispatch_to};
use crate::softmax::softmax_row;
use rayon::prelude::*;

/// The operation, apart from its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of a head's query, key or value.
    pub dim: usize,
    /// The factor of the scores, by custom one over the root of `dim`.
    pub scale: f32,
    /// Whether a token sees no later tokens.
    pub causal: bool,
}

impl Attention {
    /// Elements of the queries, and of the keys, the values and the output.
    pub fn elements(&self) -> usize {
        self.batch * self.sequence()
    }

    /// Elements of P, for all heads.
    pub fn probabilities(&self) -> usize {
        self.batch * self.scores()
    }

    /// Elements of a sequence.
    fn sequence(&self) -> usize {
        self.tokens * self.heads * self.dim
    }

    /// Elements of P in a sequence.
    fn scores(&self) -> usize {
        self.heads * self.tokens * self.tokens
    }

    fn check(&self, tensors: &[(&'static str, usize)]) -> Result<(), Error> {
        if self.elements() == 0 {
            return Err(Error::EmptyShape { shape: format!("{self:?}") });
        }
        tensors.iter().try_for_each(|(name, len)| check_length(name, *len, self.elements()))
    }

    /// One head of a sequence.
    fn head<'a>(&self, data: &'a [f32], head: usize) -> Result<Matrix<'a>, Error> {
        let all = Matrix::new(data, self.tokens, self.heads * self.dim)?;
        Ok(all.part(0, self.tokens, head * self.dim, self.dim))
    }

    /// Writes a head, (tokens, dim), to its place in a sequence.
    fn put(&self, head: usize, values: &[f32], sequence: &mut [f32]) {
        let rows = sequence.chunks_mut(self.heads * self.dim).zip(values.chunks(self.dim));
        for (row, values) in rows {
            row[head * self.dim..][..self.dim].copy_from_slice(values);
        }
    }

    /// Computes O, and P for the backward pass.
    pub fn forward(
        &self,
        [q, k, v]: [&[f32]; 3],
        probabilities: &mut [f32],
        o: &mut [f32],
    ) -> Result<(), Error> {
        self.check(&[("q", q.len()), ("k", k.len()), ("v", v.len()), ("o", o.len())])?;
        check_length("probabilities", probabilities.len(), self.probabilities())?;
        let (isa, sequence, tokens) = (Isa::current(), self.sequence(), self.tokens);
        let square = tokens * tokens;
        o.par_chunks_mut(sequence)
            .by_task()
            .zip(probabilities.par_chunks_mut(self.scores()))
            .zip(q.par_chunks(sequence).zip(k.par_chunks(sequence)).zip(v.par_chunks(sequence)))
            .try_for_each(|((o, p), ((q, k), v))| {
                let mut head_o = Scratch::take(tokens * self.dim);
                for (head, p) in p.chunks_mut(square).enumerate() {
                    gemm_on(isa, self.head(q, head)?, self.head(k, head)?.transposed(), p, false)?;
                    dispatch_to(isa, Normalize { attention: self, p });
                    let p = Matrix::new(p, tokens, tokens)?;
                    gemm_on(isa, p, self.head(v, head)?, &mut head_o, false)?;
                    self.put(head, &head_o, o);
                }
                Ok(())
            })
    }

    /// The gradients with respect to queries, keys and values.
    pub fn backward(
        &self,
        [q, k, v]: [&[f32]; 3],
        probabilities: &[f32],
        d_o: &[f32],
        [dq, dk, dv]: [&mut [f32]; 3],
    ) -> Result<(), Error> {
        self.check(&[("q", q.len()), ("k", k.len()), ("v", v.len()), ("do", d_o.len())])?;
        self.check(&[("dq", dq.len()), ("dk", dk.len()), ("dv", dv.len())])?;
        check_length("probabilities", probabilities.len(), self.probabilities())?;
        let (isa, sequence, tokens) = (Isa::current(), self.sequence(), self.tokens);
        let square = tokens * tokens;
        let inputs = q.par_chunks(sequence).zip(k.par_chunks(sequence)).zip(v.par_chunks(sequence));
        let given = probabilities.par_chunks(self.scores()).zip(d_o.par_chunks(sequence));
        dq.par_chunks_mut(sequence)
            .by_task()
            .zip(dk.par_chunks_mut(sequence).zip(dv.par_chunks_mut(sequence)))
            .zip(inputs.zip(given))
            .try_for_each(|((dq, (dk, dv)), (((q, k), v), (p, d_o)))| {
                let (mut ds, mut part) = (Scratch::take(square), Scratch::take(tokens * self.dim));
                for (head, p) in p.chunks(square).enumerate() {
                    let d_o = self.head(d_o, head)?;
                    gemm_on(isa, d_o, self.head(v, head)?.transposed(), &mut ds, false)?;
                    dispatch_to(isa, Differentiate { attention: self, p, ds: &mut ds });
                    let [p, ds] =
                        [Matrix::new(p, tokens, tokens)?, Matrix::new(&ds, tokens, tokens)?];
                    gemm_on(isa, p.transposed(), d_o, &mut part, false)?;
                    self.put(head, &part, dv);
                    gemm_on(isa, ds, self.head(k, head)?, &mut part, false)?;
                    self.put(head, &part, dq);
                    gemm_on(isa, ds.transposed(), self.head(q, head)?, &mut part, false)?;
                    self.put(head, &part, dk);
                }
                Ok(())
            })
    }

    /// How many tokens the token in a row sees.
    fn seen(&self, row: usize) -> usize {
        if self.causal { row + 1 } else { self.tokens }
    }
}

/// Turns scores into probabilities.
struct Normalize<'a> {
    attention: &'a Attention,
    p: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (row, p) in self.p.chunks_mut(self.attention.tokens).enumerate() {
            let (seen, unseen) = p.split_at_mut(self.attention.seen(row));
            seen.iter_mut().for_each(|score| *score *= self.attention.scale);
            softmax_row::<f32, S>(seen);
            unseen.fill(0.0);
        }
    }
}

/// Turns dP into scale dS.
struct Differentiate<'a> {
    attention: &'a Attention,
    p: &'a [f32],
    ds: &'a mut [f32],
}

impl Kernel for Differentiate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let tokens = self.attention.tokens;
        for (p, ds) in self.p.chunks(tokens).zip(self.ds.chunks_mut(tokens)) {
            let mean = dot::<f32, S>(p, ds) as f32;
            for (ds, p) in ds.iter_mut().zip(p) {
                *ds = p * (*ds - mean) * self.attention.scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rng, assert_close, with_threads};

    /// The definition in double precision.
    fn naive(attention: &Attention, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
        let Attention { batch, tokens, heads, dim, scale, .. } = *attention;
        let at = |n: usize, t: usize, h: usize, d: usize| ((n * tokens + t) * heads + h) * dim + d;
        let mut o = vec![0.0; attention.elements()];
        for n in 0..batch {
            for h in 0..heads {
                for i in 0..tokens {
                    let score = |j: usize| -> f64 {
                        (0..dim).map(|d| q[at(n, i, h, d)] * k[at(n, j, h, d)]).sum()
                    };
                    let e: Vec<f64> = (0..attention.seen(i))
                        .map(|j| (f64::from(scale) * score(j)).exp())
                        .collect();
                    let total: f64 = e.iter().sum();
                    for d in 0..dim {
                        let sum: f64 =
                            e.iter().enumerate().map(|(j, e)| e * v[at(n, j, h, d)]).sum();
                        o[at(n, i, h, d)] = sum / total;
                    }
                }
            }
        }
        o
    }

    #[test]
    fn outputs_and_gradients_match_the_definition() {
        let mut rng = Rng::new(11);
        for (batch, tokens, heads, dim) in [(1, 1, 1, 1), (2, 5, 3, 4), (3, 17, 2, 8)] {
            for causal in [false, true] {
                let scale = 1.0 / (dim as f32).sqrt();
                let attention = Attention { batch, tokens, heads, dim, scale, causal };
                let len = attention.elements();
                let inputs: Vec<Vec<f32>> = (0..3).map(|_| rng.normals(len)).collect();
                let double: Vec<Vec<f64>> =
                    inputs.iter().map(|x| x.iter().map(|&x| f64::from(x)).collect()).collect();
                let dy = rng.normals(len);
                let loss = |inputs: &[Vec<f64>]| -> f64 {
                    let o = naive(&attention, [&inputs[0], &inputs[1], &inputs[2]]);
                    o.iter().zip(&dy).map(|(o, dy)| o * f64::from(*dy)).sum()
                };
                let qkv = [&*inputs[0], &*inputs[1], &*inputs[2]];
                let mut p = vec![f32::NAN; attention.probabilities()];
                let mut o = vec![f32::NAN; len];
                attention.forward(qkv, &mut p, &mut o).unwrap();
                let expected = naive(&attention, [&double[0], &double[1], &double[2]]);
                assert_close(&o, &expected, 2e-6, &format!("{attention:?}"));
                let mut gradients = vec![vec![f32::NAN; len]; 3];
                let [dq, dk, dv] = &mut gradients[..] else { unreachable!() };
                attention.backward(qkv, &p, &dy, [dq, dk, dv]).unwrap();
                for which in 0..3 {
                    let numeric: Vec<f64> = (0..len)
                        .map(|i| {
                            let at = |step: f64| {
                                let mut moved = double.clone();
                                moved[which][i] += step;
                                loss(&moved)
                            };
                            (at(1e-5) - at(-1e-5)) / 2e-5
                        })
                        .collect();
                    let what = format!("gradient {which} of {attention:?}");
                    if tokens > 1 || which == 2 {
                        assert_close(&gradients[which], &numeric, 1e-5, &what);
                    }
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_threads_and_wrong_lengths_are_errors() {
        let attention =
            Attention { batch: 5, tokens: 33, heads: 4, dim: 16, scale: 0.25, causal: true };
        let mut rng = Rng::new(12);
        let [q, k, v] = [0; 3].map(|_| rng.normals(attention.elements()));
        let run = |threads| {
            with_threads(threads, || {
                let mut p = vec![0.0; attention.probabilities()];
                let mut o = vec![0.0; attention.elements()];
                attention.forward([&q, &k, &v], &mut p, &mut o).unwrap();
                let mut gradients = [0; 3].map(|_| vec![0.0; o.len()]);
                let [dq, dk, dv] = &mut gradients;
                attention.backward([&q, &k, &v], &p, &o, [dq, dk, dv]).unwrap();
                (o, gradients)
            })
        };
        assert_eq!(run(1), run(3));
        let mut o = vec![0.0; attention.elements()];
        assert!(attention.forward([&q, &k, &v[1..]], &mut [], &mut o).is_err());
        assert!(attention.forward([&q, &k, &v], &mut [], &mut o).is_err());
        let empty = Attention { tokens: 0, ..attention };
        assert!(empty.forward([&[], &[], &[]], &mut [], &mut []).is_err());
    }
}
