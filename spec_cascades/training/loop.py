"""Training from start to end: resume, update, evaluate, save."""
from __future__ import annotations

import dataclasses
import functools
import pathlib
import signal
from typing import Any, Callable

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

from spec_cascades import check
from spec_cascades import hosts
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import orbax
from spec_cascades.evaluation import qualities
from spec_cascades.models import reduced
from spec_cascades.training import borrowing
from spec_cascades.training import checks
from spec_cascades.training import data as data_lib
from spec_cascades.training import losses
from spec_cascades.training import online as online_lib
from spec_cascades.training import optimizers
from spec_cascades.training import policies
from spec_cascades.training import progress as progress_lib
from spec_cascades.training import saving
from spec_cascades.training import settings
from spec_cascades.training import sharding
from spec_cascades.training import start
from spec_cascades.training import steps as steps_lib
from spec_cascades.training import train_step


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
    z_loss: Weight of log(Z)^2, which keeps the normaliser of what is trained
      near 1; in the training loss that is printed, not in evaluations.
    seed: Of initialisation and dropout.
    log_every: Steps between lines.
    save_every: Steps between checkpoints.
    eval_every: Steps between evaluations; there is a checkpoint before each.
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
  z_loss: float = 1e-4
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

  def __post_init__(self):
    for name in ('peak', 'z_loss'):
      check.interval(f'{name} of Recipe', getattr(self, name), 0, 1e6)
    for low, names in ((0, ('steps', 'warmup', 'cooldown', 'gamma')), (1, (
        'accumulate', 'log_every', 'save_every', 'eval_every', 'eval_batch',
        'eval_sentences', 'keep')), (2, ('max_length',))):
      for name in names:
        check.interval(f'{name} of Recipe', getattr(self, name), low, 10**9,
                       whole=True)
    qualities.make(self.metric)


@dataclasses.dataclass(frozen=True)
class Run:
  """What is trained, on what, where and how.

  Attributes:
    lm: A `LanguageModel` with `init_params` and `teacher_forced`; a
      `reduced.Reduced` one predicts some tokens only, see `start.params`; of
      a `heads.Beside` what is beside it is trained, by `objective`.
    corpus: Where batches come from.
    model_dir: Checkpoints and metrics; made if absent.
    recipe: Numbers of the run.
    init_from: Weights to start from: a checkpoint of any format, or another
      run's model_dir; of a T5 of another depth or MLP width what fits, see
      `grow`. Random parameters if None.
    part: Of a `heads.Beside`: what scripts/export.py --part wrote of a run
      beside `init_from`, to start from, too.
    encoder_from: Of a T5 that reads with another's encoder, a checkpoint of
      that one: see `borrowing`. It is not trained.
    teacher: A checkpoint of any format; the loss is then `distillation` from
      its predictions. Of an `ahead.Ahead` it is L_0 that is.
    distillation: What is minimised with a teacher.
    on_policy: Which batches have targets that the student writes.
    objective: The loss of a `heads.Beside`, which is its own teacher:
      `ahead.Ahead` of a `heads.Headed` or `masks.Masked`, `follow.Follow` of
      a `features.Featured`. Of another model `consistent.Consistent`, or
      `exits.Exits`.
    online: Serves the corpus's inputs with the student as the teacher's
      drafter, and trains it on what was rejected; a step is then `every`
      requests and one update.
    optimizer: From a learning rate to an optimiser, see `optimizers`.
    decay: Of the rate after its warm-up: `optimizers.rsqrt`, say.
    freeze: Regular expressions; parameters whose path one of them matches stay
      as they are: ('token_embedder/',).
    rates: Of some parameters, what the learning rate is multiplied by, see
      `optimizers.scaled`: (('^heads/', 4.0),). A run may go on with others.
    mesh: Devices that batches are split over, and parameters, see `sharding`:
      of all processes. None: one device, or of several processes (all, 1). A
      run may go on on another mesh.
    rules: What is cut there, a key of `spec_cascades.sharding.RULES`: 'fsdp'
      cuts what is left of each matrix over the devices of a batch, too. A run
      may go on by others.
  """
  lm: Any
  corpus: data_lib.ParallelText
  model_dir: str
  recipe: Recipe = Recipe()
  init_from: str | None = None
  part: str | None = None
  encoder_from: str | None = None
  teacher: str | None = None
  distillation: losses.Distillation | losses.Boosted = losses.Distillation()
  on_policy: policies.OnPolicy = policies.OnPolicy()
  objective: Any = None
  online: online_lib.Online | None = None
  optimizer: Callable[..., Any] = optimizers.adafactor
  decay: Callable[..., Any] = optimizers.rsqrt
  freeze: tuple[str, ...] = ()
  rates: tuple[tuple[str, float], ...] = ()
  mesh: tuple[int, int] | None = None
  rules: str = 'tensor'

  def __post_init__(self):
    optimizers.check_patterns(self.freeze)
    optimizers.check_rates(self.rates)


def train(run: Run, *, log: Callable[[str], None] = print
          ) -> train_step.TrainState:
  """Trains `run.lm`; the same call resumes an interrupted run.

  SIGTERM saves and returns early. Metrics go to metrics.jsonl in `model_dir`,
  and what `checkpoints.load` needs besides goes to model.json there. Several
  processes call it alike, with a `model_dir` that all of them see.

  Args:
    run: What to do.
    log: Receives lines of progress.

  Raises:
    ValueError: Texts that the model can't be trained on, weights or a
      teacher that don't fit it, a mesh that there is not, a loss that is not
      finite, a checkpoint that can't be read or written.
  """
  corpus, recipe = run.corpus, run.recipe
  log = log if hosts.first() else _silent
  checks.check(run)
  if run.online is None:
    corpus.batch(0)                    # there is one, or this says why not
  optimizer = optimizer_of(run)
  teacher, guide = _teacher(run)
  update = train_step.Update(
      run.lm, optimizer, z_loss=recipe.z_loss, seed=recipe.seed,
      teacher=teacher, distillation=run.distillation,
      accumulate=recipe.accumulate, remat=recipe.remat, objective=run.objective)
  lessons = _lessons(run, update, guide)
  folder = hosts.folder('model_dir', run.model_dir)
  options = ocp.CheckpointManagerOptions(max_to_keep=recipe.keep)
  with ocp.CheckpointManager(folder / start.SAVES, options=options) as saves:
    state, memory = _start(run, update, saves, lessons.fresh(), log)
    if hosts.first():
      texts = None if run.online else settings.digest(corpus.train)
      for line in settings.compare(folder, run, int(state.step), texts):
        log(line)
      if (int(state.step) < recipe.steps      # else it may have a tree by now
          or not (folder / orbax.MODEL).is_file()):
        orbax.describe(folder, run.lm, converting.files_of(corpus.vocabulary),
                       state.params)
    with progress_lib.Progress(folder if hosts.first() else None, log,
                               total=recipe.steps,
                               tensorboard=recipe.tensorboard
                               ) as progress, _Terminated() as terminated:
      state = _run(run, update, state, memory, lessons, guide, saves, progress,
                   terminated)
  if int(state.step) < recipe.steps:
    log(f'stopped at step {int(state.step)}; the same command goes on')
  return state


def _silent(line: str) -> None:
  del line


def _lessons(run, update, guide):
  """What is trained on, and how it is measured."""
  if run.online is None:
    found = steps_lib.Offline(run, update)
    if run.recipe.steps:
      found.prepare()                  # before the first step, not after many
    return found
  return online_lib.Session(run.online, update, guide, run.corpus,
                            steps=run.recipe.steps,
                            max_length=run.recipe.max_length)


def optimizer_of(run: Run) -> optax.GradientTransformation:
  """Of the parameters that are not frozen.

  Raises:
    ValueError: None is left, or what has a rate of its own is none of them.
  """
  recipe = run.recipe
  rate = optimizers.schedule(
      peak=recipe.peak, warmup=recipe.warmup, total=recipe.steps,
      cooldown=recipe.cooldown, decay=run.decay)
  # The ids of a reduced vocabulary are beside its parameters.
  held = ('^tokens$',) if isinstance(run.lm, reduced.Reduced) else ()
  if run.objective is not None and not run.objective.verifier:
    held = ('^model/',)
  held += borrowing.still(run.lm)
  still = *run.freeze, *held
  if not (still or run.rates):
    return run.optimizer(rate)
  shapes = jax.eval_shape(lambda: run.lm.init_params(jax.random.key(0)))
  return optimizers.scaled(
      optimizers.frozen(run.optimizer(rate), still, shapes), run.rates, shapes,
      still)


def _start(run, update, saves, memory, log):
  """The newest checkpoint of this run, or a fresh state; and the memory."""
  key = jax.random.key(run.recipe.seed)
  mesh = sharding.layout(run.mesh, rules=run.rules)
  fresh = lambda: update.init(run.lm.init_params(key))
  newest = saves.latest_step()
  if newest is not None:
    start.check_same_words(run.model_dir, run.corpus.vocabulary)
    log(f'resuming at step {newest}')
    like = _whole(sharding.like(run.lm, jax.eval_shape(fresh), mesh), memory)
    readable = functools.partial(
        saving.explained, f'The checkpoint of step {newest} in '
        f"{saves.directory} can't be read", 'if it is damaged, delete it; the '
        'same command goes on from the one before it')
    place = pathlib.Path(saves.directory, str(newest))
    with readable():
      there = ocp.StandardCheckpointHandler().metadata(place / 'default').tree
    checks.same_arrays(place, there, like,
                       settings.changes(place.parents[1], run))
    with readable():
      found = saves.restore(newest, args=ocp.args.StandardRestore(like))
    return (found, None) if memory is None else _parted(found, memory, saves)
  checks.begins(run, log)
  params = sharding.place(
      run.lm, start.params(
          run.init_from, run.lm, key, run.corpus, run.part, run.encoder_from,
          sharding.beyond_one(run.mesh, run.rules), log=log), mesh)
  return sharding.place(run.lm, update.init(params), mesh), memory


def _whole(state, memory):
  """What a checkpoint holds: the state, and a memory if there is one."""
  return state if memory is None else dict(vars(state), memory=memory)


def _parted(found, memory, saves):
  """State and memory of a checkpoint; ValueError if its shapes are others."""
  found = dict(found)
  kept = found.pop('memory')
  if jax.tree.map(np.shape, kept) != jax.tree.map(np.shape, memory):
    raise ValueError(f'{saves.directory} is of a run with another size or '
                     'window of Online, or other widths; give those, or '
                     'another model_dir.')
  return train_step.TrainState(**found), jax.tree.map(np.asarray, kept)


def _teacher(run):
  """The teacher and its parameters, on the devices once; None without one."""
  if run.teacher is None:
    return None, None
  lm, params = start.teacher(
      run.teacher, run.lm, run.corpus.vocabulary,
      sharding.beyond_one(run.mesh, run.rules))
  return lm, sharding.place(
      lm, params, sharding.layout(run.mesh, lm, rules=run.rules))


class _Terminated:
  """Remembers a SIGTERM, so that the loop can save and stop: all processes."""

  def __init__(self):
    self.received = False

  def __enter__(self) -> _Terminated:
    self._before = signal.getsignal(signal.SIGTERM)
    if hosts.count() == 1:
      signal.signal(signal.SIGTERM, self._note)
    return self

  def __exit__(self, *error) -> None:
    if hosts.count() == 1:
      signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

  def _note(self, number, frame):
    del number, frame
    self.received = True

  def __call__(self, step: int) -> bool:
    """Asked before every step."""
    self.received = self.received or hosts.ending(step)
    return self.received


def _run(run, update, state, memory, lessons, teacher, saves, progress,
         terminated):
  recipe, saver = run.recipe, saving.Saver(saves)
  steps = steps_lib.Steps(run, update, state, teacher, progress, lessons,
                          memory, saver.newest)

  def save():
    steps.settle()                      # nothing that is not finite is kept
    saver(steps.step, _whole(steps.state, steps.memory), steps.state.params)
    if steps.step == recipe.steps or terminated.received:
      saver.wait()

  def evaluate():
    steps.settle()
    with progress.paused():
      progress.found(steps.step, *lessons.score(
          steps.state.params, teacher, steps.memory))

  # What was saved and then could not be evaluated is, when the run goes on.
  if steps.step and steps.due(recipe.eval_every) and not hosts.said(
      lambda: progress.evaluated(steps.step)):
    evaluate()
  while steps.step < recipe.steps and not terminated(steps.step):
    steps.advance()
    # A process that is to end may have seconds: what it learnt comes first,
    # also where it is told so in the middle of an evaluation.
    if steps.due(recipe.save_every) or steps.due(recipe.eval_every):
      save()
    if steps.due(recipe.eval_every) and not terminated.received:
      evaluate()
  save()
  return steps.state
