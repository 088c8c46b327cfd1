"""What drafts would gain on a slice of TPUs, by what compile_tpu.py estimates.

Tokens are those that a sweep counted, costs those of another pair of models on
the slice: an order of drafters there, not a promise. Sampling is left out.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Callable

from spec_cascades import check
from spec_cascades import theory

NEEDED = ('topology', 'flatness', 'cost', 'layer', 'head', 'case')


@dataclasses.dataclass(frozen=True)
class Slice:
  """Costs on a slice, in steps of its verifier.

  Attributes:
    name: Such as v4-8.
    models: Of which they are.
    times: Of its blocks by width, and of its small model's step.
    layer: Of one of its decoder layers.
    head: Of its head over the vocabulary.
  """
  name: str
  models: str
  times: theory.StepTimes
  layer: float
  head: float

  @property
  def small(self) -> float:
    """c: a step of the small model."""
    return self.times.drafter


# Of a round: (calls of the drafter, slice) -> time, in steps of the verifier.
Cost = Callable[[float, Slice], float]


def nothing(calls: float, on: Slice) -> float:
  """Tables and texts are looked up."""
  del calls, on
  return 0.


def small(calls: float, on: Slice) -> float:
  """Each call is a step of the small model."""
  return calls * on.small


def heads(calls: float, on: Slice) -> float:
  """Each call is a head, as large as the verifier's own."""
  return calls * on.head


def layer(calls: float, on: Slice) -> float:
  """Each call is a layer like one of the verifier's, and its head."""
  return calls * (on.layer + on.head)


def layer_and_heads(calls: float, on: Slice) -> float:
  """One call is such a layer, the others are heads."""
  return on.layer + heads(calls - 1, on)


def part(share: float) -> Cost:
  """Each call goes through a share of the verifier's layers, and its head."""
  return lambda calls, on: calls * (share * (1 - on.head) + on.head)


def read(path: pathlib.Path) -> Slice:
  """What `compile_tpu.py --json` has written.

  Raises:
    ValueError: There is no such file, or it holds something else.
  """
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
    lacking = [x for x in NEEDED if x not in found]
    if lacking:
      raise ValueError(f'it lacks {", ".join(lacking)}')
    case = found['case']
    return Slice(
        found['topology'], f'{case["drafter"]} -> {case["verifier"]}',
        theory.StepTimes({int(w): x for w, x in found['flatness'].items()},
                         found['cost']),
        *(_share(name, found[name]) for name in ('layer', 'head')))
  except OSError as error:
    raise ValueError(f'{path}: {error.strerror}; give a file that '
                     'scripts/compile_tpu.py --json wrote.') from None
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
        f'{path} has no estimates of a slice: {error}; give a file that '
        'scripts/compile_tpu.py --json wrote, without --only=programs or '
        '--batches.') from None


def _share(name: str, value: Any) -> float:
  check.interval(name, value, 0, 1, hint='It is a share of a step.')
  return value


def speedup(row: Any, cost: Cost | None, on: Slice) -> float | None:
  """Over the verifier alone there; None if it is not known what drafts cost.

  tokens per call / (block of all nodes + drafting), nodes being those that the
  verifier scores, scratch nodes and empty places included.

  Args:
    row: A `results.Row` with drafts.
    cost: Of a round's drafting.
    on: The slice.
  """
  nodes = len(row.histogram)
  if cost is None or nodes > max(on.times.verifier):
    return None
  calls = row.drafter_calls / row.rounds
  return row.tokens_per_call / (on.times.block(nodes) + cost(calls, on))
