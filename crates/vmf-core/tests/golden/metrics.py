"""Reference values for crates/vmf-core/tests/metrics.rs, from other people's implementations.

Run (writes metrics.json beside this file):

    python -m venv venv
    venv/bin/pip install numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 torch==2.15.0 \
        torchmetrics==1.9.0 netcal==1.4.0
    venv/bin/python crates/vmf-core/tests/golden/metrics.py

These versions made the committed file. Everything is computed in float64; inputs are drawn from a
fixed seed and rounded to ten decimals, so rows sum to one only to about 1e-9, as they do in
practice.
"""

import json
from pathlib import Path

import numpy as np
import torch
from netcal.metrics import ECE, MCE
from scipy.optimize import brentq
from scipy.special import entr, log_softmax, rel_entr, softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
    roc_curve,
)
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    binary_calibration_error,
    multiclass_calibration_error,
)

BINS = 15
rng = np.random.default_rng(20250611)


def draw(n, k, scale, noise):
    """Labels are the largest of noisy logits: scale sets the confidence, noise the errors."""
    logits = scale * rng.normal(size=(n, k))
    labels = (logits + noise * rng.normal(size=(n, k))).argmax(axis=1)
    return np.round(softmax(logits, axis=1), 10), labels


def draw_on_edges(n):
    """Probabilities on edges of the 15 bins, exactly one, tied, and strictly inside for company."""
    rows = np.array(
        [
            [0.2, 0.4, 0.4],
            [0.1, 0.45, 0.45],
            [0.37, 0.33, 0.3],
            [0.6, 0.2, 0.2],
            [0.25, 0.13, 0.62],
            [0.2, 0.8, 0.0],
            [0.04, 0.82, 0.14],
            [0.78, 0.12, 0.1],
            [0.0, 0.4, 0.6],
            [1 / 3, 1 / 3, 1 / 3],
            [0.05, 0.0, 0.95],
            [1.0, 0.0, 0.0],
        ]
    )
    probs = rows[rng.integers(len(rows), size=n)]
    right = rng.random(n) < 0.5
    return probs, np.where(right, probs.argmax(axis=1), rng.integers(3, size=n))


def bins_of(correct, confidence, strategy):
    """scikit-learn's reliability diagram: the bins that are not empty."""
    accuracy, mean_confidence = calibration_curve(
        correct, confidence, n_bins=BINS, strategy=strategy
    )
    return {"confidence": mean_confidence.tolist(), "accuracy": accuracy.tolist()}


def right_closed_ece(happened, confidence):
    """The loop over (lower, upper] of Guo et al.'s code, with zero counted into the first bin."""
    total = 0.0
    for m in range(BINS):
        lower, upper = m / BINS, (m + 1) / BINS
        inside = ((confidence > lower) | (m == 0)) & (confidence <= upper)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - happened[inside].mean())
    return float(total)


def classification(name, probs, labels, on_edges=False):
    n, k = probs.shape
    one_hot = np.eye(k)[labels]
    confidence = probs.max(axis=1)
    correct = (probs.argmax(axis=1) == labels).astype(int)
    p, y = torch.tensor(probs), torch.tensor(labels)
    everything = list(range(k))

    case = {
        "name": name,
        "on_edges": on_edges,
        "classes": k,
        "probabilities": probs.ravel().tolist(),
        "labels": labels.tolist(),
        "accuracy": accuracy_score(labels, probs.argmax(axis=1)),
        "nll_clipped_at_epsilon": log_loss(labels, probs, labels=everything),
        "brier": brier_score_loss(labels, probs, labels=everything, scale_by_half=False),
        "overconfidence": confidence.mean() - correct.mean(),
        "entropy": entr(probs).sum(axis=1).tolist(),
        "bins_equal_width": bins_of(correct, confidence, "uniform"),
        "bins_equal_mass": bins_of(correct, confidence, "quantile"),
        "guo_ece": right_closed_ece(correct, confidence),
        "guo_classwise_ece": float(
            np.mean([right_closed_ece(one_hot[:, c], probs[:, c]) for c in range(k)])
        ),
        # torchmetrics rounds multiclass probabilities to float32.
        "torchmetrics_ece": multiclass_calibration_error(p, y, k, n_bins=BINS, norm="l1").item(),
        "torchmetrics_mce": multiclass_calibration_error(p, y, k, n_bins=BINS, norm="max").item(),
        "netcal_ece": ECE(BINS).measure(confidence, correct),
        "netcal_mce": MCE(BINS).measure(confidence, correct),
        # netcal refuses quantiles that coincide.
        "netcal_equal_mass_ece": None
        if on_edges
        else ECE(BINS, equal_intervals=False).measure(confidence, correct),
        "torchmetrics_classwise_ece": float(
            np.mean(
                [
                    binary_calibration_error(p[:, c].clone(), y == c, n_bins=BINS, norm="l1").item()
                    for c in range(k)
                ]
            )
        ),
        "netcal_classwise_ece": float(
            np.mean([ECE(BINS).measure(probs[:, c], one_hot[:, c].astype(int)) for c in range(k)])
        ),
    }
    # The conventions differ only on edges; a case that claims to avoid them must do so.
    edges = np.linspace(0, 1, BINS + 1)
    inner = np.concatenate([edges[1:-1], np.quantile(confidence, edges)[1:-1]])
    assert on_edges == bool(np.isin(confidence, inner).any() or (confidence == 1).any()), name
    assert on_edges == (abs(case["guo_ece"] - case["netcal_ece"]) > 1e-3), name
    return case


def monte_carlo():
    s, n, k = 7, 9, 4
    logits = 2 * rng.normal(size=(n, k)) + rng.normal(size=(s, n, k))
    probs = np.round(softmax(logits, axis=2), 10)
    probs[:, 0] = probs[0, 0]  # samples that agree
    probs[0, 1], probs[1, 1] = [1, 0, 0, 0], [0, 1, 0, 0]  # zeros
    mean = probs.mean(axis=0)
    return {
        "samples": s,
        "classes": k,
        "probabilities": probs.ravel().tolist(),
        "mean": mean.ravel().tolist(),
        "predictive_entropy": entr(mean).sum(axis=1).tolist(),
        "expected_entropy": entr(probs).sum(axis=2).mean(axis=0).tolist(),
        "mutual_information": rel_entr(probs, mean).sum(axis=2).mean(axis=0).tolist(),
    }


def detection(name, scores, positive):
    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    area = roc_auc_score(positive, scores)
    precision = average_precision_score(positive, scores)
    # torchmetrics passes scores outside [0, 1] through a sigmoid, which could merge some.
    squeezed = torch.tensor((scores - scores.min()) / np.ptp(scores))
    target = torch.tensor(positive.astype(int))
    assert abs(binary_auroc(squeezed, target).item() - area) < 1e-6
    assert abs(binary_average_precision(squeezed, target).item() - precision) < 1e-6
    return {
        "name": name,
        "scores": scores.tolist(),
        "positive": positive.tolist(),
        "auroc": area,
        "aupr": precision,
        "fpr_at_95_tpr": fpr[tpr >= 0.95].min(),
        "fpr_at_80_tpr": fpr[tpr >= 0.8].min(),
    }


def detections():
    positive = rng.random(150) < 0.4
    smooth = np.round(rng.normal(size=150) + 1.5 * positive, 6)
    few = rng.random(60) < 0.1
    few[0] = True
    return [
        detection("distinct", smooth, positive),
        detection("tied", np.round(smooth), positive),
        detection("misleading", -smooth, positive),
        detection("twenty positives", np.arange(40.0), np.arange(40) % 2 == 0),
        detection("rare", np.round(rng.normal(size=60) + few, 1), few),
    ]


def temperature(name, n, k, scale, noise):
    logits = np.round(scale * rng.normal(size=(n, k)), 6)
    labels = (logits + noise * rng.normal(size=(n, k))).argmax(axis=1)
    chosen = logits[np.arange(n), labels]

    def slope(b):
        return (np.sum(softmax(b * logits, axis=1) * logits, axis=1) - chosen).mean()

    def nll(b):
        return -log_softmax(b * logits, axis=1)[np.arange(n), labels].mean()

    assert slope(1e-6) < 0 < slope(1e3), name
    best = brentq(slope, 1e-6, 1e3, xtol=1e-15, rtol=4 * np.finfo(float).eps)
    # PyTorch's own cross entropy, differentiated by autograd, agrees that this is the minimum.
    b = torch.tensor(best, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(b * torch.tensor(logits), torch.tensor(labels))
    loss.backward()
    assert abs(b.grad.item()) < 1e-12 * max(1, abs(logits).max()), (name, b.grad.item())
    return {
        "name": name,
        "classes": k,
        "logits": logits.ravel().tolist(),
        "labels": labels.tolist(),
        "temperature": 1 / best,
        "nll_before": nll(1.0),
        "nll_after": nll(best),
    }


golden = {
    "classification": [
        classification("random", *draw(113, 10, 1.0, 1.0)),
        classification("confident", *draw(92, 5, 6.0, 4.0)),
        classification("on edges", *draw_on_edges(86), on_edges=True),
        classification("binary", *draw(122, 2, 2.0, 1.0)),
        classification("many classes", *draw(39, 60, 2.0, 2.0)),
    ],
    "monte_carlo": monte_carlo(),
    "detection": detections(),
    "temperature": [
        temperature("overconfident", 90, 4, 5.0, 6.0),
        temperature("underconfident", 90, 4, 0.1, 0.05),
        temperature("nearly separable", 60, 3, 1.0, 0.1),
        temperature("nearly uninformative", 120, 3, 1.0, 9.0),
    ],
}
path = Path(__file__).with_name("metrics.json")
path.write_text(json.dumps(golden, indent=None, separators=(",", ":")).replace(',"', ',\n"') + "\n")
print(f"{path.name}: {path.stat().st_size} bytes")
