"""Texts to train on from a seqio Task or Mixture.

    data.ParallelText.reader = @seqio_lines.SeqioLines()
    data.ParallelText.source = 'inputs'
    data.ParallelText.target = 'targets'

They are read once, in order and before tokens: batches stay a function of the
seed and the step, so the step is all of the position that a checkpoint needs.
"""
from __future__ import annotations

import dataclasses
import itertools

from spec_cascades import check
from spec_cascades.evaluation import host_tensorflow
from spec_cascades.evaluation import seqio_tasks
from spec_cascades.training import data

TEXTS = ('inputs', 'targets')
BEFORE_TOKENS = '_pretokenized'        # seqio's suffix of a feature's text


@dataclasses.dataclass(frozen=True)
class SeqioLines:
  """`inputs` and `targets` of a split's examples, as texts.

  Attributes:
    registered: The Task or Mixture; its split and lengths are not used.
    limit: Examples of a split at most, the first ones; None: all.
  """
  registered: seqio_tasks.Registered
  limit: int | None = None

  def __post_init__(self):
    if self.limit is not None:
      check.interval('limit of SeqioLines', self.limit, 1, 10**9, whole=True)

  @property
  def splits(self) -> tuple[str, ...]:
    """Those of train, validation and test that it has."""
    tasks, _ = self.registered.tasks(None)
    return tuple(split for split in data.SPLITS
                 if all(split in task.splits for task in tasks))

  def __call__(self, split: str) -> list[dict]:
    """The examples of a split; loads TensorFlow.

    Raises:
      ValueError: No such Task or split, its files can't be read, or its
        examples keep no texts.
    """
    tensorflow = host_tensorflow.load()
    import seqio  # pylint: disable=g-import-not-at-top
    if split not in self.splits:
      raise ValueError(f'{self.registered.mixture_or_task_name} has no split '
                       f'{split!r}; it has {", ".join(self.splits) or "none"}.')
    found = seqio.get_mixture_or_task(self.registered.mixture_or_task_name)
    examples = found.get_dataset(None, split=split, shuffle=False,
                                 num_epochs=1).as_numpy_iterator()
    try:
      return [self._line(x) for x in itertools.islice(examples, self.limit)]
    except tensorflow.errors.OpError as error:
      short = ' '.join(str(error.message).split())[:200]
      raise ValueError(
          f"{split} of {self.registered.mixture_or_task_name} can't be read "
          f'({type(error).__name__}: {short}); its files may be damaged: '
          'prepare them again.') from None

  def _line(self, example) -> dict:
    missing = [x for x in TEXTS if x + BEFORE_TOKENS not in example]
    if missing:
      raise ValueError(
          f'{self.registered.mixture_or_task_name} keeps no text of '
          f'{", ".join(missing)}; its preprocessors need seqio.preprocessors'
          '.tokenize, which does.')
    line = {x: example[x + BEFORE_TOKENS].decode('utf-8') for x in TEXTS}
    return line | dict(near_duplicate=bool(example.get('near_duplicate')))
