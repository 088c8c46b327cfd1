"""Training from start to end: resume, update, evaluate, save."""
from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import signal
import time
from typing import Any, Callable

import jax
import numpy as np
import orbax.checkpoint as ocp

from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import orbax
from spec_cascades.training import data as data_lib
from spec_cascades.training import quality
from spec_cascades.training import start
from spec_cascades.training import train_step

# Of an array in a checkpoint: compressed, each, so that it is read whole.
CHUNK_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Numbers of a run.

  Attributes:
    steps: Updates in all.
    peak: Learning rate at the end of the warm-up (relative, as in Adafactor).
    warmup: Steps of linear warm-up; then 1/sqrt(step).
    cooldown: Last steps, over which the rate falls to 0.
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
    keep: Checkpoints kept.
  """
  steps: int = 10_000
  peak: float = 0.02
  warmup: int = 300
  cooldown: int = 1_000
  seed: int = 0
  log_every: int = 50
  save_every: int = 250
  eval_every: int = 500
  metric: str = 'BLEU'
  eval_sentences: int = 200
  eval_batch: int = 50
  max_length: int = 72
  keep: int = 2


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
    teacher: A checkpoint of any format; the loss is then KL to its predictions.
  """
  lm: Any
  corpus: data_lib.ParallelText
  model_dir: str
  recipe: Recipe = Recipe()
  init_from: str | None = None
  teacher: str | None = None


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
      teacher that don't fit it, a loss that is not finite.
  """
  corpus, recipe = run.corpus, run.recipe
  start.check(run.lm, corpus, recipe.max_length)
  corpus.batch(0)                      # there is one, or this says why not
  teacher, guide = _teacher(run)
  folder = pathlib.Path(run.model_dir).expanduser().absolute()
  folder.mkdir(parents=True, exist_ok=True)
  optimizer = train_step.adafactor(train_step.schedule(
      peak=recipe.peak, warmup=recipe.warmup, total=recipe.steps,
      cooldown=recipe.cooldown))
  update = train_step.Update(run.lm, optimizer, seed=recipe.seed,
                             teacher=teacher)
  options = ocp.CheckpointManagerOptions(max_to_keep=recipe.keep)
  with ocp.CheckpointManager(folder / start.SAVES, options=options) as saves:
    state = _start(run, update, saves, log)
    orbax.describe(folder, run.lm, converting.files_of(corpus.vocabulary))
    return _run(update, state, guide, corpus, saves, recipe, folder, log)


def _start(run, update, saves, log):
  """The newest checkpoint of this run, or a fresh state."""
  key = jax.random.key(run.recipe.seed)
  fresh = lambda: update.init(run.lm.init_params(key))
  newest = saves.latest_step()
  if newest is not None:
    log(f'resuming at step {newest}')
    like = jax.eval_shape(fresh)
    return saves.restore(newest, args=ocp.args.StandardRestore(like))
  if run.init_from is None:
    return fresh()
  log(f'starting from {run.init_from}')
  return update.init(start.params(run.init_from, run.lm, key))


def _teacher(run):
  """The teacher and its parameters, on the device once; None without one."""
  if run.teacher is None:
    return None, None
  lm, params = start.teacher(run.teacher, run.lm, run.corpus.vocabulary)
  return lm, jax.device_put(params)


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


def _run(update, state, teacher, corpus, saves, recipe, folder, log):
  terminated = _Terminated()
  step_fn = jax.jit(update, donate_argnums=0)
  score = quality.Validation(
      update.lm, update.loss, corpus, metric=recipe.metric,
      sentences=recipe.eval_sentences, batch=recipe.eval_batch,
      max_length=recipe.max_length)
  step, since, losses = int(state.step), time.time(), []
  save = lambda: saves.save(step, args=saved(state))
  while step < recipe.steps and not terminated.received:
    state, metrics = step_fn(state, corpus.batch(step), teacher)
    losses.append(metrics)
    step += 1
    if step % recipe.log_every == 0 or step == recipe.steps:
      mean, count, agreement = _summary(losses)
      if not math.isfinite(mean):
        raise ValueError(f'The loss is {mean} between steps '
                         f'{step - len(losses)} and {step}; the last good '
                         f'checkpoint is step {saves.latest_step()}.')
      elapsed = time.time() - since
      left = (recipe.steps - step) * elapsed / len(losses)
      agrees = ('' if agreement is None
                else f'agreement {agreement:.3f}  ')
      log(f'step {step}/{recipe.steps}  loss {mean:.3f}  {agrees}'
          f'{count / elapsed:.0f} tokens/s  left {left / 60:.0f} min')
      _record(folder, step=step, loss=mean, agreement=agreement,
              tokens_per_second=count / elapsed)
      since, losses = time.time(), []
    if step % recipe.eval_every == 0 or step == recipe.steps:
      began = time.time()
      found = score(state.params)
      shown = '  '.join(f'{k} {v:.3f}' for k, v in found.items())
      log(f'step {step}  {shown}')
      _record(folder, step=step, **found)
      since += time.time() - began
    if step % recipe.save_every == 0:
      save()
  if saves.latest_step() != step:
    save()
  saves.wait_until_finished()
  return state


def _summary(losses):
  """Mean loss per token, tokens, and mean agreement or None."""
  column = lambda name: np.array([m[name] for m in losses], np.float64)
  counts = column('tokens')
  mean = lambda name: float((counts * column(name)).sum() / counts.sum())
  agreement = mean('agreement') if 'agreement' in losses[0] else None
  return mean('loss'), float(counts.sum()), agreement


def _record(folder, **row):
  with (folder / 'metrics.jsonl').open('a', encoding='utf-8') as file:
    file.write(json.dumps(dict(row, time=time.time())) + '\n')
