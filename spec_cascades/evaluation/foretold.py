"""Tokens per verifier call of what a chain drafted: predicted and decoded.

The prediction comes from one teacher-forced pass over what was decoded, see
`forced`; where it and the loop disagree, one of them is wrong.
"""
from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterator, Sequence

import jax

from spec_cascades import theory
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import results

SCHEMA = 1
TOLERATED = 0.05          # between what is predicted and what is decoded
MODELS = tuple(drafting.KINDS[x] for x in (drafting.CHAIN, 'skip', 'counts'))


@dataclasses.dataclass(frozen=True)
class Foretold:
  """Tokens per verifier call of one point of a sweep.

  Attributes:
    key: Of the point.
    sweep: Content key of the sweep and its device.
    point: What messages call it.
    predicted: From one pass over its texts.
    decoded: Of the same texts.
    schema: Of the line.
  """
  key: str
  sweep: str
  point: str
  predicted: float
  decoded: float
  schema: int = SCHEMA


def off(predicted: float, decoded: float) -> float:
  """Of a prediction, relative to what was decoded."""
  return predicted / decoded - 1


def shown(predicted: float, decoded: float) -> str:
  """2.1, 2. -> '2.10 (+5.0%)'."""
  return f'{predicted:.2f} ({off(predicted, decoded):+.1%})'


def warning(where: str, predicted: float, decoded: float) -> str | None:
  """What to say where they disagree."""
  if abs(off(predicted, decoded)) <= TOLERATED:
    return None
  return (f'warning: at {where} {predicted:.2f} tokens a call are predicted, '
          f'{decoded:.2f} were decoded; above {TOLERATED:.0%} apart, so trust '
          'neither.')


@contextlib.contextmanager
def reading(otherwise: str) -> Iterator[None]:
  """A pass over texts; ValueError, one line, where memory does not hold it.

  Args:
    otherwise: What to set instead, and what that does.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(
        f'{str(error).splitlines()[0]} (reading texts again, to predict tokens '
        f'a call). All results so far are kept; --gin.{otherwise}.') from error


def foreseen(point: points_lib.Point, programs: programs_lib.Programs) -> bool:
  """Whether a model drafts there in a chain, the small one or another."""
  return bool(point.drafter) and (
      drafting.split(point.drafter)[0] in MODELS
      and not programs.name(point).baseline)


def fits(point: points_lib.Point, programs: programs_lib.Programs) -> bool:
  """Whether the pair's small model drafts there, in a chain."""
  return (point.drafter == drafting.CHAIN
          and not programs.name(point).baseline)


def tokens_per_call(pair: pairs.Pair, programs: programs_lib.Programs,
                    point: points_lib.Point, inputs: Sequence[Sequence[int]],
                    texts: Sequence[Sequence[int]]) -> float:
  """What one pass over the texts of a point that is `foreseen` predicts.

  Args:
    pair: The models.
    programs: Of the point and others.
    point: Who wrote the texts.
    inputs: Tokens that each text answers to.
    texts: New tokens; none of them was cut short by a fault.
  """
  drafter, params = drafting.make(point.drafter, pair, point.gamma)
  rates = forced.acceptance(pair, inputs, texts, *programs.chosen(point),
                            (drafter.lm, params))
  return theory.tokens_per_call(rates, point.gamma)


def measure(run: Any, programs: programs_lib.Programs,
            rows: Sequence[results.Row], records: Any,
            progress: Callable[..., Any]) -> Iterator[Foretold]:
  """Predicts what points of a sweep took, one after the other.

  Args:
    run: A `sweep.Run`.
    programs: Of its points.
    rows: Of points that are `foreseen` and that had no fault.
    records: Of all decodes.
    progress: `tqdm` or something called like it.
  """
  with progress(total=len(rows), initial=0, unit='point',
                desc='reading texts') as bar:
    for row in rows:
      point = run.points[row.key]
      texts = [records[row.key, i, 0].tokens for i in range(len(run.rows))]
      yield Foretold(
          row.key, row.sweep, point.label,
          tokens_per_call(run.pair, programs, point, run.rows, texts),
          row.tokens_per_call)
      bar.update(1)
