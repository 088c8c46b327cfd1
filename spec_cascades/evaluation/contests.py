"""Curves against each other: who is faster, who is better, and how surely."""
from __future__ import annotations

import dataclasses
import itertools
from typing import Mapping, Sequence

import numpy as np

from spec_cascades.evaluation import frontier
from spec_cascades.evaluation import measured as measured_lib
from spec_cascades.evaluation import points as points_lib

WIN, LOSS, UNDECIDED, EQUAL = 'win', 'loss', 'undecided', 'equal'
LEVELS = 21                     # at which two frontiers are compared
TOKEN = ('TokenV1', 'TokenV2', 'TokenV3')
TRUNCATED = ('TruncatedMinP', 'TruncatedTopP', 'TruncatedEta')


@dataclasses.dataclass(frozen=True)
class Line:
  """A curve at one temperature.

  Attributes:
    method: Its name.
    rule: Without options.
    temperature: Of its points.
    gamma: Tokens drafted a round.
    drafter: Kind of the drafter.
    settings: How many points it has.
    frontier: Of the figures and their resamples, paired over all lines.
  """
  method: str
  rule: str
  temperature: float
  gamma: int
  drafter: str
  settings: int
  frontier: frontier.Frontier


@dataclasses.dataclass(frozen=True)
class Contest:
  """One curve against another at the same temperature.

  Attributes:
    one: Whose win it would be.
    other: The other.
    speed: How many times as fast one is at equal quality.
    quality: By how much one is better at equal latency.
    meet: Whether some quality is on both, so that speed compares it.
  """
  one: Line
  other: Line
  speed: frontier.Estimate
  quality: frontier.Estimate
  meet: bool


def lines(points: Mapping[str, points_lib.Point],
          samples: Mapping[str, frontier.Samples]) -> list[Line]:
  """All curves with drafts."""
  out = []
  for (method, heat), keys in measured_lib.curves(points).items():
    first = points[keys[0]]
    out.append(Line(
        method, first.rule.split('(')[0], heat, first.gamma, first.drafter,
        len(keys), frontier.Frontier.through([samples[k] for k in keys])))
  return out


def faster(one: frontier.Frontier, other: frontier.Frontier
           ) -> np.ndarray:
  """How many times as fast one is as another at equal quality: [...].

  The geometric mean over the qualities that both span; where they span none
  together, at the best quality of the one that is worse.
  """
  high = np.minimum(one.qualities[..., -1:], other.qualities[..., -1:])
  low = np.minimum(np.maximum(one.qualities[..., :1],
                              other.qualities[..., :1]), high)
  levels = np.minimum(low + (high - low) * np.linspace(0, 1, LEVELS), high)
  return np.exp(np.log(
      other.latency_at(levels) / one.latency_at(levels)).mean(-1))


def meet(one: frontier.Frontier, other: frontier.Frontier) -> bool:
  """Whether both span some quality; else `faster` compares their ends."""
  ours, theirs = (x.qualities.reshape(-1, x.qualities.shape[-1])[0]
                  for x in (one, other))
  return bool(ours[0] <= theirs[-1] and theirs[0] <= ours[-1])


def better(one: frontier.Frontier, other: frontier.Frontier
           ) -> np.ndarray:
  """By how much one's quality exceeds another's at equal latency: [...].

  The mean over the latencies that both span; where they span none together,
  at the lowest latency of the one that is slower.
  """
  low = np.maximum(one.latencies[..., :1], other.latencies[..., :1])
  high = np.maximum(np.minimum(one.latencies[..., -1:],
                               other.latencies[..., -1:]), low)
  levels = np.maximum(low + (high - low) * np.linspace(0, 1, LEVELS), low)
  return (one.quality_at(levels) - other.quality_at(levels)).mean(-1)


def contests(curves: Sequence[Line]) -> list[Contest]:
  """Every curve against every other one at its temperature."""
  out = []
  for one, other in itertools.combinations(curves, 2):
    if one.temperature == other.temperature:
      pair = one.frontier, other.frontier
      speed, quality = faster(*pair), better(*pair)
      out += [_contest(one, other, speed, quality),
              _contest(other, one, 1 / speed, 0 - quality)]
  return out


def _contest(one, other, speed, quality) -> Contest:
  return Contest(one, other, frontier.estimate(speed, 1.0),
                 frontier.estimate(quality, 0.0),
                 meet(one.frontier, other.frontier))


def outcome(estimate: frontier.Estimate, neutral: float) -> str:
  """Win where the whole interval is above neutral; equal where it is all."""
  if estimate.illustrative:
    return UNDECIDED
  if estimate.low == estimate.high == neutral:
    return EQUAL
  return WIN if estimate.low > neutral else LOSS
