"""Statistics over seeds: means with confidence intervals, areas, thresholds that some runs never reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import fmean, median, stdev

import numpy as np
import numpy.typing as npt

# Student's t at 0.975, two-sided 95 %, by degrees of freedom.
_T_975 = {
    **dict(enumerate([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228], start=1)),
    **dict(enumerate([2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086], start=11)),
    **dict(enumerate([2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042], start=21)),
    **{40: 2.021, 60: 2.000, 120: 1.980},
}

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, the standard deviation between them, and the 95 % confidence interval of the mean.

    The interval is Student's t with n - 1 degrees of freedom. One seed has neither spread nor interval.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Crossing:
    """The cost of a threshold over seeds, such as steps or seconds; None among `values` is a run that never reached it.

    Such a run is treated as infinite in `median`, which is None if the median is infinite.
    """

    values: tuple[float | None, ...]
    reached: int
    median: float | None


def t_975(degrees: int) -> float:
    """Student's t at 0.975; between tabulated degrees of freedom, that of the lower, so the interval is wider."""
    return _T_975[max(each for each in _T_975 if each <= degrees)]


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Mean, spread (n - 1 in the denominator) and interval of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Estimate(known[0], None, None, None, 1) if known else None
    mean, std = fmean(known), stdev(known)
    half = t_975(len(known) - 1) * std / sqrt(len(known))
    return Estimate(mean, std, mean - half, mean + half, len(known))


def ratio(numerators: Sequence[float | None], denominators: Sequence[float | None]) -> Estimate | None:
    """Geometric mean of the ratios by seed, where both values are known and positive, with its interval.

    The interval is Student's t on the logarithms, so A / B and B / A agree; `std` is None.
    """
    found = estimate([log(a / b) for a, b in zip(numerators, denominators, strict=True) if a and b])
    if found is None:
        return None
    low, high = (None if bound is None else exp(bound) for bound in (found.low, found.high))
    return Estimate(exp(found.mean), None, low, high, found.n)


def crossing(values: Sequence[float | None]) -> Crossing:
    """The cost of a threshold, which some runs may never have reached."""
    middle = median(inf if value is None else value for value in values)
    reached = sum(value is not None for value in values)
    return Crossing(tuple(values), reached, None if middle == inf else middle)


def area(axis: Sequence[float], values: Sequence[float], end: float) -> float:
    """Mean of a curve from its first point to `end`: trapezoids, with a straight line to a point at `end`."""
    x = np.array([*(at for at in axis if at < end), end])
    y = np.interp(x, axis, values)
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0])


def band(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]], at: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation (n - 1; 0 for one curve) of `curves` at `at`, interpolated linearly."""
    values_SN = np.array([np.interp(at, axis, values) for axis, values in curves])
    spread_N = values_SN.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(at))
    return values_SN.mean(axis=0), spread_N
