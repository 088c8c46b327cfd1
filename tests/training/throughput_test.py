"""What the trainer is timed against does the same; the figures are not tested.
"""
import dataclasses
import json
import re
import time

import jax
import numpy as np
import pytest

import tinypair
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from spec_cascades.training import data
from spec_cascades.training import loop
from spec_cascades.training import optimizers
from spec_cascades.training import progress
from spec_cascades.training import steps as steps_lib
from spec_cascades.training import throughput
from spec_cascades.training import train_step
from training.runs import SIZES

LM = t5.T5(t5.T5Config(**{**SIZES, 'dropout_rate': 0.}))
CORPUS = dict(buckets=(48,), tokens_per_batch=960)


@pytest.fixture(scope='module')
def words(tmp_path_factory):
  directory = tmp_path_factory.mktemp('vocabulary')
  return text.Vocabulary(str(tinypair.make_vocabulary(directory)))


def test_the_plain_loop_does_what_an_update_does(words):
  """Without z-loss, which it lacks; the parameters of both after 3 steps."""
  corpus = data.ParallelText(None, words, reader=throughput.Sentences(1),
                             **CORPUS)
  params = LM.init_params(jax.random.key(0))
  optimizer = optimizers.adafactor(.05)
  train = throughput.plain(LM, optimizer, jax.tree.map(
      lambda x: x.copy(), params))
  update = train_step.Update(LM, optimizer, z_loss=0.)
  state, step, batches = update.init(params), jax.jit(update), [
      corpus.batch(i) for i in range(3)]
  for batch in batches:
    state, metrics = step(state, batch)
  first, second = train(batches[:2]), train(batches[2:])
  assert abs(first - second) > 1e-3                # it goes on where it was
  np.testing.assert_allclose(second, metrics['loss'], rtol=1e-5)


def test_figures_are_printed_and_add_up(words):
  title, ours, plain, ratio, waited = throughput.lines(
      LM, words, steps=3, runs=3, **CORPUS)
  assert '0.0 million' in title and '3 blocks of 3 steps' in title
  number = r'([\d.,]+) \[([\d.,]+), ([\d.,]+)\]'
  read = lambda line: [[float(x.replace(',', '')) for x in found]
                       for found in re.findall(number, line)]
  for line in (ours, plain, ratio, waited):
    for median, low, high in read(line):
      assert low <= median <= high
  assert all(x > 0 for x in read(ours)[0] + read(plain)[0])
  share, batch, step = read(waited)
  assert 0 <= share[0] <= 100 and 0 < batch[0] < step[0]


def test_time_is_counted_in_which_the_device_waits(words, tmp_path):
  """A slow corpus is seen; lines are written meanwhile as in any run."""
  class Slow(data.ParallelText):
    def batch(self, step):
      time.sleep(.3)
      return super().batch(step)

  made = data.ParallelText(None, words, reader=throughput.Sentences(1),
                           **CORPUS)
  found = {}
  for kind in (data.ParallelText, Slow):
    corpus = kind(**{x.name: getattr(made, x.name)
                     for x in dataclasses.fields(made)})
    run = loop.Run(LM, corpus, '', loop.Recipe(steps=9, log_every=2))
    update = train_step.Update(LM, optimizers.adafactor(.01))
    with progress.Progress(tmp_path, [].append, total=9,
                           tensorboard=False) as said:
      steps = steps_lib.Steps(
          run, update, update.init(LM.init_params(jax.random.key(0))), None,
          said, steps_lib.Offline(run, update))
      steps.advance()
      waited = steps.waited
      for _ in range(4):
        steps.advance()
    found[kind] = steps.waited - waited
  # At the least the two batches right behind a line.
  assert found[data.ParallelText] < .3 < .6 <= found[Slow]
  rows = (tmp_path / progress.FILE).read_text().splitlines()
  assert [json.loads(row)['step'] for row in rows] == [2, 4, 2, 4]
