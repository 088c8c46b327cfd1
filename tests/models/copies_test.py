"""The compiled loop leaves caches where they are, on the CPU of these tests."""
import math
import re

import jax
import jax.numpy as jnp
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import chain, null
from spec_cascades.evaluation import faults
from spec_cascades.warp import Warp
from tests.models import tiny

CAPACITY = 37                  # a prime that no other array has


def moved(lm, drafter, draft_params, params):
  """Copies and transposes in the loop of arrays as large as a cache."""
  inputs, one = tiny.inputs_of(lm), jnp.ones(1, jnp.int32)
  prompt = types.Prompt(one[None], one, inputs if inputs is None else
                        jax.tree.map(lambda x: x[:1], inputs))
  spec = decode.GenSpecSample(
      lm, drafter, CAPACITY - drafter.num_nodes, eos=-1)
  args = spec, params, draft_params, prompt, decode.row_keys(0, [0])
  state = jax.eval_shape(decode.GenSpecSample.init, *args)
  caches = [state.cache] + [state.drafter] * (draft_params is not None)
  sizes = {x.size for x in jax.tree.leaves([cache.layers for cache in caches])}
  assert all(size % CAPACITY == 0 for size in sizes)
  text = decode.run.lower(*args, targets.Lossless(), Warp()).compile().as_text()
  size = lambda line: math.prod(
      map(int, re.search(r'\[([\d,]+)\]', line)[1].split(',')))
  return [x.line for x in faults.loop_of(text)
          if x.opcode in ('copy', 'transpose') and '[' in x.result
          and '[]' not in x.result and size(x.line) in sizes]


@pytest.mark.parametrize('name', ['t5_1_1', 'gemma3', 'llama3'])
@pytest.mark.parametrize('gamma', [0, 3])
def test_a_step_and_a_block_copy_no_cache(name, gamma):
  """One slot is written in place, and products read keys and values as stored.

  A single row, as latency is measured; both once cost a decode a third.
  """
  lm = tiny.LMS[name]
  params = lm.pack(tiny.params_of(lm))
  drafter = chain.Chain(lm, gamma) if gamma else null.Null()
  assert moved(lm, drafter, params if gamma else None, params) == []
