"""Golden values of expected activations, at 30 digits and more; of expected softmax, at 10.

    pip install mpmath gmpy2 numpy
    python expected.py > expected.json

Inputs are the doubles that the library is given. Every integral is computed from its definition, by quadrature over
the noise, so that these numbers check the library's closed forms instead of repeating them:

    relu, gelu, silu    mp.quad of f(x) under the density of x
    maximum             the inner integral, over y given x, is that of a ReLU; the outer one is mp.quad
    softmax             the trapezoidal rule over the K - 1 differences of the logits, in double precision
"""

import json
import random

import numpy as np
from mpmath import erfc, exp, inf, mp, mpf, nstr, pi, quad, sqrt

mp.dps = 50
rng = random.Random(20260117)


def phi(x):
    return exp(-x * x / 2) / sqrt(2 * pi)


def cdf(x):
    return erfc(-x / sqrt(mpf(2))) / 2


def number(x):
    return float(nstr(x, 20))


def normal_row(x):
    """pdf and cdf of x, and the tail integrals beyond |x| by quadrature."""
    exact, u = mpf(x), abs(mpf(x))
    # phi(u + w) = phi(u) exp(-u w - w^2 / 2), which decays within a few widths 1 / (1 + u).
    cuts = [k / (1 + u) for k in (0, 1, 3, 8, 20, 60)] + [inf]
    q, h, e = (phi(u) * quad(lambda w: w**n * exp(-u * w - w * w / 2), cuts) for n in (0, 1, 2))
    assert abs(q / cdf(-u) - 1) < mpf(10) ** -30, x
    return [x] + [number(v) for v in (phi(exact), cdf(exact), q, h, e)]


def moments(f, m, s, kinks):
    """Mean and variance of f(m + s z)."""
    m, s = mpf(m), mpf(s)
    inside = sorted((k - m) / s for k in kinks if abs(k - m) < 30 * s)
    cuts = sorted(set([mpf(c) for c in (-40, -20, -12, -8, -5, -3, -1, 0, 1, 3, 5, 8, 12, 20, 40)] + inside))
    mean = quad(lambda z: f(m + s * z) * phi(z), cuts)
    variance = quad(lambda z: (f(m + s * z) - mean) ** 2 * phi(z), cuts)
    return mean, variance


def relu_row(m, s):
    """With x = s w, E relu(x)^n = s^n phi(t) int w^n exp(t w - w^2 / 2) dw over w > 0, t = m / s."""
    m, s = mpf(m), mpf(s)
    t = m / s
    cuts = sorted([k / (1 + abs(t)) for k in (0, 1, 3, 8, 20, 60)] + [max(t, 0) + k for k in (1, 3, 8)]) + [inf]
    first, second = (s**n * phi(t) * quad(lambda w: w**n * exp(t * w - w * w / 2), cuts) for n in (1, 2))
    return [float(m), float(s), number(first), number(second - first**2)]


def smooth_row(f, m, s):
    # steps of scale 1 in x are steps of scale 1 / s in z
    kinks = [mpf(k) for k in (-6, -3, -1, 0, 1, 3, 6)]
    mean, variance = moments(f, m, s, kinks)
    return [m, s, number(mean), number(variance)]


def maximum_row(m1, s1, m2, s2, r):
    """E max(x, y)^n for n = 1, 2 by integrating over x what y, given x, adds."""
    a, p, b, q, c = (mpf(v) for v in (m1, s1, m2, s2, r))
    deviation = q * sqrt((1 - c) * (1 + c))

    def given(z):
        x, m = a + p * z, b + c * q * z
        t = (m - x) / deviation
        # max = x + (y - x)+ with y - x ~ N(m - x, deviation^2)
        first = (m - x) * cdf(t) + deviation * phi(t)
        second = ((m - x) ** 2 + deviation**2) * cdf(t) + (m - x) * deviation * phi(t)
        return x, first, second

    switch = (b - a) / (p - c * q) if p != c * q else mpf(0)
    near = [switch + k * deviation / abs(p - c * q) for k in (-8, -3, -1, 0, 1, 3, 8)] if p != c * q else []
    cuts = sorted(set([mpf(k) for k in (-20, -12, -8, -4, -2, 0, 2, 4, 8, 12, 20)] + [k for k in near if abs(k) < 20]))

    def integral(f):
        return quad(lambda z: f(*given(z)) * phi(z), cuts)

    mean = integral(lambda x, first, second: x + first)
    variance = integral(lambda x, first, second: x * x + 2 * x * first + second) - mean**2
    return [m1, s1, m2, s2, r, number(mean), number(variance)]


def softmax_row(mean, covariance):
    """Expected probabilities and expected entropy."""
    mean, covariance = np.array(mean), np.array(covariance)
    k = len(mean)
    differences = np.hstack([np.eye(k - 1), -np.ones((k - 1, 1))])
    root = np.linalg.cholesky(differences @ covariance @ differences.T)
    step, end = (0.05, 9) if k < 4 else (0.2, 8)
    z = np.arange(-end, end + step / 2, step)
    weight = np.exp(-z * z / 2)
    weight /= weight.sum()
    grids = np.meshgrid(*[np.arange(len(z))] * (k - 1), indexing="ij")
    points = np.stack([z[g.ravel()] for g in grids])
    weights = np.prod([weight[g.ravel()] for g in grids], axis=0)
    logits = np.vstack([differences @ mean[:, None] + root @ points, np.zeros(points.shape[1])])
    logits -= logits.max(axis=0)
    p = np.exp(logits)
    p /= p.sum(axis=0)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=0)
    return {
        "mean": mean.tolist(),
        "covariance": covariance.ravel().tolist(),
        "probabilities": [round(v, 12) for v in (p @ weights).tolist()],
        "expected_entropy": round(float(entropy @ weights), 12),
    }


def softmax_rows():
    rows = []
    for k, count in ((2, 8), (3, 12), (4, 6)):
        for i in range(count):
            mean = [round(rng.gauss(0, 2.5), 3) for _ in range(k)]
            scale = 10 ** rng.uniform(-1.3, 1)
            if i % 2 == 0:
                covariance = np.diag([round(scale * rng.uniform(0.5, 1.5), 4) for _ in range(k)])
            else:
                factor = np.array([[rng.gauss(0, 1) for _ in range(k + 2)] for _ in range(k)])
                covariance = np.round(scale / (k + 2) * factor @ factor.T, 4)
            rows.append(softmax_row(mean, covariance))
    return rows


def draw(low, high):
    return round(rng.uniform(low, high), 6)


golden = {
    "normal": [normal_row(x) for x in (-36.5, -30.1, -20.0, -12.3, -8.0, -5.7, -4.0, -3.99, -2.5, -1.51, -1.5, -1.49, -1.0,
                                       -0.6, -0.1, -1e-9, 0.0, 1e-9, 0.1, 0.6, 1.0, 1.49, 1.5, 1.51, 2.5, 4.0, 8.0, 20.0, 36.5)],
    "relu": [relu_row(t * s, s) for s in (1.0, 0.03, 700.0)
             for t in (-20.0, -9.0, -6.0, -4.5, -3.0, -2.0, -1.6, -1.4, -1.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 1.4, 1.6, 3.0, 6.0, 9.0)],
    "maximum": [maximum_row(draw(-3, 3), 10 ** draw(-1, 1), draw(-3, 3), 10 ** draw(-1, 1), r)
                for r in (-0.9, -0.3, 0.0, 0.0, 0.0, 0.2, 0.5, 0.9, 0.99) for _ in range(4)]
    + [maximum_row(0.5, 1.0, 0.5, 1.0, 0.0), maximum_row(0.0, 1.0, 6.0, 0.5, 0.0), maximum_row(1.0, 2.0, 1.0, 0.25, 0.3)],
    "gelu": [smooth_row(lambda x: x * cdf(x), m, s) for s in (0.01, 0.3, 1.0, 3.0, 10.0) for m in (-8.0, -3.0, -0.75, 0.0, 1e-6, 1.3, 5.0)],
    "silu": [smooth_row(lambda x: x / (1 + exp(-x)), m, s) for s in (0.01, 0.3, 1.0, 3.0, 10.0) for m in (-8.0, -3.0, -0.75, 0.0, 1.3, 5.0)],
    "softmax": softmax_rows(),
}
print(json.dumps(golden).replace("], [", "],\n[").replace('}, {', '},\n{'))
