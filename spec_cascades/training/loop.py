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

from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import orbax
from spec_cascades.training import data as data_lib
from spec_cascades.training import grow
from spec_cascades.training import quality
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
    max_length: Decoded tokens of a sentence at most.
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
    lm: A `LanguageModel` with `module` and `init_params`.
    corpus: Where batches come from.
    model_dir: Checkpoints and metrics; made if absent.
    recipe: Numbers of the run.
    init_from: Another run's model_dir, or a model directory, to start from; a
      shallower model is stacked. Random parameters if None.
    teacher: A model directory; the loss is then KL to its predictions.
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
    ValueError: The vocabulary does not fit the model, a loss is not finite.
  """
  corpus, recipe = run.corpus, run.recipe
  if corpus.vocabulary.size != run.lm.vocab_size:
    raise ValueError(f'The vocabulary has {corpus.vocabulary.size} pieces, the '
                     f'model {run.lm.vocab_size}: make them equal.')
  folder = pathlib.Path(run.model_dir).expanduser().absolute()
  folder.mkdir(parents=True, exist_ok=True)
  optimizer = train_step.adafactor(train_step.schedule(
      peak=recipe.peak, warmup=recipe.warmup, total=recipe.steps,
      cooldown=recipe.cooldown))
  teacher, guide = _teacher(run)
  update = train_step.Update(run.lm, optimizer, seed=recipe.seed,
                             teacher=teacher)
  options = ocp.CheckpointManagerOptions(max_to_keep=recipe.keep)
  with ocp.CheckpointManager(folder / 'checkpoints', options=options) as saves:
    state = _start(run, update, saves, log)
    orbax.describe(folder, run.lm, corpus.vocabulary.path)
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
  params = grow.stack(_source(run.init_from), run.lm.init_params(key))
  return update.init(params)


def _teacher(run):
  """The teacher and its parameters, on the device once; None without one."""
  if run.teacher is None:
    return None, None
  lm, params, vocabulary = native.load(run.teacher)
  if vocabulary.model.serialized_model_proto() != (
      run.corpus.vocabulary.model.serialized_model_proto()):
    raise ValueError(f'The vocabularies of {run.teacher} and of the corpus '
                     'differ; a teacher must share its student\'s.')
  return lm, jax.device_put(params)


def _source(path):
  """Parameters of a model directory or of a training run."""
  folder = pathlib.Path(path).expanduser()
  if (folder / native.CONFIG).is_file():
    return native.load(folder)[1]
  return restore_params(path)[0]


def restore_params(model_dir: str) -> tuple[Any, int]:
  """Parameters of the newest checkpoint of a run, as numpy arrays; its step.

  Raises:
    ValueError: There is no checkpoint.
  """
  folder = pathlib.Path(model_dir).expanduser().absolute() / 'checkpoints'
  with ocp.CheckpointManager(folder) as saves:
    newest = saves.latest_step()
    if newest is None:
      raise ValueError(f'No checkpoint under {folder}; train the model first.')
    state = saves.restore(newest, args=ocp.args.StandardRestore())
  return jax.tree.map(np.asarray, state['params']), newest


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
