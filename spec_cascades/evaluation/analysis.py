"""What a sweep says beyond its curves; needs no model and decodes nothing."""
from __future__ import annotations

import dataclasses
from typing import Mapping

import numpy as np

from spec_cascades.evaluation import choosing
from spec_cascades.evaluation import contests
from spec_cascades.evaluation import findings
from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import measured as measured_lib
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import points as points_lib


@dataclasses.dataclass(frozen=True)
class Rejection:
  """How much of its drafts a point rejected, and what it cost.

  Attributes:
    point: The setting.
    rate: Rejected over judged draft tokens.
    latency: Relative to the verifier alone.
    low: Of the latency's interval.
    high: Of the latency's interval.
    quality: With its interval.
  """
  point: points_lib.Point
  rate: metrics.Estimate
  latency: float
  low: float
  high: float
  quality: metrics.Estimate


@dataclasses.dataclass(frozen=True)
class Analysis:
  """All that is in the tables beside those of a `summary.Summary`."""
  choosing: choosing.Choosing
  contests: list[contests.Contest]
  findings: list[findings.Finding]
  rejections: list[Rejection]


def analyse(measured: measured_lib.Measured,
            samples: Mapping[str, frontier.Samples]) -> Analysis:
  """Everything; samples are those of all texts, `measured.samples()`."""
  lines = contests.lines(measured.points, samples)
  return Analysis(choosing.choose(measured), contests.contests(lines),
                  findings.check(lines), rejections(measured, samples))


def comparisons(points: Mapping[str, points_lib.Point],
                samples: Mapping[str, frontier.Samples]
                ) -> list[frontier.Comparison]:
  """Every curve, and the small model alone, against the verifier alone."""
  verifiers = {heat: samples[key]
               for heat, key in measured_lib.base(points).items()}
  return frontier.of_points(
      {place: [samples[key] for key in keys] for place, keys in
       measured_lib.curves(points, alone=True).items()}, verifiers)


def rejections(measured: measured_lib.Measured,
               samples: Mapping[str, frontier.Samples]) -> list[Rejection]:
  """Of every point that judged any draft."""
  out, weights = [], measured.weights
  for key, point in measured.points.items():
    rejected, accepted = (
        np.array([x[name] for x in measured.stats[key]])
        for name in ('corrected', 'accepted'))
    if point.judged and (rejected + accepted).any():
      found = samples[key]
      out.append(Rejection(
          point, metrics.ratio(rejected, rejected + accepted, weights),
          found.latency, *metrics.interval(found.latencies),
          metrics.Estimate(found.quality, *metrics.interval(found.qualities))))
  return out
