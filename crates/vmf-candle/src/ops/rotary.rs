//! Rotary position embedding with its gradient.

use super::mapped::{KernelResult, Mapped, apply, check_input, has_kernel};
use crate::error::{check_setting, check_shape};
use candle_core::{D, Device, Result, Tensor};
use vmf_kernels::rotary::{Direction, Shape, rotate, tables};
use vmf_kernels::{Element, Elementary, Real};

/// The angles of a rotary position embedding: pair i of a head is turned by `t base^(-2 i / dim)` at
/// position t.
///
/// A pair is one element of the first half of a head and the same element of the second half, as in
/// GPT-NeoX, Llama and `candle_nn::rotary_emb::rope` (which returns no gradient).
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// use vmf_candle::ops::Rotary;
/// let rotary = Rotary::new(16, 8, 10_000.0, &Device::Cpu)?; // up to 16 tokens, heads of 8
/// let queries = Tensor::ones((2, 4, 10, 8), DType::F32, &Device::Cpu)?; // (N, heads, T, dim)
/// assert_eq!(rotary.apply(&queries)?.dims(), [2, 4, 10, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rotary {
    dim: usize,
    tables: [Vec<f64>; 2],
    tensors: [Tensor; 2],
}

impl Rotary {
    /// For sequences of up to `tokens` tokens and heads of `dim` elements, an even number. The
    /// customary base is 10,000.
    pub fn new(tokens: usize, dim: usize, base: f64, device: &Device) -> Result<Self> {
        let valid = dim > 0 && dim.is_multiple_of(2);
        check_setting(
            valid,
            "the size of a head",
            dim,
            "rotary embedding turns pairs: it must be even",
        )?;
        check_setting(tokens > 0, "the number of tokens", tokens, "it must be at least 1")?;
        let valid = base > 0.0 && base.is_finite();
        check_setting(valid, "the base of a rotary embedding", base, "it must be positive")?;
        let tables = tables(tokens, dim, base);
        let tensor = |table: &[f64]| {
            let table: Vec<f32> = table.iter().map(|&x| x as f32).collect();
            Tensor::from_vec(table, (tokens, dim / 2), device)
        };
        let tensors = [tensor(&tables[0])?, tensor(&tables[1])?];
        Ok(Self { dim, tables, tensors })
    }

    /// Turns queries or keys of shape (..., T, dim), whose tokens are at the positions 0 to T - 1.
    pub fn apply(&self, xs: &Tensor) -> Result<Tensor> {
        check_input("rotary embedding", xs)?;
        let tokens = if xs.rank() >= 2 { xs.dim(D::Minus2)? } else { 0 };
        self.turn(xs, tokens, 1)
    }

    /// Turns queries or keys of shape (N, T, heads * dim), as a linear layer leaves them.
    pub fn apply_to_heads(&self, xs: &Tensor) -> Result<Tensor> {
        check_input("rotary embedding", xs)?;
        let (batch, tokens, width) = xs.dims3()?;
        check_shape(width.is_multiple_of(self.dim), "rotary embedding", || {
            format!("{width} channels are no whole heads of {}", self.dim)
        })?;
        let heads = width / self.dim;
        let heads_last = xs.reshape((batch, tokens, heads, self.dim))?;
        if has_kernel(xs) {
            return self.turn(&heads_last, tokens, heads)?.reshape(xs.shape());
        }
        let turned = self.apply(&heads_last.transpose(1, 2)?)?;
        turned.transpose(1, 2)?.reshape(xs.shape())
    }

    fn turn(&self, xs: &Tensor, tokens: usize, heads: usize) -> Result<Tensor> {
        let (dim, half) = (self.dim, self.dim / 2);
        let most = self.tensors[0].dim(0)?;
        let valid = xs.dims().last() == Some(&dim) && (1..=most).contains(&tokens);
        check_shape(valid, "rotary embedding", || {
            let dims = xs.dims();
            format!("expected (..., at most {most} tokens, {dim}), got {dims:?}")
        })?;
        if has_kernel(xs) {
            let tables = self.tables.each_ref().map(|table| table[..tokens * half].to_vec());
            return apply(xs, Turn { shape: Shape { tokens, heads, dim }, tables });
        }
        let [cos, sin] = self.tensors.each_ref().map(|table| table.narrow(0, 0, tokens));
        let dtype = |table: Result<Tensor>| table?.to_dtype(xs.dtype());
        let (cos, sin) = (dtype(cos)?, dtype(sin)?);
        let (x1, x2) = (xs.narrow(D::Minus1, 0, half)?, xs.narrow(D::Minus1, half, half)?);
        let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
        let y2 = (x1.broadcast_mul(&sin)? + x2.broadcast_mul(&cos)?)?;
        Tensor::cat(&[y1, y2], D::Minus1)
    }
}

struct Turn {
    shape: Shape,
    tables: [Vec<f64>; 2],
}

impl Turn {
    fn run<E: Element>(&self, direction: Direction, x: &[E], y: &mut [E]) -> KernelResult {
        let tables = self
            .tables
            .each_ref()
            .map(|table| table.iter().map(|&x| E::Real::from_f64(x)).collect::<Vec<_>>());
        rotate(&self.shape, direction, [&tables[0], &tables[1]], x, y)
    }
}

impl Mapped for Turn {
    const NAME: &'static str = "rotary-embedding";

    fn forward<E: Element<Real: Elementary>>(&self, x: &[E], y: &mut [E]) -> KernelResult {
        self.run(Direction::Forward, x, y)
    }

    fn backward<E: Element<Real: Elementary>>(
        &self,
        _x: &[E],
        dy: &[E],
        dx: &mut [E],
    ) -> KernelResult {
        self.run(Direction::Backward, dy, dx)
    }
}
