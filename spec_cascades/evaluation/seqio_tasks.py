"""Which seqio Tasks are evaluated: `Registered`, or anything with its members.

  lengths: Most tokens of each feature, as seqio wants them; None: no limit.
  whole(vocabulary): The Task or Mixture, registered, for models with that
    vocabulary.
  tasks(vocabulary): The Tasks that it consists of, and the split that is meant.

So is `sources.Public`. TensorFlow is loaded when functions are called.
"""
from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Mapping

from spec_cascades.evaluation import predict
from spec_cascades.evaluation import text


@dataclasses.dataclass(frozen=True)
class Registered:
  """A Task or a Mixture that a module registers, named as T5X names them.

  Attributes:
    mixture_or_task_name: In seqio's registry.
    mixture_or_task_module: Imported before; None: it is there already.
    split: 'validation', say.
    lengths: T5X's TASK_FEATURE_LENGTHS.
  """
  mixture_or_task_name: str
  mixture_or_task_module: str | None = None
  split: str = 'test'
  lengths: Mapping[str, int] | None = None

  def whole(self, vocabulary: Any) -> Any:
    """ValueError if there is no such module or name."""
    del vocabulary
    import seqio  # pylint: disable=g-import-not-at-top
    if self.mixture_or_task_module:
      try:
        importlib.import_module(self.mixture_or_task_module)
      except ModuleNotFoundError as error:
        raise ValueError(f'Got the module {self.mixture_or_task_module}: '
                         f'{error}; it has to be importable.') from None
    names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if self.mixture_or_task_name not in names:
      raise ValueError(
          f'No Task or Mixture {self.mixture_or_task_name!r}; registered are '
          f'{", ".join(sorted(names)) or "none"}. Name the module that '
          'registers it.')
    return seqio.get_mixture_or_task(self.mixture_or_task_name)

  def tasks(self, vocabulary: Any) -> tuple[list[Any], str]:
    """ValueError if there is no such module or name."""
    import seqio  # pylint: disable=g-import-not-at-top
    return list(seqio.get_subtasks(self.whole(vocabulary))), self.split


def same_tokens(vocabulary: Any) -> Any:
  """A vocabulary of seqio with the tokens of the models."""
  import seqio  # pylint: disable=g-import-not-at-top
  from spec_cascades.data import seqio_vocabularies  # It loads TensorFlow.
  if type(vocabulary) is text.Vocabulary:
    return seqio.SentencePieceVocabulary(vocabulary.path)
  return seqio_vocabularies.TokenizerVocabulary(vocabulary)


def unconverted() -> Any:
  """A feature converter that leaves a Task's features as they are."""
  import seqio  # pylint: disable=g-import-not-at-top

  class Unconverted(seqio.PassThroughFeatureConverter):
    TASK_FEATURES = {}          # seqio 0.0.20's Evaluator asks for these two,
    pack = False                # which its pass-through converter lacks.

  return Unconverted()


def measured(task: Any) -> Any:
  """A Task with `predict.decoding` among its metrics, registered beside it."""
  import seqio  # pylint: disable=g-import-not-at-top
  if predict.decoding in task.metric_fns:
    return task
  name = f'{task.name}_decoding'
  seqio.TaskRegistry.remove(name)
  seqio.TaskRegistry.add_provider(name, task.replace(
      name=name, metric_fns=[*task.metric_fns, predict.decoding]))
  return seqio.TaskRegistry.get(name)


def signatures(task: Any, dataset: Any) -> dict[str, str]:
  """By name of a metric, what it depends on, of those that say it.

  Args:
    task: Its metric functions may have `signatures`, a function of targets.
    dataset: Its examples.
  """
  told = [tell for fn in task.metric_fns
          if (tell := getattr(fn, 'signatures', None))]
  targets = [task.postprocess_fn('', example=x, is_target=True)
             for x in dataset.as_numpy_iterator()] if told else []
  return {name: line for tell in told for name, line in tell(targets).items()}


def check(task: Any, split: str, vocabulary: Any) -> None:
  """Raises ValueError for a Task that such models can't be evaluated on."""
  if split not in task.splits:
    raise ValueError(f'{task.name} has no split {split!r}; allowed: '
                     f'{", ".join(task.splits)}.')
  if task.score_metric_fns:
    raise ValueError(f'{task.name} has metrics of scores; decoding gives none: '
                     'take a Task whose metrics look at predictions.')
  if not {'inputs', 'targets'} <= set(task.output_features):
    raise ValueError(f'{task.name} has the features '
                     f'{", ".join(task.output_features)}; inputs and targets '
                     'are needed.')
  checked = []
  for feature in ('inputs', 'targets'):
    theirs = task.output_features[feature].vocabulary
    other = None if theirs in checked else _first_difference(theirs, vocabulary)
    checked.append(theirs)
    if other is not None:
      raise ValueError(f'Token {other} of the {feature} of {task.name} is not '
                       'that of the models; give the Task the vocabulary that '
                       'they were trained with.')


def _first_difference(theirs: Any, ours: Any) -> int | None:
  """The first token that reads differently; None if there is none."""
  size = theirs.vocab_size - theirs.extra_ids
  if size > ours.size:
    return ours.size
  read = lambda words, token: words.decode([token]).strip()
  pairs = ((t, read(theirs, t), read(ours, t)) for t in range(size))
  # What has no text, such as padding, is a matter of taste.
  return next((t for t, a, b in pairs if a and b and a != b), None)
