"""The engine as what `seqio.Evaluator` calls: predictions with statistics.

  engine = predict.Engine(pair, curves, buckets)
  evaluator.evaluate(compute_metrics=True, **engine.functions(point))

Each example is enumerated by seqio; predictions go back with its number, in any
order, and each statistic as a list in the order of the predictions. seqio sorts
both and hands the statistics to metrics that take `aux_values`, as `decoding`.
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from spec_cascades import stats as stats_lib
from spec_cascades.evaluation import asking
from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import metrics
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import text
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

INPUTS = ('encoder_input_tokens', 'inputs')      # converted, or the Task's own
PLAIN = 'inputs_pretokenized'
# Indices with tokens, and by name a list of what was counted of each.
Outputs = tuple[list[tuple[int, np.ndarray]], dict[str, list[Any]]]


class Engine:
  """Decodes seqio's data sets at any point of some curves.

  Args:
    pair: The models.
    curves: Of the points that will be asked for.
    buckets: What inputs are padded to; each costs its own programs.
    seed: Of the samples; example i has the key that it has in a sweep.
    batch: Rows decoded together; with 1, every example is timed.
    end: As in `asking.Asking`.

  `late` counts programs that were compiled while the clock ran.
  """

  def __init__(self, pair: pairs.Pair, curves: Sequence[points_lib.Curve],
               buckets: Sequence[programs_lib.Bucket], *, seed: int = 0,
               batch: int = 1, end: str | None = None):
    self._pair, self.buckets = pair, buckets
    self._one_text = pair.prompt is text.prefix_prompt
    self._seed, self._batch = seed, batch
    self._programs = programs_lib.Programs(
        pair, curves, eos=asking.Asking(end=end).ends(pair.vocabulary))
    # Prompts are made once for all points: the clock must not see it.
    self.prompts = functools.lru_cache(maxsize=None)(self._make_prompts)
    self._starts: dict[Any, list[int]] = {}
    self._rows: dict[Any, list[list[int]]] = {}
    self.late = 0

  def compilations(self, points: Iterable[points_lib.Point],
                   dataset: Any) -> dict[Any, tuple[points_lib.Point, int]]:
    """A point and an example of each program, by name and bucket."""
    buckets = self.prompts(dataset).buckets
    return {(self._programs.name(point), bucket): (point, i)
            for point in points for i, bucket in enumerate(buckets)}

  def compile(self, points: Sequence[points_lib.Point],
              dataset: Any) -> timing.CompileLog:
    """Compiles and warms up what `functions` of these points will run."""
    prompts, total = self.prompts(dataset), timing.CompileLog()
    self._programs.prepare(points)
    for point, i in self.compilations(points, dataset).values():
      log = self._programs.compile(point, *prompts(i, size=self._batch))
      total.programs += log.programs
      total.seconds += log.seconds
    for some in self._units(dataset):
      prompts(*some, size=self._batch)
    return total

  def functions(self, point: points_lib.Point) -> dict[str, Callable[..., Any]]:
    """What `seqio.Evaluator.evaluate` wants; both share one decode."""
    decode = functools.lru_cache(maxsize=1)(
        functools.partial(self._decode, point))
    return dict(predict_fn=lambda dataset, *unused: decode(dataset)[0],
                predict_with_aux_fn=lambda dataset, *unused: decode(dataset))

  def foreseen(self, point: points_lib.Point) -> bool:
    """Whether a chain of a model drafts there, whose tokens are predicted."""
    return foretold.foreseen(point, self._programs)

  def predicted(self, point: points_lib.Point, dataset: Any,
                outputs: Outputs) -> float | None:
    """Tokens a verifier call, from one pass over what was decoded.

    None where a fault cut a text short, and where no chain of a model drafted.

    Args:
      point: Who decoded.
      dataset: What was decoded.
      outputs: What `predict_with_aux_fn` has given for it.
    """
    found, counted = outputs
    if any(counted['fault']) or not self.foreseen(point):
      return None
    return foretold.tokens_per_call(
        self._pair, self._programs, point,
        [self._rows[dataset][i] for i, _ in found],
        [row[:n].tolist() for (_, row), n in zip(found, counted['emitted'])])

  def _units(self, dataset: Any) -> list[list[int]]:
    """Examples that are decoded together: all of one bucket."""
    prompts, count = self.prompts(dataset), len(self._starts[dataset])
    plan = work.Plan(count, count if self._batch == 1 else 0, 1, self._batch)
    return [[example for _, example, _ in unit.decodes]
            for unit in work.units(plan, [''], prompts.buckets, self._seed)]

  def _decode(self, point: points_lib.Point, dataset: Any) -> Outputs:
    prompts, starts = self.prompts(dataset), self._starts[dataset]
    indices, tokens, counted = [], [], []
    with timing.CompileLog() as log, timing.quiet():
      for some in self._units(dataset):
        seconds, state = timing.timed(self._programs.call, point,
                                      *prompts(*some, size=self._batch))
        own = dict(seconds=seconds) if self._batch == 1 else {}
        for index, (row, fault, counters) in zip(
            some, programs_lib.outputs_of(state, [starts[i] for i in some])):
          indices.append(index)
          tokens.append(row)
          counted.append(dict(counters, fault=fault, **own))
    self.late += log.programs
    # seqio makes one array of all: rows of different lengths would not do.
    rows = text.pad(tokens, max(map(len, tokens)))
    return list(zip(indices, rows)), {
        name: [c[name] for c in counted] for name in counted[0]}

  def _make_prompts(self, dataset: Any) -> programs_lib.Prompts:
    rows = [self.row(index, example)
            for index, example in dataset.as_numpy_iterator()]
    if not rows:
      raise ValueError('The data set has no example; take another split.')
    self._rows[dataset] = rows
    self._starts[dataset] = [len(row) if self._one_text else 1 for row in rows]
    return programs_lib.Prompts(rows, self.buckets, self._seed,
                                self._pair.prompt)

  def row(self, index: int, example: Mapping[str, Any]) -> list[int]:
    """Tokens of an input; a decoder's are made of the text, as BOS is its own.

    Raises:
      ValueError: There are none, or there is no such feature.
    """
    wanted = (PLAIN,) if self._one_text else INPUTS
    found = next((name for name in wanted if name in example), None)
    if found is None:
      raise ValueError(f'The Task\'s examples have {", ".join(example)}; '
                       f'{" or ".join(wanted)} is needed.')
    if self._one_text:
      return examples_lib.encode(
          self._pair.vocabulary, example[found].decode(),
          self._pair.max_input_length, what=f'Example {index}')
    row = example[found].tolist()
    while row and row[-1] == text.PAD:
      row.pop()
    if not row:
      raise ValueError(f'Example {index} is empty; give at least one word.')
    return row


def faults(outputs: Outputs) -> dict[int, int]:
  """By an example's number, the round whose logits were not finite."""
  found, counted = outputs
  return {int(i): int(fault) for (i, _), fault in zip(found, counted['fault'])
          if fault}


def decoding(targets: Any, predictions: Any, aux_values: Mapping[str, Any]
             ) -> dict[str, float]:
  """A metric for seqio Tasks: what decoding cost, named as in `results.Row`.

  Args:
    targets: Not looked at.
    predictions: Not looked at.
    aux_values: From `Engine.functions`: one entry an example each.
  """
  del targets, predictions
  names = [f.name for f in dataclasses.fields(stats_lib.Stats)]
  columns = [np.asarray(aux_values[name]).tolist() for name in names]
  counters = [dict(zip(names, row)) for row in zip(*columns)]
  found = metrics.ratios(counters)
  found['faults'] = int((np.asarray(aux_values['fault']) > 0).sum())
  if 'seconds' in aux_values:
    seconds = np.asarray(aux_values['seconds'])
    found.update(metrics.latencies(seconds))
    found['tokens_per_second'] = found['emitted'] / float(seconds.sum())
  del found['histogram']
  return {name: x for name, x in found.items() if x is not None}
