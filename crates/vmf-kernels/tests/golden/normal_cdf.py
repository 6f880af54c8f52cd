"""The polynomials of src/normal_cdf.rs: least maximum error, by Remez' exchange, in mpmath's arithmetic.

    python normal_cdf.py                      (mpmath 1.3.0)

Each tail integral f(u) of the normal distribution, u in [0, end], is approximated by a power of a polynomial, P(u)^n
(the density by P(u^2)^n), which follows the decay of a Gaussian with few coefficients. The error of P^n is n P^(n-1)
times that of P, which is the weight of the exchange. With each is printed the error of the approximation itself, in
exact arithmetic but with rounded coefficients.
"""

import struct

from mpmath import cos, erfc, exp, linspace, lu_solve, matrix, mp, mpf, pi, sqrt

mp.dps = 40


def phi(u):
    return exp(-u * u / 2) / sqrt(2 * pi)


def q(u):
    return erfc(u / sqrt(mpf(2))) / 2


def h(u):
    return phi(u) - u * q(u)


def e(u):
    return (1 + u * u) * q(u) - u * phi(u)


def remez(target, weight, low, high, count):
    """Coefficients, lowest first, of P with the least maximum of |weight * (P - target)|."""
    grid = linspace(low, high, 1001)
    targets, weights = [target(x) for x in grid], [weight(x) for x in grid]
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle - half * cos(pi * (i + mpf(1) / 2) / (count + 1)) for i in range(count + 1)]
    for _ in range(20):
        rows = [[x**k for k in range(count)] + [(-1) ** i / weight(x)] for i, x in enumerate(nodes)]
        coefficients = list(lu_solve(matrix(rows), matrix([target(x) for x in nodes])))[:count]
        values = [w * (polynomial(coefficients, x) - t) for x, w, t in zip(grid, weights, targets)]
        # the extreme of each stretch of one sign
        extremes, best = [], 0
        for i in range(1, len(grid)):
            if values[i] * values[best] < 0:
                extremes.append(best)
                best = i
            elif abs(values[i]) > abs(values[best]):
                best = i
        extremes.append(best)
        # too many: drop the weaker end, again and again, which keeps the signs alternating
        while len(extremes) > count + 1:
            del extremes[0 if abs(values[extremes[0]]) < abs(values[extremes[-1]]) else -1]
        if len(extremes) < count + 1:
            break
        nodes = [grid[i] for i in extremes]
    return coefficients


def polynomial(coefficients, x):
    value = mpf(0)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def single(c):
    """The nearest single-precision number."""
    return mpf(struct.unpack("f", struct.pack("f", float(c)))[0])


def double(c):
    return mpf(float(c))


def show(name, f, rounded, end, power, count, square=False):
    argument = (lambda x: sqrt(x)) if square else (lambda x: x)
    high = mpf(end) ** 2 if square else mpf(end)
    target = lambda x: f(argument(x)) ** (mpf(1) / power)
    weight = lambda x: power * f(argument(x)) ** (1 - mpf(1) / power)
    coefficients = [rounded(c) for c in remez(target, weight, mpf(0), high, count)]
    error = max(abs(polynomial(coefficients, x) ** power - f(argument(x))) for x in linspace(0, high, 3001))
    last = polynomial(coefficients, high) ** power
    print(f"{name}: power {power}, error {float(error):.1e}, at the end {float(last):.1e}")
    digits = ".9e" if rounded is single else ".17e"
    print("  [" + ", ".join(f"{float(c):{digits}}" for c in coefficients) + "]")


if __name__ == "__main__":
    for rounded, end, power, counts in ((single, "5.6", 4, (8, 9, 9, 9)), (double, "8.5", 8, (16, 22, 22, 22))):
        print("single precision" if rounded is single else "double precision")
        show("phi", phi, rounded, end, power, counts[0], square=True)
        show("q", q, rounded, end, power, counts[1])
        show("h", h, rounded, end, power, counts[2])
        show("e", e, rounded, end, power, counts[3])
