"""Linear regression of one quantity on a few others, from moments that are updated with each observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Matrix = list[list[float]]

# Added to the diagonal of the correlations: equal and constant inputs still have a solution. Equal inputs
# share the coefficient, and the error does not show it, so look at the inflation.
RIDGE: Final = 1e-3

MAX_AUTOCORRELATION: Final = 0.98  # an estimate of 1 would make every error infinite


@dataclass(frozen=True, slots=True)
class Regression:
    """Coefficients of the inputs. Errors are those of independent residuals: see `error_inflation`."""

    coefficients: tuple[float, ...]
    """Change of the output by one unit of each input."""
    errors: tuple[float, ...]
    """Standard error of each coefficient."""
    inflations: tuple[float, ...]
    """Variance inflation factor of each input: 1 if it is independent of the others."""
    explained: float
    """Share of the output's variance that the inputs explain, 0..1."""


class Moments:
    """Means and covariances of some inputs and an output, with exponential forgetting.

    Least squares from them are those of recursive least squares, in its information form: it stays exact with
    inputs that stand still, which makes the covariance of the other form grow without bound.

    Args:
        inputs: number of inputs.
        forgetting: weight of an observation after the next one, up to 1.
    """

    def __init__(self, inputs: int, forgetting: float = 1.0) -> None:
        self.weight: float = 0.0
        """Observations, less what was forgotten of them."""
        self.means: list[float] = [0.0] * (inputs + 1)
        self._squared_weight = 0.0
        self._sums: Matrix = [[0.0] * (inputs + 1) for _ in self.means]
        self._forgetting = forgetting

    def add(self, values: Sequence[float]) -> None:
        """Add an observation: the inputs, and the output as the last value."""
        keep = self._forgetting
        self.weight = keep * self.weight + 1.0
        self._squared_weight = keep * keep * self._squared_weight + 1.0
        before = [value - mean for value, mean in zip(values, self.means, strict=True)]
        self.means = [mean + change / self.weight for mean, change in zip(self.means, before, strict=True)]
        after = [value - mean for value, mean in zip(values, self.means, strict=True)]
        self._sums = [
            [keep * old + change * other for old, other in zip(row, after, strict=True)]
            for row, change in zip(self._sums, before, strict=True)
        ]

    def deviation(self, index: int) -> float:
        """Return the standard deviation of an input, or of the output."""
        return math.sqrt(max(self._sums[index][index], 0.0) / self.weight) if self.weight else 0.0

    def correlation(self, one: int, other: int) -> float:
        """Return the correlation of two inputs; 0 if one of them is constant."""
        scale = math.sqrt(max(self._sums[one][one] * self._sums[other][other], 0.0))
        return self._sums[one][other] / scale if scale else 0.0

    def regress(self, ridge: float = RIDGE) -> Regression:
        """Return the regression of the output on the inputs, which needs more observations than inputs."""
        inputs = range(len(self.means) - 1)
        output, scales = len(inputs), [self.deviation(index) for index in range(len(self.means))]
        inverse = inverted(
            [[self.correlation(a, b) + (ridge if a == b else 0.0) for b in inputs] for a in inputs]
        )
        with_output = [self.correlation(index, output) for index in inputs]
        standard = [sum(x * y for x, y in zip(row, with_output, strict=True)) for row in inverse]
        # The ridge makes the coefficients smaller than those with the least residuals: hence the second sum.
        explained = sum(b * (r + ridge * b) for b, r in zip(standard, with_output, strict=True))
        explained = min(max(explained, 0.0), 1.0)
        # The weights of forgotten observations are errors of known size: hence the sum of their squares.
        unexplained = (1.0 - explained) * self._squared_weight / self.weight
        unit = unexplained / max(self.weight - output - 1, 1.0)
        ratios = [scales[output] / scales[index] if scales[index] else 0.0 for index in inputs]
        return Regression(
            coefficients=tuple(b * ratio for b, ratio in zip(standard, ratios, strict=True)),
            errors=tuple(math.sqrt(unit * inverse[i][i]) * ratios[i] for i in inputs),
            inflations=tuple(inverse[i][i] for i in inputs),
            explained=explained,
        )


def inverted(matrix: Matrix) -> Matrix:
    """Return the inverse of a symmetric positive definite matrix, such as correlations with a ridge."""
    size = len(matrix)
    rows = [[*row, *(float(index == column) for column in range(size))] for index, row in enumerate(matrix)]
    for column in range(size):  # no pivoting: the diagonal of a definite matrix stays positive
        pivot = rows[column] = [value / rows[column][column] for value in rows[column]]
        for index, row in enumerate(rows):
            if index != column and row[column]:
                factor = row[column]
                rows[index] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
    return [row[size:] for row in rows]


def error_inflation(autocorrelation: float) -> float:
    """Return the factor of a standard error whose residuals are correlated with those before them."""
    known = min(max(autocorrelation, 0.0), MAX_AUTOCORRELATION)
    return math.sqrt((1.0 + known) / (1.0 - known))
