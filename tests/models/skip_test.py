"""Some layers of a model are a model: the one with the others taken out."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters.chain import Chain
from spec_cascades.drafters.early_exit import EarlyExit
from spec_cascades.drafters.null import Null
from spec_cascades.models import gemma, skip
from spec_cascades.warp import Warp
from tests.models import tiny


def prompt_for(lm):
  inputs = None if isinstance(lm, gemma.Gemma) else jnp.array([[3, 4, 5, 6]])
  return types.Prompt(jnp.array([[2, 7]]), jnp.array([2]), inputs)


def batch_for(lm):
  """Targets behind what `prompt_for` gives."""
  prompt = prompt_for(lm)
  inputs = prompt.prefix if prompt.inputs is None else prompt.inputs
  return dict(inputs=inputs, input_lengths=jnp.full(1, inputs.shape[1]),
              targets=jnp.array([[9, 3, 5]]))


@pytest.mark.parametrize('name', tiny.LMS)
def test_all_layers_are_the_model(name):
  lm = tiny.LMS[name]
  params = tiny.params_of(lm)
  same, kept = skip.shallow(lm, params, range(skip.layers_of(lm)))
  assert jax.tree.structure(kept) == jax.tree.structure(params)
  windows = getattr(lm.config, 'windows', None)
  if windows is not None:
    want = [lm.config.window(i) for i in range(lm.config.num_layers)]
    assert list(same.config.windows) == want


@pytest.mark.parametrize('name,keep', [
    ('t5_1_1', (1,)), ('gemma3', (0, 2)), ('gemma2', (1,)), ('qwen2', (0,))])
def test_layers_left_out_do_nothing(name, keep):
  """A layer whose writes into the residual stream are zero is none."""
  lm = tiny.LMS[name]
  params = tiny.params_of(lm)
  silent = jax.tree.map(jnp.asarray, params)
  for i in set(range(skip.layers_of(lm))) - set(keep):
    layer = silent['decoder'][f'layers_{i}']
    for part, child in layer.items():
      if part.startswith('post_'):                 # norms of what is added
        child['scale'] = jnp.full_like(child['scale'], -lm.config.norm_offset)
      for last in ('out', 'wo'):
        if last in child:
          child[last]['kernel'] = jnp.zeros_like(child[last]['kernel'])
  small, kept = skip.shallow(lm, params, keep)
  logits = []
  for model, weights in ((lm, silent), (small, kept)):
    packed = model.pack(weights)
    cache = model.init(packed, prompt_for(lm), 8)
    hidden, _ = model.extend(packed, cache, types.chain(jnp.array([[2, 7, 9]])))
    logits.append(model.head(packed, hidden))
  np.testing.assert_allclose(*logits, atol=1e-5)


@pytest.mark.parametrize('name', ['t5_1_1', 'gemma3', 'qwen2'])
def test_a_gate_of_zero_is_a_sublayer_left_out(name):
  """Each kind of sublayer, teacher-forced and in blocks."""
  lm = tiny.LMS[name]
  params = tiny.params_of(lm)
  every, batch = skip.sublayers(lm), batch_for(lm)
  assert len(every) == len(set(every)) == skip.layers_of(lm) * len(
      {part for _, part in every})
  forced = jax.jit(lambda gates: lm.teacher_forced(
      skip.weighted(lm, params, gates), batch))
  whole = forced({part: jnp.float32(1) for part in every})
  np.testing.assert_allclose(whole, lm.teacher_forced(params, batch),
                             atol=1e-5)
  for names in {part for _, part in every}:
    chosen = [(1, names)]
    gates = {part: jnp.float32(part not in chosen) for part in every}
    small = skip.without(lm, chosen)
    want = small.teacher_forced(params, batch)
    np.testing.assert_allclose(forced(gates), want, atol=1e-5)
    assert np.abs(want - whole).max() > 1e-3
    packed, prompt = small.pack(params), prompt_for(lm)
    if prompt.inputs is not None:
      prompt = prompt.replace(prefix=jnp.zeros((1, 1), jnp.int32))
    cache = small.init(packed, prompt, 8)
    kept = sum(x is not None for x in cache.layers)
    assert kept == skip.layers_of(lm) - (names == 'self_attention')
    tokens = jnp.concatenate([prompt.prefix, batch['targets'][:, :-1]], 1)
    for block in tokens[:, :2], tokens[:, 2:]:
      hidden, cache = small.extend(packed, cache, types.chain(block))
      cache = cache.truncate(cache.length + block.shape[1])
    np.testing.assert_allclose(small.head(packed, hidden),
                               want[:, -block.shape[1]:], atol=1e-4)


def test_sublayers_that_can_not_be_left_out_are_refused():
  lm = tiny.LMS['gemma3']
  for bad in ([(9, 'mlp')], [(0, 'encoder_decoder_attention')]):
    with pytest.raises(ValueError, match='allowed: a layer from 0'):
      skip.without(lm, bad)
  every = [(i, 'self_attention') for i in range(skip.layers_of(lm))]
  with pytest.raises(ValueError, match='keep one'):
    skip.without(lm, every)


def test_some_layers_of_a_model_keep_what_was_left_out():
  lm = skip.without(tiny.LMS['t5_1_1'], [(1, 'mlp')])
  small, _ = skip.shallow(lm, tiny.params_of(lm), (1,))
  assert small.config.skipped == ((0, 'mlp'),)


def test_it_drafts_for_the_model_it_comes_from():
  lm = tiny.LMS['gemma3']
  params = lm.pack(tiny.params_of(lm))
  small, kept = skip.shallow(lm, params, (0, 1))
  assert kept['token_embedder'] is params['token_embedder']
  run = lambda drafter, weights: decode.GenSpecSample(
      lm, drafter, 24, eos=-1)(params, weights, prompt_for(lm),
                               decode.row_keys(0, [0]), targets.Lossless(),
                               Warp(0.))
  alone, drafted = run(Null(), None), run(Chain(small, 3), kept)
  np.testing.assert_array_equal(alone.tokens, drafted.tokens)
  assert drafted.stats.rounds[0] < alone.stats.rounds[0]


@pytest.mark.parametrize('name', ['t5_1_1', 'gemma3'])
@pytest.mark.parametrize('rule', [targets.Lossless(), targets.Chow(.5)],
                         ids=lambda rule: type(rule).__name__)
def test_first_layers_draft_on_the_cache_of_the_verifier(name, rule):
  """As they do with a cache of their own, which the same tokens filled."""
  lm = tiny.LMS[name]
  params = lm.pack(tiny.params_of(lm))
  small, kept = skip.shallow(lm, params, (0,))
  ragged = types.Prompt(
      jnp.array([[2, 7, 3, 9], [5, 0, 0, 0], [4, 8, 0, 0]]),
      jnp.array([4, 1, 2]), prompt_for(lm).inputs)
  if ragged.inputs is not None:
    ragged = ragged.replace(inputs=jnp.tile(ragged.inputs, (3, 1)))
  own = Chain(small, 3)
  run = lambda drafter: decode.GenSpecSample(lm, drafter, 20, eos=-1)(
      params, kept, ragged, decode.row_keys(0, [0, 1, 2]), rule, Warp(.7))
  want, got = run(own), run(EarlyExit(own, 1))
  np.testing.assert_array_equal(got.tokens, want.tokens)
  jax.tree.map(np.testing.assert_array_equal, got.stats.accepted,
               want.stats.accepted)
  assert got.drafter == () and int(got.stats.accepted.sum()) > 0


def test_layers_spread_evenly():
  assert skip.spread(18, 3) == (0, 8, 17) and skip.spread(4, 4) == (0, 1, 2, 3)
  assert skip.spread(5, 1) == (0,)


@pytest.mark.parametrize('keep', [(), (1, 0), (0, 0), (-1,), (0, 3)])
def test_layers_that_are_not_there_are_refused(keep):
  lm = tiny.LMS['gemma3']
  with pytest.raises(ValueError, match='from 0 to 2'):
    skip.shallow(lm, tiny.params_of(lm), keep)
  with pytest.raises(ValueError, match='allowed: 1 to 4'):
    skip.spread(4, 5)


def test_the_model_itself_is_left_alone():
  lm = tiny.LMS['gemma2']
  before = dataclasses.asdict(lm.config)
  skip.shallow(lm, tiny.params_of(lm), (1,))
  assert dataclasses.asdict(lm.config) == before
