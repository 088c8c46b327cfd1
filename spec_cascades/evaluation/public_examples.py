"""The public data sets' examples for sweeps, and their metrics for seqio.

Functions load TensorFlow when they are called: only then is data read.
"""
from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Callable, Sequence

from spec_cascades import hosts
from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import qualities

LEAST = 64                         # records that a process reads at a time
Score = Callable[[Sequence[Sequence[str]], Sequence[str]], dict[str, float]]


def examples(name: str, *, style: str, split: str | None = None,
             limit: int | None = None, shots: int | None = None, seed: int = 0,
             tfds_data_dir: str | os.PathLike | None = None
             ) -> list[examples_lib.Example]:
  """The prompts of a seqio Task as text, so that any tokenizer may read them.

  Of several processes, which all have to ask, each reads a share of the records
  and gets what the others have read.

  Args:
    name: Of the data set, see `data.public_datasets.DATASETS`.
    style: 't5', or 'few_shot' for decoder-only models.
    split: The default is the one whose scores are published.
    limit: Take the first so many in order of records; None takes all.
    shots: Solved records in a prompt; None takes the data set's number.
    seed: Of the draw of solved records.
    tfds_data_dir: Where TFDS has the data set; the default is that of TFDS.

  Raises:
    ValueError: A name is unknown, a number too small, or the data set missing.
  """
  from spec_cascades.data import public  # It loads TensorFlow.
  if limit is not None and limit < 1:
    raise ValueError(f'Got {limit} examples; give at least 1, or None for all.')
  texts = hosts.together(lambda: public.Texts(
      name, style=style, split=split, shots=shots, seed=seed,
      tfds_data_dir=tfds_data_dir))
  hosts.alike(f'the records of {name}', texts.identity)
  limit, found, start = limit or texts.records, [], 0
  # A record without answers gives no text, so that there may be more to read.
  while start < texts.records and len(found) < limit:
    size = min(max(limit - len(found), LEAST * hosts.count()),
               texts.records - start)
    own = [start + size * (hosts.index() + i) // hosts.count() for i in (0, 1)]
    found += itertools.chain.from_iterable(hosts.gathered(
        [dataclasses.astuple(x) for x in texts.between(*own)]))
    start += size
  return [examples_lib.Example(i, id_, prompt, tuple(references))
          for i, (id_, prompt, references) in enumerate(found[:limit])]


def answer(name: str, style: str, text: str) -> str:
  """The answer in a model's text: what goes on after it is left out."""
  from spec_cascades.data import public_datasets  # It loads TensorFlow.
  return public_datasets.find(name).template(style).clean(text)


def cut(name: str, style: str) -> int | None:
  """Tokens beyond which an input is cut; None for prompts that never are."""
  from spec_cascades.data import public_datasets  # It loads TensorFlow.
  dataset = public_datasets.find(name)
  zero_shot = dataset.template(style).eos
  return dataset.lengths(style)['inputs'] if zero_shot else None


def metric_fns(name: str) -> list[Score]:
  """The data set's metrics, to be given to `data.public.register`."""
  from spec_cascades.data import public_datasets  # It loads TensorFlow.
  return [_score(x) for x in public_datasets.find(name).metrics]


def _score(metric: str) -> Score:
  def score(targets, predictions):
    return {metric: qualities.make(metric)(predictions, targets)}
  score.signatures = lambda targets: {
      metric: qualities.make(metric).signature(targets)}
  return score
