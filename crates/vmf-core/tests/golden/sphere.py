"""Golden values of the von Mises-Fisher distribution, at 50 digits and more.

    pip install mpmath gmpy2
    python sphere.py > sphere.csv

No Bessel function is used, so that these numbers check the library's formulas instead of repeating them.
With cos(theta) = tanh(y), the marginal of mu.w on the sphere has the normalizer

    J(D, kappa) = int exp(kappa tanh y) sech(y)^(D-1) dy    over the whole real line,

analytic in the strip |Im y| < pi/2, where the trapezoidal rule converges geometrically. Then

    A         = E tanh y
    1 - A^2   = Var tanh y + E sech^2 y        (each a sum of positive terms)
    A'        = Var tanh y
    C_D       = 1 / (Area(S^(D-2)) J),   ln I_nu from C_D,   KL = kappa A + ln C_D + ln Area(S^(D-1)).

At moderate orders every row is compared with mpmath's besseli as well.
"""

import random
import sys

from mpmath import mp, mpf, cosh, exp, log, loggamma, pi, sqrt, tanh, besseli, nstr

mp.dps = 90  # KL and A' lose up to 40 digits to cancellation here; 50 remain


def log_area(dim):
    return log(2) + mpf(dim) / 2 * log(pi) - loggamma(mpf(dim) / 2)


def moments(dim, kappa):
    """ln J, A and Var tanh y by the trapezoidal rule around the peak of the integrand."""
    n = mpf(dim) - 1
    # kappa sech^2 y = n tanh y at the peak: t = 2 kappa / (n + sqrt(n^2 + 4 kappa^2))
    root = sqrt(n * n + 4 * kappa * kappa)
    t = 2 * kappa / (n + root)
    sech2 = 2 * n / (n + root)
    peak = log((1 + t) * (1 + t) / sech2) / 2
    width = 1 / sqrt(sech2 * (n + 2 * kappa * t))  # curvature: (n + 2 kappa t) sech^2 y
    step = min(width / 6, mpf(1) / 40)

    def log_integrand(y):
        return kappa * tanh(y) - n * log(cosh(y))

    top = log_integrand(peak)
    floor = -mpf(75) * log(10)

    def walk(sign):
        k = 0 if sign > 0 else 1
        while True:
            y = peak + sign * k * step
            value = log_integrand(y) - top
            if value < floor:
                return
            weight = exp(value)
            cosh_y = cosh(y)
            yield weight, tanh(y), 1 / (cosh_y * cosh_y)
            k += 1

    terms = list(walk(+1)) + list(walk(-1))
    total = sum(w for w, _, _ in terms)
    a = sum(w * t for w, t, _ in terms) / total
    variance = sum(w * (t - a) ** 2 for w, t, _ in terms) / total
    mean_sech2 = sum(w * s for w, _, s in terms) / total
    return top + log(total * step), a, variance, mean_sech2


def row(dim, kappa_text):
    kappa = mpf(float(kappa_text))  # the double that the library is given
    log_j, a, variance, mean_sech2 = moments(dim, kappa)
    log_area_below = log(2) + mpf(dim - 1) / 2 * log(pi) - loggamma(mpf(dim - 1) / 2)
    log_c = -(log_area_below + log_j)
    one_minus_a2 = variance + mean_sech2
    kl = kappa * a + log_c + log_area(dim)
    nu = mpf(dim) / 2 - 1
    log_i = nu * log(kappa) - mpf(dim) / 2 * log(2 * pi) - log_c
    if dim <= 200 and kappa <= 500:
        direct = besseli(nu, kappa)
        assert abs(log(direct) - log_i) < mpf(10) ** -45 * max(1, abs(log_i)), (dim, kappa_text)
        assert abs(besseli(nu + 1, kappa) / direct - a) < mpf(10) ** -45 * a, (dim, kappa_text)
    values = (a, one_minus_a2, variance, kl, log_c, log_i)
    return ",".join([str(dim), kappa_text] + [nstr(v, 30, min_fixed=1, max_fixed=0) for v in values])


def points():
    dims = [2, 3, 4, 5, 7, 10, 16, 27, 31, 32, 50, 62, 63, 64, 65, 66, 100, 128, 576, 1000, 4608, 10**4, 10**5, 10**6, 3 * 10**6]
    kappas = ["1e-9", "1e-4", "0.03", "0.7", "5.0", "40.0", "300.0", "4000.0", "60000.0", "1e6", "3e8"]
    for dim in dims:
        for kappa in kappas:
            yield dim, kappa
        # the layers' own regime, kappa of the order of D
        for ratio in (0.03, 0.3, 0.7, 1.0, 3.0, 30.0):
            yield dim, repr(ratio * dim)
    rng = random.Random(20260101)
    for _ in range(250):
        dim = int(round(10 ** rng.uniform(0.302, 6.3)))
        yield max(dim, 2), repr(10 ** rng.uniform(-9, 8.47))
    # where ln C_D passes through zero, two large numbers cancel
    for dim in (20, 64, 101, 1000, 20001, 10**6):
        lo, hi = mpf(0), mpf(10) * dim
        def log_c(kappa):
            return -(log_area(dim - 1) + moments(dim, kappa)[0])
        while log_c(hi) > 0:
            hi *= 2
        if log_c(mpf(1) / 1000) < 0:
            continue
        for _ in range(40):
            mid = (lo + hi) / 2
            lo, hi = (mid, hi) if log_c(mid) > 0 else (lo, mid)
        yield dim, repr(float(lo))


if __name__ == "__main__":
    print("dim,kappa,a,one_minus_a2,a_prime,kl,log_c,log_i")
    for dim, kappa in points():
        print(row(dim, kappa))
        sys.stdout.flush()
