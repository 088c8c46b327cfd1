"""Texts to train on from a seqio Task or Mixture.

    data.ParallelText.reader = @seqio_lines.SeqioLines()
    data.ParallelText.source = 'inputs'
    data.ParallelText.target = 'targets'

They are read once, in order and before tokens: batches stay a function of the
seed and the step, so the step is all of the position that a checkpoint needs.
Their order takes an example of each of a split's files in turn; of several
processes each reads its own files, so that there should be as many. Of a
Mixture an epoch has as many examples as there are, of each Task by its rate
(`epochs`), or each once, which is what `seqio.mixing_rate_num_examples` mixes.
"""
from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

from spec_cascades import check
from spec_cascades.evaluation import host_tensorflow
from spec_cascades.training import data

TEXTS = ('inputs', 'targets')
BEFORE_TOKENS = '_pretokenized'        # seqio's suffix of a feature's text


@dataclasses.dataclass(frozen=True)
class SeqioLines:
  """`inputs` and `targets` of a split's examples, as texts.

  Attributes:
    registered: The Task or Mixture, see `seqio_tasks`; its split and lengths
      are not used.
    limit: Examples of a Task's split at most, the first ones, of each of its
      files as many; None: all.
    vocabulary: For `sources.Public`, whose Task is made for one.
    seed: Of preprocessors that draw.
    rates: Whether a Mixture is trained on by its rates; else each of its
      examples is there once an epoch.
  """
  registered: Any
  limit: int | None = None
  vocabulary: Any = None
  seed: int = 0
  rates: bool = True

  def __post_init__(self):
    if self.limit is not None:
      check.interval('limit of SeqioLines', self.limit, 1, 10**9, whole=True)

  @property
  def splits(self) -> tuple[str, ...]:
    """Those of train, validation and test that a Task of it has."""
    return tuple(split for split in data.SPLITS
                 if any(split in task.splits for task in self._tasks))

  @property
  def said(self) -> str | None:
    """What an epoch of a Mixture is, to say when a run begins."""
    if not self._is_mixture:
      return None
    begin = f'{self._whole.name} is a Mixture of {len(self._tasks)} Tasks: '
    if not self.rates:
      return begin + ('all their examples are there once an epoch, whatever '
                      'their rates')
    return begin + 'an epoch has ' + ', '.join(
        f'{rate / sum(self.mixing):.1%} of {task.name}'
        for task, rate in zip(self._those_with('train'), self.mixing))

  @functools.cached_property
  def mixing(self) -> tuple[float, ...]:
    """Rates of the Tasks with a train split, see `epochs.mixed`; empty for all.

    Raises:
      ValueError: A Task has none, or none is above 0.
    """
    if not (self.rates and self._is_mixture):
      return ()
    hint = 'set seqio_lines.SeqioLines.rates=False, which takes all examples.'
    found = []
    for task in self._those_with('train'):
      try:
        found.append(float(self._whole.get_rate(task)))
      except Exception as error:  # pylint: disable=broad-exception-caught
        why = ' '.join(str(error).split())[:200]
        raise ValueError(
            f'The rate of {task.name} in {self._whole.name} is not known '
            f'({type(error).__name__}: {why}); {hint}') from None
    if not (min(found, default=0) >= 0 and sum(found) > 0):
      raise ValueError(f'{self._whole.name} has the rates {found}; allowed: 0 '
                       f'or more, one above 0. Or {hint}')
    return tuple(found)

  @property
  def _is_mixture(self):
    import seqio  # pylint: disable=g-import-not-at-top
    return isinstance(self._whole, seqio.Mixture)

  @functools.cached_property
  def _whole(self):
    host_tensorflow.load()
    return self.registered.whole(self.vocabulary)

  @property
  def _tasks(self):
    import seqio  # pylint: disable=g-import-not-at-top
    return list(seqio.get_subtasks(self._whole))

  def _those_with(self, split):
    return [task for task in self._tasks if split in task.splits]

  def __call__(self, split: str, part: tuple[int, int] = data.ALL
               ) -> list[tuple[int, dict]]:
    """A part's examples, see `data.ParallelText.numbered`; loads TensorFlow.

    Raises:
      ValueError: No such Task or split, its files can't be read, or its
        examples keep no texts.
    """
    host_tensorflow.load()
    import seqio  # pylint: disable=g-import-not-at-top
    if split not in self.splits:
      raise ValueError(f'{self._whole.name} has no split {split!r}; it has '
                       f'{", ".join(self.splits) or "none"}.')
    index, count = part
    tasks, found = self._those_with(split), []
    for j, task in enumerate(tasks):
      with host_tensorflow.readable(
          f'{split} of {task.name}',
          'its files may be damaged: prepare them again.'):
        files = len(task.source.list_shards(split))
        found += [(number * len(tasks) + j, line)
                  for file in range(index, files, count)
                  for number, line in self._file(
                      task, seqio.ShardInfo(file, files), split)]
    return found

  def _file(self, task, shard, split):
    """What is in one of a split's files, an example of each in turn."""
    examples = task.get_dataset(
        None, split=split, shuffle=False, num_epochs=1, shard_info=shard,
        seed=self.seed).as_numpy_iterator()
    numbers = itertools.count(shard.index, shard.num_shards)
    if self.limit is not None:
      numbers = range(shard.index, self.limit, shard.num_shards)
    return [(i, self._line(task, x)) for i, x in zip(numbers, examples)]

  def _line(self, task, example) -> dict:
    missing = [x for x in TEXTS if x + BEFORE_TOKENS not in example]
    if missing:
      raise ValueError(
          f'{task.name} keeps no text of {", ".join(missing)}; its '
          'preprocessors need seqio.preprocessors.tokenize, which does.')
    line = {x: example[x + BEFORE_TOKENS].decode('utf-8') for x in TEXTS}
    return line | dict(near_duplicate=bool(example.get('near_duplicate')))
