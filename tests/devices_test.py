"""Rows spread over 1, 2 and 8 devices decode to the same tokens.

A transformer's rows, whose products change shape, do so up to a near-tie. The
decoding runs in a process of its own, where the CPU counts as 8 devices.
`sharding_test` has the fast cases.
"""
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import chain, ngram, tree
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, keys, select
from tests.models import margins_test

ROOT = pathlib.Path(__file__).resolve().parents[1]
COUNTS, ROWS = (1, 2, 8), 32
# Half of the time is the compiler's, so it is told not to try hard.
FLAGS = ('--xla_force_host_platform_device_count=8 '
         '--xla_backend_optimization_level=0 '
         '--xla_llvm_disable_expensive_passes=true')
# Drafter, its parameters, verifier and a rule of one alpha a row.
CASES = dict(
    chain=(chain.Chain(LM, 2), Q, verify.Rejection(), targets.TokenV3),
    tree=(tree.Tree(LM, (-1, 0, 0), 'sampled'), Q, verify.KSeq(),
          targets.Chow),
    ngram=(ngram.NGram(3, 1), None, verify.Rejection(),
           targets.TruncatedMinP))


def arguments():
  """Prompts of different lengths; alphas, temperatures and top-p by row."""
  row = jnp.arange(ROWS)
  prompt = types.Prompt(jax.random.randint(jax.random.key(3), (ROWS, 5), 0, 5),
                        row % 5 + 1)
  real = row.astype(jnp.float32)
  warp = Warp(real % 4 / 2, top_p=1 - real % 3 / 4)
  return prompt, keys(ROWS), real / ROWS, warp


def decoded(name, devices):
  """Tokens, and on how many devices they lie."""
  drafter, draft_params, judge, rule = CASES[name]
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ('data',))
  place = lambda *axes: jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(*axes))
  prompt, own, alpha, warp = jax.tree.map(
      lambda x: jax.device_put(x, place(*['data'][:np.ndim(x)])),
      arguments())
  params, draft_params = jax.device_put((P, draft_params), place())
  spec = decode.GenSpecSample(LM, drafter, 20, judge, eos=1)
  state = spec(params, draft_params, prompt, own, rule(alpha), warp)
  shards = state.tokens.addressable_shards
  assert {x.data.shape[0] for x in shards} == {ROWS // devices}
  return state.tokens.tolist(), len(shards)


def margins(name='gemma3', rows=16):
  """How near what tipped was, of rows whose tokens 8 devices change."""
  row, own = jnp.arange(rows), keys(rows)
  rule = targets.Ensemble(jnp.linspace(0, 1, rows))
  prompt = select(margins_test.prompts(margins_test.tiny.LMS[name]),
                  row % margins_test.ROWS)
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('data',))
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  spread = jax.device_put((prompt, own, rule), place)
  one, many = (margins_test.rounds(name, *given, 1.)
               for given in ((prompt, own, rule), spread))
  found = [margins_test.first_margin(
      one, (many, i), i, own[i], targets.Ensemble(rule.alpha[i]), 1.)
           for i in range(rows)]
  return len(one), [float(x) for x in found if x is not None]


def main():
  found = {name: [decoded(name, n) for n in COUNTS] for name in CASES}
  print(json.dumps(dict(found, margins=margins())))


@pytest.fixture(scope='module')
def found():
  flags = os.environ.get('XLA_FLAGS', '')
  done = subprocess.run(
      [sys.executable, '-c', 'from tests import devices_test as t; t.main()'],
      cwd=ROOT, capture_output=True, text=True, check=False, env=dict(
          os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu',
          XLA_FLAGS=f'{flags} {FLAGS}'))
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_tokens_do_not_depend_on_the_number_of_devices(found, name):
  (alone, one), *others = found[name]
  assert one == 1 and len(set(map(tuple, alone))) > ROWS // 2
  for (tokens, shards), devices in zip(others, COUNTS[1:]):
    assert shards == devices
    assert tokens == alone


@pytest.mark.slow
def test_a_transformer_agrees_on_8_devices_or_differs_at_a_near_tie(found):
  rounds, apart = found['margins']
  print(f'{rounds} rounds; margins of rows that differ: {apart}')
  assert rounds > 5 and all(x < margins_test.NEAR for x in apart)
