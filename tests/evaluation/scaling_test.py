"""What a token costs by batch: the law of the slowest row, and the harness."""
import itertools
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from spec_cascades import theory
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import scaling
from spec_cascades.models import t5

TINY = t5.T5Config(vocab_size=128, emb_dim=16, num_heads=2, head_dim=8,
                   num_encoder_layers=1, num_decoder_layers=1, mlp_dim=16)


def every_row(rates, tokens):
  """(rounds, probability) of one row, by enumeration of all its rounds."""
  reached = np.cumprod([1., *rates])
  law = reached - [*reached[1:], 0]
  out = []

  def extend(left, rounds, probability):
    if left <= 0:
      out.append((rounds, probability))
      return
    for n, p in enumerate(law, 1):
      extend(left - n, rounds + 1, probability * p)

  extend(tokens, 0, 1.)
  return out


@pytest.mark.parametrize('rates', [[.5], [.8, .3], [1., 1.], [0., .9]])
@pytest.mark.parametrize('tokens', [1, 2, 5])
def test_the_slowest_row_is_that_of_an_enumeration(rates, tokens):
  row = every_row(rates, tokens)
  for batch in (1, 2, 3):
    mean = sum(max(k for k, _ in rows) * np.prod([p for _, p in rows])
               for rows in itertools.product(row, repeat=batch))
    np.testing.assert_allclose(scaling.slowest(rates, tokens, batch), mean)


def test_the_slowest_row_is_that_of_the_loop():
  models = [benchmarks.Loaded.random(TINY, seed) for seed in (0, 1)]
  rows, tokens = 64, 12
  state = benchmarks.decode_program(*models, 3, rate=.6, new_tokens=tokens,
                                    batch=rows)()
  rounds = np.asarray(state.stats.rounds)
  mean = scaling.slowest([.6] * 3, tokens, 1)
  # 4 standard errors: a false alarm in 16,000.
  assert abs(rounds.mean() - mean) < 4 * rounds.std() / rows**.5
  assert abs(rounds.max() - scaling.slowest([.6] * 3, tokens, rows)) < 4


@pytest.mark.parametrize('bad', [
    dict(rates=[1.5]), dict(tokens=0), dict(batch=0)])
def test_what_cannot_be_is_refused(bad):
  with pytest.raises(ValueError, match='Got|allowed'):
    scaling.slowest(**{**dict(rates=[.5], tokens=4, batch=2), **bad})


def test_a_prediction_of_flat_steps_is_the_known_one():
  times = theory.StepTimes({1: 8., 4: 8.}, drafter=1.)
  found = scaling.predicted(times, 2, [.5] * 3, 400)
  assert found.alone == 4
  np.testing.assert_allclose(
      found.alone / found.refilled, theory.walltime_factor(.5, 3, 1 / 8))
  assert found.drafted > found.refilled
  read = scaling.predicted(times, 2, [.5] * 3, 400, uses_q=True)
  np.testing.assert_allclose(read.drafted / found.drafted, 12 / 11)
  more = scaling.predicted(times, 2, [.5] * 3, 400, sampling=1., judging=2.)
  assert more.alone == 4.5
  np.testing.assert_allclose(more.drafted / found.drafted, 13 / 11)


def test_a_prediction_holds_sampling_and_acceptance(monkeypatch):
  """Of times that are known: 8 steps of each program."""
  models = [benchmarks.Loaded.random(TINY, seed) for seed in (0, 1)]
  seconds = dict(one=8., block=16., drafter=4., sampling=24., judging=40.,
                 alone=1., drafted=1.)
  spread = lambda x: benchmarks.Spread(x, x, x)
  monkeypatch.setattr(benchmarks, 'timed', lambda calls, _: {
      name: spread(seconds.get(name, 0.)) for name in calls})
  found, = scaling.measure(*models, [2], gamma=2, rate=1., tokens=6)
  # A second and three of sampling for a token of 2 rows; a round of two steps
  # of the drafter, .5 each, a block, 2, and 5 of acceptance for 3 tokens.
  assert found.prediction.alone == (1 + 3) / 2
  np.testing.assert_allclose(found.prediction.refilled, (1 + 2 + 5) / 6)
  np.testing.assert_allclose(found.prediction.drafted, (1 + 2 + 5) / 6)
  *_, said = scaling.lines([found])
  assert said.startswith('predicted, from steps, sampling and acceptance')


@pytest.mark.parametrize('gamma', [0, 3])
def test_what_is_timed_draws_and_judges_each_round(gamma):
  """At temperature 0, and if nothing is rejected, p's best at the last node."""
  model = benchmarks.Loaded.random(TINY)
  tokens = scaling.judging_program(model, gamma, rate=1., batch=3)()
  key, _ = jax.random.split(jax.random.key(0))
  logits = jax.random.normal(key, (3, gamma + 1, TINY.vocab_size))
  np.testing.assert_array_equal(tokens, logits[:, -1].argmax(-1))


def test_where_drafting_stops_paying():
  cost = lambda batch, gain: scaling.Cost(batch, gain, 1., 1.)
  # Once more it pays at 4, so it stops at 8.
  costs = [cost(8, .9), cost(1, 2.), cost(2, .95), cost(4, 1.1), cost(16, .5)]
  assert scaling.stops(costs) == 8
  assert scaling.stops(costs[1:4]) is None
  assert scaling.stops([cost(1, .5)]) == 1
  assert scaling.ends(costs) == 'drafting does not pay from 8 rows on'
  assert scaling.ends(costs[1:2]) == 'drafting pays up to 1 rows'


@pytest.mark.parametrize('mesh', [meshes.Mesh(), meshes.Mesh(2, 1)])
def test_batches_are_decoded_on_a_mesh(mesh):
  if jax.local_device_count() < mesh.size:
    pytest.skip('test_and_on_two_devices runs it')
  layouts = mesh.layouts() or (None, None)
  models = [benchmarks.Loaded.random(TINY, seed, layout)
            for seed, layout in enumerate(layouts)]
  lines = list(scaling.lines(scaling.measure(
      *models, [2, 4], gamma=2, rate=1., tokens=6, runs=1)))
  rows = [line.split('|') for line in lines[2:4]]
  assert [int(row[0]) for row in rows] == [2, 4]
  assert all(np.isfinite(float(x.replace(',', ''))) for row in rows
             for x in row[1].split())            # on a busy machine only that
  assert lines[4].startswith('measured: ') and 'predicted' in lines[5]


@pytest.mark.slow
def test_and_on_two_devices():
  flags = os.environ.get('XLA_FLAGS', '')
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
       __file__, '-k', 'decoded_on_a_mesh'], capture_output=True, text=True,
      check=False, env=dict(
          os.environ,
          XLA_FLAGS=f'{flags} --xla_force_host_platform_device_count=2'))
  assert '2 passed' in done.stdout, done.stdout
