"""Reference values for crates/vmf-core/tests/metrics/decisions.rs: selective prediction, conformal
sets, energy and the cross-entropy from soft labels.

Run (writes decisions.json beside this file):

    python -m venv venv
    venv/bin/pip install numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 mapie==1.6.0
    venv/bin/python crates/vmf-core/tests/golden/decisions.py

These versions made the committed file. Inputs are drawn from a fixed seed and rounded to ten
decimals.
"""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
from mapie.classification import SplitConformalClassifier
from scipy.special import logsumexp, softmax
from scipy.stats import entropy

rng = np.random.default_rng(20261118)


def draw(n, k, scale, noise):
    logits = scale * rng.normal(size=(n, k))
    labels = (logits + noise * rng.normal(size=(n, k))).argmax(axis=1)
    return np.round(softmax(logits, axis=1), 10), labels


def risks_of(order, right):
    return np.cumsum(~right[order]) / np.arange(1, len(right) + 1)


def risk_coverage(name, confidence, right):
    """For ties, the mean over every order of the tied examples, by brute force."""
    n = len(right)
    distinct = len(set(confidence)) == n
    if distinct:
        risks = risks_of(np.argsort(-confidence), right)
    else:
        assert n <= 8
        all_orders = [np.array(o) for o in permutations(range(n))]
        sorted_orders = [o for o in all_orders if (np.diff(confidence[o]) <= 0).all()]
        risks = np.mean([risks_of(o, right) for o in sorted_orders], axis=0)

    def coverage_at(risk):
        """Tries every threshold at a confidence."""
        best = 0.0
        for threshold in set(confidence):
            answered = confidence >= threshold
            if (~right[answered]).mean() <= risk:
                best = max(best, answered.mean())
        return float(best)

    return {
        "name": name,
        "confidences": confidence.tolist(),
        "right": right.tolist(),
        "risks": risks.tolist(),
        "aurc": float(risks.mean()),
        "coverage_at": [[risk, coverage_at(risk)] for risk in (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)],
    }


def risk_coverages():
    probs, labels = draw(200, 5, 2.0, 2.0)
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    tied = np.array([0.9, 0.7, 0.7, 0.7, 0.4, 0.4, 0.1])
    return [
        risk_coverage("distinct", confidence, right),
        risk_coverage("misleading", -confidence, right),
        risk_coverage("tied", tied, np.array([1, 1, 0, 1, 0, 0, 1], bool)),
        risk_coverage("one group", np.full(6, 0.5), np.array([1, 0, 1, 1, 0, 1], bool)),
    ]


class Given:
    """A classifier whose input is its output, for MAPIE."""

    def __init__(self, classes):
        self.classes_ = np.arange(classes)
        self.is_fitted_ = True

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(axis=1)

    def __sklearn_is_fitted__(self):
        return True


def class_scores(probs, kind):
    """By a matrix of comparisons, not by sorting: who comes before whom."""
    n, k = probs.shape
    if kind["name"] == "threshold":
        return 1 - probs
    index = np.arange(k)
    larger = probs[:, None, :] > probs[:, :, None]
    equal_first = (probs[:, None, :] == probs[:, :, None]) & (index[None, :] <= index[:, None])
    before_or_self = larger | equal_first
    mass = (probs[:, None, :] * before_or_self).sum(axis=2)
    rank = before_or_self.sum(axis=2)
    return mass + kind.get("penalty", 0.0) * np.maximum(0, rank - kind.get("free", k))


def conformal(kind, calibration, test, alpha):
    (probs, labels), (test_probs, test_labels) = calibration, test
    n, k = probs.shape
    scores = class_scores(probs, kind)[np.arange(n), labels]
    level = np.ceil((n + 1) * (1 - alpha)) / n
    quantile = np.quantile(scores, level, method="inverted_cdf") if level <= 1 else np.inf
    sets = class_scores(test_probs, kind) <= quantile + 1e-12
    if kind["name"] == "threshold" and np.isfinite(quantile):
        # MAPIE's adaptive sets (APS, RAPS) are not compared: they differ from the definition used here,
        # among other things in that they are never empty.
        model = SplitConformalClassifier(
            Given(k), confidence_level=1 - alpha, conformity_score="lac", prefit=True
        )
        model.conformalize(probs, labels)
        _, theirs = model.predict_set(test_probs)
        assert (theirs[:, :, 0] == sets).all(), (kind, alpha)
    size = sets.sum(axis=1)
    return {
        "kind": kind,
        "alpha": alpha,
        "quantile": None if np.isinf(quantile) else float(quantile),
        "sets": [np.flatnonzero(row).tolist() for row in sets],
        "coverage": float(sets[np.arange(len(test_labels)), test_labels].mean()),
        "mean_size": float(size.mean()),
        "singletons": float((size == 1).mean()),
    }


def conformals():
    calibration, test = draw(83, 6, 1.5, 1.5), draw(40, 6, 1.5, 1.5)
    kinds = [
        {"name": "threshold"},
        {"name": "adaptive"},
        {"name": "regularized", "penalty": 0.1, "free": 2},
        {"name": "regularized", "penalty": 0.01, "free": 0},
    ]
    return {
        "classes": 6,
        "calibration": calibration[0].ravel().tolist(),
        "calibration_labels": calibration[1].tolist(),
        "test": test[0].ravel().tolist(),
        "test_labels": test[1].tolist(),
        "cases": [
            conformal(kind, calibration, test, alpha) for kind in kinds for alpha in (0.3, 0.1, 0.01)
        ],
    }


def energies():
    logits = np.round(rng.normal(size=(9, 7)) * 8, 6)
    return {
        "classes": 7,
        "logits": logits.ravel().tolist(),
        "energy": {str(t): (-t * logsumexp(logits / t, axis=1)).tolist() for t in (0.25, 1, 3)},
    }


def soft_labels():
    probs, labels = draw(30, 4, 1.0, 1.0)
    targets = rng.multinomial(50, probs) / 50
    return {
        "classes": 4,
        "probabilities": probs.ravel().tolist(),
        "labels": labels.tolist(),
        "targets": targets.ravel().tolist(),
        # SciPy normalizes both.
        "cross_entropy": float(
            np.mean(entropy(targets, axis=1) + entropy(targets, probs, axis=1))
        ),
    }


golden = {
    "risk_coverage": risk_coverages(),
    "conformal": conformals(),
    "energy": energies(),
    "soft_labels": soft_labels(),
}
path = Path(__file__).with_name("decisions.json")
path.write_text(json.dumps(golden, indent=None, separators=(",", ":")).replace(',"', ',\n"') + "\n")
print(f"{path.name}: {path.stat().st_size} bytes")
