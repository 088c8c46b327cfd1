"""Training from start to end: resume, update, evaluate, save."""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import pathlib
import shutil
import signal
import time
from typing import Any, Callable

import jax
import orbax.checkpoint as ocp

from spec_cascades import check
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import orbax
from spec_cascades.evaluation import tensorboard
from spec_cascades.training import data as data_lib
from spec_cascades.training import losses
from spec_cascades.training import optimizers
from spec_cascades.training import policies
from spec_cascades.training import progress as progress_lib
from spec_cascades.training import quality
from spec_cascades.training import sharding
from spec_cascades.training import start
from spec_cascades.training import train_step

# Of an array in a checkpoint: compressed, each, so that it is read whole.
CHUNK_BYTES = 2**20
# Steps that the device may be behind: enough to keep it busy, few enough that a
# run which is told to stop has soon done what it had begun.
AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Numbers of a run.

  Attributes:
    steps: Updates in all.
    peak: Learning rate at the end of the warm-up (relative, as in Adafactor).
    warmup: Steps of linear warm-up.
    cooldown: Last steps, over which the rate falls to 0.
    accumulate: Parts of a batch, one after the other in memory.
    remat: Compute the activations of a layer again for its gradient.
    seed: Of initialisation and dropout.
    log_every: Steps between lines.
    save_every: Steps between checkpoints.
    eval_every: Steps between evaluations.
    metric: What texts are measured by, a name in `qualities.QUALITIES`.
    eval_sentences: Validation sentences without a near-duplicate in train
      that are decoded for it.
    eval_batch: Sentences per decoded batch.
    max_length: Decoded tokens of a sentence at most, the one that begins or
      precedes it included.
    gamma: Draft length of the lossless decoding that measures a student, at
      temperatures 0 and 1, where there is a teacher; 0 measures none.
    keep: Checkpoints kept.
    tensorboard: Write what metrics.jsonl gets for TensorBoard, too.
  """
  steps: int = 10_000
  peak: float = 0.02
  warmup: int = 300
  cooldown: int = 1_000
  accumulate: int = 1
  remat: bool = False
  seed: int = 0
  log_every: int = 50
  save_every: int = 250
  eval_every: int = 500
  metric: str = 'BLEU'
  eval_sentences: int = 200
  eval_batch: int = 50
  max_length: int = 72
  gamma: int = 5
  keep: int = 2
  tensorboard: bool = False


@dataclasses.dataclass(frozen=True)
class Run:
  """What is trained, on what, where and how.

  Attributes:
    lm: A `LanguageModel` with `init_params` and `teacher_forced`.
    corpus: Where batches come from.
    model_dir: Checkpoints and metrics; made if absent.
    recipe: Numbers of the run.
    init_from: Weights to start from: a checkpoint of any format, or another
      run's model_dir; a shallower T5 is stacked. Random parameters if None.
    teacher: A checkpoint of any format; the loss is then `distillation` from
      its predictions.
    distillation: What is minimised with a teacher.
    on_policy: Which batches have targets that the student writes.
    optimizer: From a learning rate to an optimiser, see `optimizers`.
    decay: Of the rate after its warm-up: `optimizers.rsqrt`, say.
    freeze: Regular expressions; parameters whose path one of them matches stay
      as they are: ('token_embedder/',).
    mesh: Devices that batches are split over, and parameters, see `sharding`.
      A run may go on on another mesh.
  """
  lm: Any
  corpus: data_lib.ParallelText
  model_dir: str
  recipe: Recipe = Recipe()
  init_from: str | None = None
  teacher: str | None = None
  distillation: losses.Distillation = losses.Distillation()
  on_policy: policies.OnPolicy = policies.OnPolicy()
  optimizer: Callable[..., Any] = optimizers.adafactor
  decay: Callable[..., Any] = optimizers.rsqrt
  freeze: tuple[str, ...] = ()
  mesh: tuple[int, int] = (1, 1)


def train(run: Run, *, log: Callable[[str], None] = print
          ) -> train_step.TrainState:
  """Trains `run.lm`; the same call resumes an interrupted run.

  SIGTERM saves and returns early. Metrics go to metrics.jsonl in `model_dir`,
  and what `checkpoints.load` needs besides goes to model.json there.

  Args:
    run: What to do.
    log: Receives lines of progress.

  Raises:
    ValueError: Texts that the model can't be trained on, weights or a
      teacher that don't fit it, a mesh that there is not, a loss that is not
      finite, a checkpoint that can't be read or written.
  """
  corpus, recipe = run.corpus, run.recipe
  start.check(run.lm, corpus, recipe.max_length)
  sharding.mesh(run.mesh, run.lm)
  corpus.batch(0)                      # there is one, or this says why not
  check.interval('accumulate', recipe.accumulate, 1, 10**6, whole=True)
  if recipe.tensorboard:
    tensorboard.check()
  if run.on_policy.share and run.teacher is None:
    raise ValueError(f'Got on_policy with a share of {run.on_policy.share} and '
                     'no teacher: a model learns nothing from what it wrote '
                     'itself. Give a teacher.')
  if run.on_policy.share and corpus.packed:
    raise ValueError(f'Got on_policy with a share of {run.on_policy.share} and '
                     'packed texts: a student writes one text a row. Set '
                     'data.ParallelText.packed or policies.OnPolicy.share to '
                     '0.')
  optimizer = _optimizer(run)
  teacher, guide = _teacher(run)
  folder = pathlib.Path(run.model_dir).expanduser().absolute()
  folder.mkdir(parents=True, exist_ok=True)
  update = train_step.Update(
      run.lm, optimizer, seed=recipe.seed, teacher=teacher,
      distillation=run.distillation, accumulate=recipe.accumulate,
      remat=recipe.remat)
  options = ocp.CheckpointManagerOptions(max_to_keep=recipe.keep)
  with ocp.CheckpointManager(folder / start.SAVES, options=options) as saves:
    state = _start(run, update, saves, log)
    orbax.describe(folder, run.lm, converting.files_of(corpus.vocabulary))
    with progress_lib.Progress(folder, log, total=recipe.steps,
                               tensorboard=recipe.tensorboard) as progress:
      return _run(run, update, state, guide, saves, progress)


def _optimizer(run):
  """Of the parameters that are not frozen."""
  recipe = run.recipe
  rate = optimizers.schedule(
      peak=recipe.peak, warmup=recipe.warmup, total=recipe.steps,
      cooldown=recipe.cooldown, decay=run.decay)
  shapes = jax.eval_shape(run.lm.init_params, jax.random.key(0))
  return optimizers.frozen(run.optimizer(rate), run.freeze, shapes)


def _start(run, update, saves, log):
  """The newest checkpoint of this run, or a fresh state."""
  key, mesh = jax.random.key(run.recipe.seed), sharding.mesh(run.mesh)
  fresh = lambda: update.init(run.lm.init_params(key))
  newest = saves.latest_step()
  if newest is not None:
    log(f'resuming at step {newest}')
    like = ocp.args.StandardRestore(
        sharding.like(run.lm, jax.eval_shape(fresh), mesh))
    with _explained(f'The checkpoint of step {newest} in {saves.directory} '
                    "can't be read", 'if it is damaged, delete it; the same '
                    'command goes on from the one before it'):
      return saves.restore(newest, args=like)
  if run.init_from is None:
    return sharding.place(run.lm, fresh(), mesh)
  log(f'starting from {run.init_from}')
  state = update.init(start.params(run.init_from, run.lm, key))
  return sharding.place(run.lm, state, mesh)


def _teacher(run):
  """The teacher and its parameters, on the devices once; None without one."""
  if run.teacher is None:
    return None, None
  lm, params = start.teacher(run.teacher, run.lm, run.corpus.vocabulary)
  mesh = sharding.mesh(run.mesh, lm)
  return lm, jax.device_put(params, sharding.params(lm, mesh))


def saved(state: Any) -> ocp.args.StandardSave:
  """What a checkpoint is to hold, in chunks that are read one at a time."""
  return ocp.args.StandardSave(state, jax.tree.map(_chunks, state))


def _chunks(array: Any) -> ocp.SaveArgs:
  """Some rows a chunk: those of a wide array would else be cut up, too."""
  wide = array.ndim == 2 and array.shape[0] < array.shape[1]
  cut = wide and array.nbytes > CHUNK_BYTES
  return ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES, shard_axes=(0,) * cut)


class _Terminated:
  """Remembers a SIGTERM, so that the loop can save and stop."""

  def __init__(self):
    self.received = False
    signal.signal(signal.SIGTERM, self._note)

  def _note(self, number, frame):
    del number, frame
    self.received = True


class Steps:
  """Updates one after the other, of which the device is AHEAD at most behind.

  Attributes:
    state: After the last step.
    step: How many there were.
    waited: Seconds of making batches at whose end the device was idle.

  Args:
    run: What to do.
    update: Its update.
    state: To begin with, where it is to stay.
    teacher: Parameters of the teacher, if there is one.
    progress: Is told of every step.
    saved: Returns the step of the newest checkpoint.
  """

  def __init__(self, run: Run, update: train_step.Update,
               state: train_step.TrainState, teacher: Any,
               progress: progress_lib.Progress,
               saved: Callable[[], int | None] = lambda: None):
    self.state, self.step, self.waited = state, int(state.step), 0.0
    self._run, self._teacher, self._progress = run, teacher, progress
    self._mesh = sharding.mesh(run.mesh)
    where = jax.tree.map(lambda x: x.sharding, state)
    self._update = jax.jit(update, donate_argnums=0,
                           out_shardings=(where, None))
    self._saved, self._pending = saved, collections.deque()

  def advance(self) -> None:
    """Makes a step, and a line where one is due."""
    run = self._run
    batch = run.on_policy(self._batch(), run.lm, self.state.params, self.step,
                          end=run.corpus.end)
    self.state, metrics = self._update(
        self.state, sharding.batch(batch, self._mesh), self._teacher)
    self.step += 1
    self._pending.append((self.step, metrics))
    self.settle(AHEAD)
    if self.due(run.recipe.log_every):
      self.settle()
      self._progress.report(self.step)

  def settle(self, most: int = 0) -> None:
    """Waits until `most` steps are under way; looks at those that are done.

    Raises:
      ValueError: What one gave is not finite.
    """
    while len(self._pending) > most:
      at, metrics = self._pending.popleft()
      self._progress.add(
          at, jax.device_get(metrics),
          functools.partial(self._run.corpus.where, at - 1), self._saved())

  def due(self, every: int) -> bool:
    """Whether what comes every so many steps, and at the end, comes now."""
    return self.step % every == 0 or self.step == self._run.recipe.steps

  def _batch(self):
    began = time.perf_counter()
    batch = self._run.corpus.batch(self.step)
    if not self._pending or self._pending[-1][1]['loss'].is_ready():
      self.waited += time.perf_counter() - began
    return batch


def _run(run, update, state, teacher, saves, progress):
  corpus, recipe = run.corpus, run.recipe
  terminated = _Terminated()
  score = quality.Validation(
      update, corpus, metric=recipe.metric, sentences=recipe.eval_sentences,
      batch=recipe.eval_batch, max_length=recipe.max_length,
      gamma=recipe.gamma)
  steps = Steps(run, update, state, teacher, progress, saves.latest_step)

  def save():
    steps.settle()                      # nothing that is not finite is kept
    step = steps.step
    with _explained(f'The checkpoint of step {step} in {saves.directory} '
                    "can't be written", 'those before it are whole. Make room, '
                    'and the same command goes on from there'):
      # An error of the one before, written meanwhile, shows here, too.
      if saves.latest_step() != step:
        _check_room(saves.directory, steps.state)
        saves.save(step, args=saved(steps.state))
      if step == recipe.steps or terminated.received:
        saves.wait_until_finished()

  while steps.step < recipe.steps and not terminated.received:
    steps.advance()
    if steps.due(recipe.eval_every):
      steps.settle()
      with progress.paused():
        progress.found(steps.step, *score(steps.state.params, teacher))
    if steps.step % recipe.save_every == 0:
      save()
  save()
  return steps.state


def _check_room(folder, state):
  """Before Orbax begins, which says a great deal when it fails."""
  free = shutil.disk_usage(folder).free
  needed = sum(x.nbytes for x in jax.tree.leaves(state))
  if free < needed:
    raise OSError(f'{free / 1e6:.0f} MB are free, up to {needed / 1e6:.0f} MB '
                  'are needed')


@contextlib.contextmanager
def _explained(what, remedy):
  """Whatever Orbax and its stores raise, in one line."""
  try:
    yield
  except Exception as error:
    short = ' '.join(str(error).split())[:200]
    raise ValueError(f'{what} ({type(error).__name__}: {short}); '
                     f'{remedy}.') from error
