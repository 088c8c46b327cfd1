"""What a curve is worth: speed at equal quality, quality at equal latency.

A method's frontier joins its Pareto-optimal points (lower latency, higher
quality) with straight lines: a point on a line is what one gets by mixing the
settings at its ends. Nothing is extrapolated.
"""
from __future__ import annotations

import dataclasses
from typing import Mapping, Sequence

import numpy as np

from spec_cascades.evaluation import metrics


@dataclasses.dataclass(frozen=True)
class Samples:
  """A point: its figures, and those of every bootstrap resample.

  Attributes:
    latency: Relative to the verifier alone.
    quality: Higher is better.
    latencies: [count] resampled, paired over points.
    qualities: [count].
  """
  latency: float
  quality: float
  latencies: np.ndarray
  qualities: np.ndarray

  @property
  def all_qualities(self) -> np.ndarray:
    """The figure itself, then its resamples: [1 + count]."""
    return np.append(self.quality, self.qualities)

  @property
  def all_latencies(self) -> np.ndarray:
    """The figure itself, then its resamples: [1 + count]."""
    return np.append(self.latency, self.latencies)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A figure with its interval; None where a frontier does not reach it."""
  value: float | None
  low: float | None
  high: float | None
  reached: float                # share of resamples that reach it
  illustrative: bool            # the data cannot decide against no difference


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A method against the verifier alone.

  Attributes:
    method: Name of the curve.
    temperature: Of both.
    speedup: Verifier's latency over the method's at the verifier's quality.
    gain: Best quality within the verifier's latency, minus the verifier's.
    best: That quality itself.
    area: `Frontier.area` over the verifier's quality.
  """
  method: str
  temperature: float
  speedup: Estimate
  gain: Estimate
  best: float | None
  area: Estimate


@dataclasses.dataclass(frozen=True)
class Frontier:
  """Pareto-optimal points by rising latency, of each of several resamples.

  A point that others beat repeats the one before it: latencies .2 .3 .6 and
  qualities 10 9 30 become .2 .2 .6 and 10 10 30.

  Attributes:
    latencies: [..., n] rising.
    qualities: [..., n] rising.
  """
  latencies: np.ndarray
  qualities: np.ndarray

  @classmethod
  def of(cls, latencies: np.ndarray, qualities: np.ndarray) -> Frontier:
    """The frontier of points in any order: [..., n] each."""
    x, y = np.asarray(latencies, float), np.asarray(qualities, float)
    order = np.lexsort((-y, x))
    x, y = (np.take_along_axis(a, order, -1) for a in (x, y))
    best = np.maximum.accumulate(y, -1)
    kept = np.ones(y.shape, bool)
    kept[..., 1:] = y[..., 1:] > best[..., :-1]
    last = np.maximum.accumulate(
        np.where(kept, np.arange(y.shape[-1]), 0), -1)
    return cls(*(np.take_along_axis(a, last, -1) for a in (x, y)))

  @classmethod
  def through(cls, curve: Sequence[Samples]) -> Frontier:
    """Of a curve's points: [1 + count, n], the figures themselves first."""
    return cls.of(np.stack([p.all_latencies for p in curve], -1),
                  np.stack([p.all_qualities for p in curve], -1))

  def latency_at(self, quality: np.ndarray) -> np.ndarray:
    """Lowest latency with a quality [..., k]; inf if it is never reached.

    latencies .2 .6, qualities 10 30: latency_at([20]) is [.4].
    """
    found = _between(quality, self.qualities, self.latencies)
    return np.where(quality > self.qualities[..., -1:], np.inf, found)

  def quality_at(self, latency: np.ndarray) -> np.ndarray:
    """Best quality within a latency [..., k]; -inf if it starts later.

    latencies .2 .6, qualities 10 30: quality_at([.4, 1]) is [20, 30].
    """
    found = _between(latency, self.latencies, self.qualities)
    return np.where(latency < self.latencies[..., :1], -np.inf, found)

  def area(self) -> np.ndarray:
    """Mean quality over all latencies from 0 to 1, the verifier's: [...].

    0 where the frontier has not begun, its best where it has ended.
    """
    x = np.minimum(self.latencies, 1)
    y = _between(x, self.latencies, self.qualities)
    lines = (np.diff(x) * (y[..., 1:] + y[..., :-1]) / 2).sum(-1)
    return lines + (1 - x[..., -1]) * y[..., -1]


def _between(level, u, v) -> np.ndarray:
  """v on straight lines where the rising u [..., n] gets to level [..., k].

  v's first before u begins, v's last after u has ended.
  """
  # A point at a time: there are few.
  after = sum((u[..., i:i + 1] < level).astype(int)
              for i in range(u.shape[-1]))
  low, high = np.maximum(after - 1, 0), np.minimum(after, u.shape[-1] - 1)
  take = lambda a, at: np.take_along_axis(a, at, -1)
  gap = take(u, high) - take(u, low)
  part = np.where(gap > 0, level - take(u, low), 0) / np.where(gap > 0, gap, 1)
  start, end = take(v, low), take(v, high)
  return np.where(part < 1, start + part * (end - start), end)


def compare(method: str, temperature: float, curve: Sequence[Samples],
            verifier: Samples) -> Comparison:
  """All figures of one curve, with intervals from shared resamples."""
  line, level = Frontier.through(curve), verifier.all_qualities
  speedups = 1 / line.latency_at(level[:, None])[:, 0]
  bests = line.quality_at(np.ones((len(level), 1)))[:, 0]
  shares = line.area() / np.where(level > 0, level, np.nan)
  return Comparison(
      method, temperature,
      estimate(np.where(speedups > 0, speedups, -np.inf), 1.0),
      estimate(bests - level, 0.0),
      float(bests[0]) if np.isfinite(bests[0]) else None, estimate(shares))


def estimate(values: np.ndarray, neutral: float | None = None) -> Estimate:
  """A figure and its interval.

  Args:
    values: The figure itself, then its resamples: [1 + count]; -inf and NaN
      stand for one that a frontier does not reach.
    neutral: The figure where there is no difference; None if nothing is.
  """
  values = np.where(np.isfinite(values), values, -np.inf)
  low, high = metrics.interval(values[1:])
  finite = lambda x: float(x) if np.isfinite(x) else None
  undecided = neutral is not None and (
      low <= neutral <= high and low < high)           # equal is decided
  return Estimate(finite(values[0]), finite(low), finite(high),
                  float(np.isfinite(values[1:]).mean()), bool(undecided))


def of_points(points: Mapping[tuple[str, float], Sequence[Samples]],
              verifiers: Mapping[float, Samples]) -> list[Comparison]:
  """Compares every (method, temperature) with the verifier there."""
  return [compare(method, heat, curve, verifiers[heat])
          for (method, heat), curve in points.items()]
