"""Drafters that have other drafters, or the verifier, in them: by name."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import suffixes
from spec_cascades.evaluation import drafting, kinds, pairs
from spec_cascades.warp import Warp
from tests.common import keys
from tests.models import tiny

PROMPT = types.Prompt(jnp.ones((2, 3), jnp.int32), jnp.array([3, 2]))
STORE = suffixes.index(np.arange(50) ** 2 % tiny.VOCAB)


def model(name):
  lm = tiny.LMS[name]
  return pairs.Model(name, lm, tiny.params_of(lm), '', 99)


@pytest.fixture(scope='module')
def pair():
  return pairs.Pair(model('gemma2'), model('gemma1'), None, '',
                    {name: pairs.Part(part, '') for name, part in {
                        'ouroboros:x': STORE, 'rest:x': STORE,
                        'sublayers:x': ((0, 'mlp'),)}.items()})


@pytest.mark.parametrize('name', [
    *(name for name, kind in kinds.KINDS.items()
      if not (kind.needs or kind.read or name == 'null')),
    'ouroboros', 'ouroboros:x', 'sublayers:x', 'rest:x'])
def test_they_fit_the_loop_and_the_rules_that_they_say(pair, name):
  for gamma in (1, 6, 3):
    drafter, params = drafting.make(name, pair, gamma)
    assert drafter.num_nodes > gamma
  spec = decode.GenSpecSample(pair.verifier.lm, drafter, 20, eos=-1)
  rule = targets.Chow(.4) if drafting.split(name)[0].q else targets.Lossless()
  state, seen = jax.eval_shape(
      lambda own, params: spec.step(
          own, params, rule, Warp(), spec.init(own, params, PROMPT, keys(2))),
      pair.verifier.params, params)
  assert state.tokens.shape == (2, 20)
  assert seen.draft.tree.tokens.shape == (2, drafter.num_nodes)
  # A round costs what another does if as much is scored, and drafted.
  full = seen.draft.full or seen.draft.scratch > 0
  drafted = name in ('cascade', 'triforce')              # in inner rounds
  assert drafting.split(name)[0].even == (full and not drafted)


def test_a_part_of_a_cache_is_that_of_a_decoder(pair):
  other = dataclasses.replace(pair, verifier=model('t5_1_1'))
  for name in ('retrieved', 'triforce'):
    with pytest.raises(ValueError, match='Got a T5 to draft on part'):
      drafting.make(name, other, 3)
