"""Statistics over seeds: means with confidence intervals, areas, thresholds that some runs never reach."""

from collections.abc import Callable, Sequence
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
_REPETITIONS = 50_000  # of the bootstrap, as in rliable

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

    Such a run is treated as infinite in `median`, which is None if it is. The mean exists only where all runs reached
    the threshold.
    """

    values: tuple[float | None, ...]
    reached: int
    median: float | None
    estimate: Estimate | None


def t_975(degrees: int) -> float:
    """Student's t at 0.975; between tabulated degrees of freedom the fewer, which is the wider interval."""
    return _T_975[max(each for each in _T_975 if each <= degrees)]


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Mean, spread (n - 1 in the denominator) and interval of the values that there are; None if there are none."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Estimate(known[0], None, None, None, 1) if known else None
    mean, std = fmean(known), stdev(known)
    half = t_975(len(known) - 1) * std / sqrt(len(known))
    return Estimate(mean, std, mean - half, mean + half, len(known))


def interquartile(values: Sequence[float]) -> Estimate:
    """Mean of the middle half of the runs with a bootstrap interval (Agarwal et al., 2021; their library rliable).

    As there, a quarter of the runs, rounded down, is cut off at either end: none of fewer than four.
    """
    n = len(values)
    cut = n // 4

    def mean(values_RN: FloatArray) -> FloatArray:
        return np.sort(values_RN)[:, cut : n - cut].mean(axis=1)

    runs_N = np.sort(values)
    low, high = bootstrap(mean, runs_N) if n > 1 else (None, None)
    return Estimate(float(mean(runs_N[None])[0]), None, low, high, n)


def bootstrap(statistic: Callable[..., FloatArray], *strata: FloatArray) -> tuple[float, float]:
    """95 % percentile interval of a statistic of independent `strata`, arrays of runs, each resampled on its own.

    `statistic` gets an array (R, N, ...) for each of shape (N, ...), and returns R values. Every call draws the same.
    """
    rng = np.random.default_rng(0)
    drawn = [runs[rng.integers(len(runs), size=(_REPETITIONS, len(runs)))] for runs in strata]
    low, high = np.percentile(statistic(*drawn), [2.5, 97.5], method="inverted_cdf")  # values that occur, as inf may
    return float(low), float(high)


def break_even(
    ones: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]
) -> tuple[float | None, tuple[float | None, float | None] | None]:
    """From which latency of a step on, in seconds, `ones` are faster than `others`: 0 is at any latency, None never.

    Both hold the (waits, seconds) of their runs, inf if a run did not reach the threshold. If a step takes l seconds
    longer, a run takes seconds + l waits. The sides are compared by their medians. Also returns the 95 % confidence
    interval; one seed on both sides has none.
    """

    def latency(ones_RN2: FloatArray, others_RN2: FloatArray) -> FloatArray:
        waits_R, seconds_R = np.median(ones_RN2, axis=1).T
        other_waits_R, other_seconds_R = np.median(others_RN2, axis=1).T
        with np.errstate(divide="ignore", invalid="ignore"):  # where a median is infinite, or no wait is saved
            latency_R: FloatArray = np.maximum(0.0, (seconds_R - other_seconds_R) / (other_waits_R - waits_R))
        latency_R[np.isinf(other_waits_R) | (seconds_R <= other_seconds_R)] = 0.0
        latency_R[(waits_R > other_waits_R) | np.isinf(waits_R)] = np.inf
        return latency_R

    runs = np.array(ones, dtype=float), np.array(others, dtype=float)
    (point,) = latency(*(each[None] for each in runs))
    if max(map(len, runs)) == 1:
        return _finite(point), None
    low, high = bootstrap(latency, *runs)
    return _finite(point), (_finite(low), _finite(high))


def _finite(value: float) -> float | None:
    return None if value == inf else float(value)


def ratio(numerators: Sequence[float | None], denominators: Sequence[float | None]) -> Estimate | None:
    """Geometric mean of the ratios seed by seed, where both are known and positive, with its interval.

    The interval is Student's t on the logarithms, so that A / B and B / A say the same; `std` is left out.
    """
    found = estimate([log(a / b) for a, b in zip(numerators, denominators, strict=True) if a and b])
    if found is None:
        return None
    low, high = (None if bound is None else exp(bound) for bound in (found.low, found.high))
    return Estimate(exp(found.mean), None, low, high, found.n)


def crossing(values: Sequence[float | None]) -> Crossing:
    """The cost of a threshold, which some runs may never have reached."""
    known = [value for value in values if value is not None]
    middle = median(inf if value is None else value for value in values)
    mean = estimate(known) if len(known) == len(values) else None
    return Crossing(tuple(values), len(known), _finite(middle), mean)


def area(axis: Sequence[float], values: Sequence[float], end: float) -> float:
    """Mean of a curve from its first point to `end`: trapezoids, with a straight line to a point at `end`."""
    x = np.array([*(at for at in axis if at < end), end])
    y = np.interp(x, axis, values)
    return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0])


def band(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]], at: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation (n - 1; 0 of one) over `curves` at `at`, by straight lines between their points."""
    values_SN = np.array([np.interp(at, axis, values) for axis, values in curves])
    spread_N = values_SN.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(at))
    return values_SN.mean(axis=0), spread_N
