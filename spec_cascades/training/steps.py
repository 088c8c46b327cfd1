"""The steps of a run, and what they are made on."""
from __future__ import annotations

import collections
import functools
import time
from typing import Any, Callable

import jax

from spec_cascades import hosts
from spec_cascades.evaluation import meshes
from spec_cascades.training import progress as progress_lib
from spec_cascades.training import quality
from spec_cascades.training import sharding
from spec_cascades.training import train_step

# Steps that the device may be behind: enough to keep it busy, few enough that a
# run which is told to stop has soon done what it had begun.
AHEAD = 2


class Offline:
  """Batches of a run's corpus, evaluated on its validation split.

  What a run is trained on has these methods; `online.Session` is another.
  """

  def __init__(self, run: Any, update: train_step.Update):
    self._run, self._update, self.where = run, update, run.corpus.where

  def fresh(self) -> None:
    """What must be remembered: nothing, a batch depends on its step alone."""

  def decodes(self, step: int) -> bool:
    """Whether the batch of a step takes the parameters to be made."""
    return self._run.on_policy.chosen(step)

  def batch(self, step: int, params: Any, memory: None) -> tuple[Any, None]:
    """The batch of a step, some of them in the student's own words."""
    run = self._run
    lm = meshes.placed(run.lm, self._layout)
    return run.on_policy(run.corpus.batch(step), lm, params, step,
                         end=run.corpus.end), memory

  def score(self, params: Any, teacher: Any, memory: None
            ) -> tuple[dict[str, float], list[str]]:
    """See `quality.Validation`."""
    del memory
    return self._validation(params, teacher)

  def prepare(self) -> None:
    """Reads what is evaluated on, where it is; ValueError if it is not.

    All processes have to ask.
    """
    texts = hosts.together(lambda: self._validation).digest
    hosts.alike('the texts to evaluate on', texts)

  @functools.cached_property
  def _validation(self):
    recipe = self._run.recipe
    return quality.Validation(
        self._update, self._run.corpus, metric=recipe.metric,
        sentences=recipe.eval_sentences, batch=recipe.eval_batch,
        max_length=recipe.max_length, gamma=recipe.gamma, layout=self._layout)

  @functools.cached_property
  def _layout(self):
    """Where the run's arrays lie; None on one device."""
    return sharding.beyond_one(self._run.mesh, self._run.rules)


class Steps:
  """Updates one after the other, of which the device is AHEAD at most behind.

  Attributes:
    state: After the last step.
    memory: What the lessons remember of it.
    step: How many there were.
    waited: Seconds of making batches at whose end the device was idle.

  Args:
    run: What to do, a `loop.Run`.
    update: Its update.
    state: To begin with, where it is to stay.
    teacher: Parameters of the teacher, if there is one.
    progress: Is told of every step.
    lessons: Where batches come from, such as `Offline`.
    memory: What it remembers.
    saved: Returns the step of the newest checkpoint that is whole.
  """

  def __init__(self, run: Any, update: train_step.Update,
               state: train_step.TrainState, teacher: Any,
               progress: progress_lib.Progress, lessons: Any,
               memory: Any = None,
               saved: Callable[[], int | None] = lambda: None):
    self.state, self.step, self.waited = state, int(state.step), 0.0
    self.memory, self._lessons = memory, lessons
    self._run, self._teacher, self._progress = run, teacher, progress
    self._mesh = sharding.layout(run.mesh, rules=run.rules)
    where = jax.tree.map(lambda x: x.sharding, state)
    self._update = jax.jit(update, donate_argnums=0,
                           out_shardings=(where, None))
    self._saved, self._pending = saved, collections.deque()

  def advance(self) -> None:
    """Makes a step, and a line where one is due."""
    batch = self._batch()
    self.state, metrics = self._update(
        self.state, sharding.batch(batch, self._mesh), self._teacher)
    self.step += 1
    self._pending.append((self.step, metrics))
    self.settle(AHEAD)
    if self.due(self._run.recipe.log_every):
      self.settle()
      self._progress.report(self.step)

  def settle(self, most: int = 0) -> None:
    """Waits until `most` steps are under way; looks at those that are done.

    Raises:
      ValueError: What one gave is not finite.
    """
    while len(self._pending) > most:
      at, metrics = self._pending.popleft()
      self._progress.add(at, jax.device_get(metrics), functools.partial(
          self._lessons.where, at - 1), self._saved)

  def due(self, every: int) -> bool:
    """Whether what comes every so many steps, and at the end, comes now."""
    return self.step % every == 0 or self.step == self._run.recipe.steps

  def _batch(self):
    decodes = self._lessons.decodes(self.step)
    if decodes:
      self.settle()                     # or texts would fail before a loss does
    began = time.perf_counter()
    try:
      batch, self.memory = self._lessons.batch(
          self.step, self.state.params, self.memory)
    except ValueError as error:
      if not decodes:
        raise
      where = self._lessons.where(self.step)
      raise ValueError(
          f"The model's texts of step {self.step + 1} ({where}) can't be "
          f'written: {error} {progress_lib.remedy(self._saved())}') from None
    if not self._pending or self._pending[-1][1]['loss'].is_ready():
      self.waited += time.perf_counter() - began
    return batch
