"""Tokens per second of the trainer, beside a loop of optax written by hand.

The trainer is `steps.Steps`, as a run drives it: batches are made, metrics are
looked at, lines and metrics.jsonl are written. The other loop has its batches
in memory, and neither looks at a metric nor says anything. Both train the same
model from the same parameters on the same batches, block by block in turn.
Checkpoints, evaluation and compilation are in neither.
"""
from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import statistics
import tempfile
import time
from typing import Any, Callable, Sequence

import jax
import optax

from spec_cascades.evaluation import examples
from spec_cascades.evaluation import timing
from spec_cascades.training import data
from spec_cascades.training import loop
from spec_cascades.training import optimizers
from spec_cascades.training import progress as progress_lib
from spec_cascades.training import steps as steps_lib
from spec_cascades.training import train_step

AIM = 0.9
RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Sentences:
  """The embedded sentences as a corpus to train on, several times over."""
  times: int = 8
  splits = ('train',)

  def __call__(self, split: str, part: tuple[int, int]
               ) -> list[tuple[int, dict[str, str]]]:
    """`split` is not used: these are to be timed, not to learn from."""
    del split
    index, count = part
    found = self.times * [dict(en=x.source, de=x.reference)
                          for x in examples.read()]
    return list(enumerate(found))[index::count]


@dataclasses.dataclass(frozen=True)
class Spread:
  """The median over blocks, and the extremes."""
  median: float
  low: float
  high: float

  @classmethod
  def of(cls, values: Sequence[float]) -> Spread:
    return cls(statistics.median(values), min(values), max(values))

  def shown(self, form: str) -> str:
    """All three in a format such as '.2f'."""
    return (f'{self.median:{form}} [{self.low:{form}}, {self.high:{form}}]')


@dataclasses.dataclass(frozen=True)
class Found:
  """What blocks of steps took.

  Attributes:
    ours: The trainer's target tokens per second.
    plain: The plain loop's.
    ratio: Of the two, block by block.
    waited: Share of the trainer's time in which batches were made at whose end
      the device was idle: at most so long it waited for one.
    batch: Seconds that making a batch takes by itself.
    step: Seconds of a step of the trainer.
  """
  ours: Spread
  plain: Spread
  ratio: Spread
  waited: Spread
  batch: Spread
  step: Spread


def plain(lm: Any, optimizer: optax.GradientTransformation,
          params: Any) -> Callable[[Sequence[train_step.Batch]], jax.Array]:
  """Trains on some batches, whenever it is called; the last one's loss."""
  def loss(params, batch, key):
    logits = lm.teacher_forced(params, batch, dropout=key)
    each = optax.softmax_cross_entropy_with_integer_labels(
        logits, batch['targets'])
    return (each * batch['weights']).sum() / batch['weights'].sum()

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(params, opt_state, batch, key):
    value, grads = jax.value_and_grad(loss)(params, batch, key)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  states = [(params, optimizer.init(params))]
  keys = map(jax.random.key, itertools.count())

  def train(batches):
    state = states.pop()
    for batch in batches:
      *state, value = step(*state, batch, next(keys))
    states.append(state)
    return jax.block_until_ready(value)
  return train


def measure(lm: Any, corpus: data.ParallelText, folder: pathlib.Path, *,
            steps: int, runs: int) -> Found:
  """Blocks of `steps` steps by the trainer and by the plain loop, in turn.

  Args:
    lm: What is trained, from random parameters.
    corpus: On what.
    folder: Gets metrics.jsonl.
    steps: Of a block; a line of progress comes every 10 at least.
    runs: Blocks of each.
  """
  warm = _warm(corpus)
  recipe = loop.Recipe(steps=warm + runs * steps + 1, log_every=min(10, steps))
  run = loop.Run(lm, corpus, str(folder), recipe)
  optimizer = optimizers.adafactor(RATE)
  params = lm.init_params(jax.random.key(0))
  update = train_step.Update(lm, optimizer)
  own = jax.tree.map(lambda x: x.copy(), params)
  other, lines, cells = plain(lm, optimizer, own), [], []
  with progress_lib.Progress(folder, lines.append, total=recipe.steps,
                             tensorboard=False) as progress:
    ours = steps_lib.Steps(run, update, update.init(params), None, progress,
                           steps_lib.Offline(run, update))

    def train(count):
      for _ in range(count):
        ours.advance()
      ours.settle()

    train(warm)
    other([corpus.batch(i) for i in range(warm)])
    for block in range(runs):
      batches, took = _made(corpus, warm + block * steps, steps)
      calls, cell = (lambda: train(steps), lambda x=batches: other(x)), {}
      waited = ours.waited
      for _, i in timing.interleaved(1, 2, seed=block):
        cell[i] = timing.timed(calls[i])[0]
      tokens = sum(x['weights'].sum() for x in batches)
      cells.append((tokens / cell[0], tokens / cell[1], cell[1] / cell[0],
                    (ours.waited - waited) / cell[0], took, cell[0] / steps))
  return Found(*(Spread.of([float(x) for x in row]) for row in zip(*cells)))


def _warm(corpus):
  """Steps after which every shape has been compiled."""
  first = {}
  for step in range(corpus.steps_per_epoch):
    first.setdefault(corpus.batch(step)['inputs'].shape, step)
  return max(first.values()) + 2


def _made(corpus, first, count):
  """Some batches, and the seconds that one took to make."""
  began = time.perf_counter()
  batches = [corpus.batch(i) for i in range(first, first + count)]
  return batches, (time.perf_counter() - began) / count


def lines(lm: Any, vocabulary: Any, *, steps: int, runs: int,
          **changes: Any) -> list[str]:
  """The figures in words, on the embedded sentences.

  Args:
    lm: What is trained.
    vocabulary: Of the sentences.
    steps: Of a block.
    runs: Blocks.
    **changes: Fields of the corpus, which is packed: one shape.
  """
  corpus = data.ParallelText(None, vocabulary, reader=Sentences(),
                             **{'packed': True, **changes})
  with tempfile.TemporaryDirectory() as folder:
    found = measure(lm, corpus, pathlib.Path(folder), steps=steps, runs=runs)
  shapes = jax.eval_shape(lm.init_params, jax.random.key(0))
  size = sum(x.size for x in jax.tree.leaves(shapes))
  reached = 'reached' if found.ratio.median >= AIM else 'missed'
  return [
      f'{type(lm).__name__} of {size / 1e6:.1f} million parameters, Adafactor, '
      f'{corpus.tokens_per_batch} target slots a batch; medians of {runs} '
      f'blocks of {steps} steps [extremes]',
      f'  trainer     {found.ours.shown(",.0f")} tokens/s',
      f'  plain loop  {found.plain.shown(",.0f")} tokens/s',
      f'  ratio       {found.ratio.shown(".3f")}; the aim, {AIM}, is {reached}',
      f'  the device waited for a batch for '
      f'{_scaled(found.waited, 100).shown(".2f")} % of the time; making one '
      f'takes {_scaled(found.batch, 1e3).shown(".2f")} ms, a step '
      f'{_scaled(found.step, 1e3).shown(".1f")} ms']


def _scaled(spread, by):
  return Spread(*(by * x for x in dataclasses.astuple(spread)))
