"""Finds the polynomials of src/box_muller.rs: those of least maximum error, by Remez' exchange in mpmath.

    python polynomials.py                     (mpmath 1.3.0)

Each is the unknown factor P in an expression whose other parts are exact. The weight makes the levelled error
that of the whole expression.
"""

from mpmath import cos, linspace, log, lu_solve, matrix, mp, mpf, pi, sin, sqrt

mp.dps = 40


def remez(target, variable, weight, low, high, count):
    """Coefficients, lowest first, of P with the least maximum of |weight * (P(variable) - target)|."""
    grid = linspace(low, high, 4001)
    nodes = [(low + high) / 2 - (high - low) / 2 * cos(pi * (i + mpf(1) / 2) / (count + 1)) for i in range(count + 1)]
    for _ in range(12):
        rows = [[variable(x) ** k for k in range(count)] + [(-1) ** i / weight(x)] for i, x in enumerate(nodes)]
        solution = lu_solve(matrix(rows), matrix([target(x) for x in nodes]))
        coefficients = list(solution)[:count]
        error = lambda x: weight(x) * (sum(c * variable(x) ** k for k, c in enumerate(coefficients)) - target(x))
        values = [error(x) for x in grid]
        # the extreme of each stretch of one sign
        extremes, best = [], 0
        for i in range(1, len(grid)):
            if values[i] * values[best] < 0:
                extremes.append(grid[best])
                best = i
            elif abs(values[i]) > abs(values[best]):
                best = i
        extremes.append(grid[best])
        if len(extremes) < count + 1:
            break
        nodes = extremes[: count + 1]
    return coefficients, max(abs(v) for v in values)


def show(name, result):
    coefficients, error = result
    print(name, [f"{float(c):.9e}" for c in coefficients], f"error {float(error):.1e}")


def off_zero(x):
    """The target is 0/0 at zero; so close to it the error does not matter."""
    return x if abs(x) > mpf("1e-4") else mpf("1e-4")


# -2 ln(1 + f) = -2 f + f^2 + f^3 P(f), with m = 1 + f in [sqrt(1/2), sqrt(2)]; error relative to the logarithm
show(
    "ln",
    remez(
        lambda f: (-2 * log(1 + off_zero(f)) + 2 * off_zero(f) - off_zero(f) ** 2) / off_zero(f) ** 3,
        lambda f: f,
        lambda f: off_zero(f) ** 3 / (2 * log(1 + off_zero(f))),
        sqrt(mpf(1) / 2) - 1,
        sqrt(mpf(2)) - 1,
        7,
    ),
)

# sin x = x + x^3 P(x^2) and cos x = 1 + x^2 P(x^2) on [0, pi/2]; absolute error
low, high = mpf("0.001"), pi / 2
show("sin", remez(lambda x: (sin(x) - x) / x**3, lambda x: x * x, lambda x: x**3, low, high, 4))
show("cos", remez(lambda x: (cos(x) - 1) / x**2, lambda x: x * x, lambda x: x**2, low, high, 4))
