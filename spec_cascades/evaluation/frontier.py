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
  """
  method: str
  temperature: float
  speedup: Estimate
  gain: Estimate
  best: float | None


def pareto(latencies: Sequence[float], qualities: Sequence[float]) -> list[int]:
  """Indices that no other point beats, by rising latency and quality."""
  order = sorted(range(len(latencies)),
                 key=lambda i: (latencies[i], -qualities[i]))
  kept, best = [], -np.inf
  for i in order:
    if qualities[i] > best:
      kept.append(i)
      best = qualities[i]
  return kept


def latency_at(quality: float, latencies: Sequence[float],
               qualities: Sequence[float]) -> float:
  """Lowest latency at which the frontier has a quality; inf if it never has.

  latencies .2 .6, qualities 10 30: latency_at(20) is .4.
  """
  kept = pareto(latencies, qualities)
  y = [qualities[i] for i in kept]
  if not kept or y[-1] < quality:
    return np.inf
  return float(np.interp(quality, y, [latencies[i] for i in kept]))


def quality_at(latency: float, latencies: Sequence[float],
               qualities: Sequence[float]) -> float:
  """Best quality of the frontier within a latency; -inf if it starts later.

  latencies .2 .6, qualities 10 30: quality_at(.4) is 20, quality_at(1) is 30.
  """
  kept = pareto(latencies, qualities)
  x = [latencies[i] for i in kept]
  if not kept or x[0] > latency:
    return -np.inf
  return float(np.interp(latency, x, [qualities[i] for i in kept]))


def compare(method: str, temperature: float, curve: Sequence[Samples],
            verifier: Samples) -> Comparison:
  """Both figures of one curve, with intervals from shared resamples."""
  x = [p.latency for p in curve]
  y = [p.quality for p in curve]
  draws = list(zip(np.stack([p.latencies for p in curve], 1),
                   np.stack([p.qualities for p in curve], 1),
                   verifier.qualities))
  speedups = np.array([1 / latency_at(q, a, b) for a, b, q in draws])
  gains = np.array([quality_at(1.0, a, b) - q for a, b, q in draws])
  best = quality_at(1.0, x, y)
  speedup = 1 / latency_at(verifier.quality, x, y)
  return Comparison(
      method, temperature,
      _estimate(speedup if speedup > 0 else -np.inf,
                np.where(speedups > 0, speedups, -np.inf), 1.0),
      _estimate(best - verifier.quality, gains, 0.0),
      best if np.isfinite(best) else None)


def _estimate(value: float, samples: np.ndarray, neutral: float) -> Estimate:
  """-inf stands for a figure that the frontier does not reach."""
  low, high = metrics.interval(samples)
  finite = lambda x: float(x) if np.isfinite(x) else None
  undecided = low <= neutral <= high and low < high    # equal is decided
  return Estimate(finite(value), finite(low), finite(high),
                  float(np.isfinite(samples).mean()), bool(undecided))


def of_points(points: Mapping[tuple[str, float], Sequence[Samples]],
              verifiers: Mapping[float, Samples]) -> list[Comparison]:
  """Compares every (method, temperature) with the verifier there."""
  return [compare(method, heat, curve, verifiers[heat])
          for (method, heat), curve in points.items()]
