//! The objective, in a form that cannot be scaled wrongly.
//!
//! ```text
//! loss = mean NLL over the batch + beta / N * sum over layers of M_l KL(sigma_l, D_l),     N = size of the training set
//! ```
//!
//! The evidence lower bound contains the KL once for the whole data set. A loss that is a mean over
//! a batch must therefore weight it by 1 / N. Weighting it by 1, or by 1 / batch, is the most
//! common mistake with Bayesian networks.

use crate::error::{check_setting, check_shape};
use crate::finite::is_finite;
use crate::posterior::Posterior;
use crate::ranks::Share;
use candle_core::{Result, Tensor};

/// The negative evidence lower bound per example, with a temperature `beta` on the KL.
#[derive(Clone, Copy, Debug)]
pub struct Elbo {
    train_len: usize,
    beta: f64,
    share: Option<Share>,
}

/// A loss and its two terms.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// What to minimize: `nll + beta / N * kl`. Differentiable. If ranks share the batch, what this
    /// rank contributes to it: the sum over the ranks is the loss.
    pub total: Tensor,
    /// The mean negative log-likelihood, as it was given.
    pub nll: Tensor,
    /// The KL of the whole posterior in nats, unscaled; in double precision where the device has
    /// it.
    pub kl: Tensor,
}

impl Elbo {
    /// The objective for a training set of this many examples, with `beta = 1`.
    ///
    /// A training set of images has as many examples as images, not pixels, if the likelihood has
    /// one term per image.
    pub fn new(train_len: usize) -> Self {
        Self { train_len, beta: 1.0, share: None }
    }

    /// Sets the weight of the KL: 1 is the evidence lower bound, 0 is maximum likelihood.
    pub fn beta(self, beta: f64) -> Self {
        Self { beta, ..self }
    }

    /// For a batch that ranks share: the mean negative log-likelihood is that of this rank's
    /// examples.
    pub fn share(self, share: &Share) -> Self {
        Self { share: (!share.ranks().is_alone()).then_some(*share), ..self }
    }

    /// The loss of a batch with this mean negative log-likelihood.
    ///
    /// `posterior` is the one that the layers were built with. One without layers, or one whose
    /// layers have taken no part in a forward pass, is an error: its KL would train nothing.
    /// Layers that collapse are named in a warning.
    ///
    /// If the negative log-likelihood is not finite, the pass has no effect on running statistics.
    /// (On a GPU, where to look at it means to wait for it, [`Adam`](super::Adam) sees to that.)
    pub fn loss(&self, mean_nll: &Tensor, posterior: &Posterior) -> Result<Loss> {
        let Self { train_len, beta, share } = *self;
        check_setting(train_len > 0, "the size of the training set", 0, "it must be positive")?;
        let valid = beta >= 0.0 && beta.is_finite();
        check_setting(valid, "beta", beta, "it must be finite and not negative")?;
        check_shape(mean_nll.rank() == 0, "the negative log-likelihood", || {
            format!("expected a scalar, the mean over the batch, not {:?}", mean_nll.dims())
        })?;
        posterior.check_trainable()?;
        if mean_nll.device().is_cpu() && !is_finite(mean_nll)? {
            posterior.undo_statistics()?;
        }
        posterior.watch_for_collapse()?;
        // The KL is the same on all ranks, and counts once.
        let once = share.map_or(1.0, |share| share.ranks().size() as f64);
        #[cfg(feature = "cuda")]
        {
            let shared = share.map(|share| mean_nll * share.weight()).transpose()?;
            let (own, weight) =
                (shared.as_ref().unwrap_or(mean_nll), beta / train_len as f64 / once);
            let made = super::elbo_cuda::objective(own, &posterior.specs(), weight)?;
            if let Some((total, kl)) = made {
                return Ok(Loss { total, nll: mean_nll.clone(), kl });
            }
        }
        let kl = posterior.kl()?;
        let scaled = (&kl * (beta / train_len as f64 / once))?
            .to_dtype(mean_nll.dtype())?
            .to_device(mean_nll.device())?;
        let total = match share {
            None => (mean_nll + scaled)?,
            Some(share) => ((mean_nll * share.weight())? + scaled)?,
        };
        Ok(Loss { total, nll: mean_nll.clone(), kl })
    }
}
