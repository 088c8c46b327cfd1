"""Kernels in C against NumPy in float64, and against XLA in whole models."""
import concurrent.futures
import dataclasses
import gc
import os
import pathlib
import platform
import stat

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import warp
from spec_cascades.drafters import chain
from spec_cascades.models import gemma
from spec_cascades.models import kernels
from spec_cascades.models import layers
from spec_cascades.models import pages
from spec_cascades.models import products
from spec_cascades.models import t5

X86 = platform.machine() in ('x86_64', 'AMD64')
BUILDS = {'native': kernels.FLAGS}
if X86:
  BUILDS |= {level: tuple(f'-march={level}' if x.startswith('-march') else x
                          for x in kernels.FLAGS)
             for level in ('x86-64-v3', 'x86-64')}
built = {}

pytestmark = pytest.mark.skipif(
    kernels.library() is None, reason='There is no C compiler.')


@pytest.fixture(params=BUILDS)
def build(request, monkeypatch):
  """Kernels for this processor, for AVX2 and for SSE2."""
  if request.param not in built:
    built[request.param] = (
        kernels.library() if request.param == 'native' else
        kernels.Library.load(kernels.compiled(BUILDS[request.param])))
  monkeypatch.setattr(kernels, 'library', lambda: built[request.param])
  return request.param


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(found, x, w):
  """Within float32's error of a sum of that many products."""
  exact = x.astype(np.float64) @ w.astype(np.float64)
  size = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
  bound = 2 * 2**-24 * (np.sqrt(x.shape[1]) + 4) * size + 1e-30
  np.testing.assert_array_less(np.abs(found - exact), bound)


def multiplied(x, w):
  """Both layouts' results."""
  x, w = jnp.asarray(x), jnp.asarray(w)
  yield kernels.product(x, kernels.panels(w), w.shape[1])
  yield kernels.product(x, w.T.copy(), w.shape[1])


@pytest.mark.parametrize('shape', [
    (1, 1, 1), (1, 256, 768), (2, 64, 31), (3, 17, 33), (5, 100, 64),
    (7, 768, 256), (8, 300, 95), (9, 40, 32), (12, 33, 65), (13, 256, 1536),
    (25, 31, 97), (64, 128, 130)])
def test_products_are_those_of_numpy(build, shape):
  rows, depth, features = shape
  x, w = normal(0, rows, depth), normal(1, depth, features)
  for found in multiplied(x, w):
    assert found.shape == (rows, features) and found.dtype == jnp.float32
    close(np.asarray(found), x, w)


@hypothesis.given(st.integers(1, 30), st.integers(1, 70), st.integers(1, 140),
                  st.integers(0, 2**31))
@hypothesis.settings(max_examples=30, deadline=None)
def test_products_of_any_shape(rows, depth, features, seed):
  x, w = normal(seed, rows, depth), normal(seed + 1, depth, features)
  for found in multiplied(x, w):
    close(np.asarray(found), x, w)


@pytest.mark.parametrize('rows', [2, 6, 8, 13, 30])
def test_a_row_has_the_same_bits_in_any_block(build, rows):
  """Of a product that threads share, in three runs each."""
  x, w = normal(2, rows, 320), normal(3, 320, 800)
  for block in (kernels.panels(jnp.asarray(w)), jnp.asarray(w.T.copy())):
    for _ in range(3):
      found = np.asarray(kernels.product(jnp.asarray(x), block, 800))
      for i in range(rows):
        alone = kernels.product(jnp.asarray(x[i:i + 1]), block, 800)
        np.testing.assert_array_equal(found[i], np.asarray(alone)[0])


def rounded(tree):
  """The same arrays, as bfloat16 has their numbers, in float32."""
  return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.bfloat16).astype(
      jnp.float32), tree)


@pytest.mark.parametrize('shape', [
    (1, 1, 1), (1, 256, 768), (4, 7, 31), (5, 100, 33), (8, 300, 95),
    (9, 40, 32), (13, 33, 97), (64, 128, 130)])
def test_a_matrix_of_halves_gives_the_same_bits(build, shape):
  rows, depth, features = shape
  x, w = normal(8, rows, depth), rounded(normal(9, depth, features))
  want = [np.asarray(y) for y in multiplied(x, w)]
  for found, same in zip(multiplied(x, w.astype(jnp.bfloat16)), want):
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(found), same)


@hypothesis.given(st.integers(1, 30), st.integers(1, 70), st.integers(1, 140),
                  st.integers(0, 2**31))
@hypothesis.settings(max_examples=30, deadline=None)
def test_halves_of_any_shape(rows, depth, features, seed):
  x, w = normal(seed, rows, depth), rounded(normal(seed + 1, depth, features))
  for found, same in zip(multiplied(x, w.astype(jnp.bfloat16)),
                         multiplied(x, w)):
    np.testing.assert_array_equal(np.asarray(found), np.asarray(same))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('features', [1, 31, 32, 77])
def test_panels_are_read_back(dtype, features):
  w = jnp.asarray(normal(10, 5, features)).astype(dtype)
  found = kernels.matrix(kernels.panels(w), features)
  assert found.dtype == w.dtype
  np.testing.assert_array_equal(found, w)


def test_what_is_not_finite_stays_in_its_row(build):
  x, w = normal(4, 4, 50), normal(5, 50, 70)
  x[1, 7], x[2, 9] = np.nan, np.inf
  for found in map(np.asarray, multiplied(x, w)):
    assert np.isfinite(found[[0, 3]]).all()
    assert np.isnan(found[1]).all() and np.isinf(found[2]).all()


def test_products_at_once_from_many_threads():
  """More of them than XLA's pool has threads: none waits for another."""
  x, w = normal(6, 3, 512), normal(7, 512, 2048)
  panels = kernels.panels(jnp.asarray(w))
  run = jax.jit(lambda x: kernels.product(x, panels, 2048))
  want = np.asarray(run(x))
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for found in pool.map(lambda _: np.asarray(run(x)), range(200)):
      np.testing.assert_array_equal(found, want)


def reference(query, key, value, bias, mask, cap):
  """Attention in float64."""
  b, n, heads, width = query.shape
  groups = heads // key.shape[1]
  key, value = (np.repeat(x, groups, 1).astype(np.float64)
                for x in (key, value))
  score = np.einsum('bnhd,bhsd->bhns', query.astype(np.float64), key)
  if cap:
    score = cap * np.tanh(score / cap)
  if bias is not None:
    score = score + bias
  score = np.where(mask[:, None], score, -1e9)
  weight = np.exp(score - score.max(-1, keepdims=True))
  weight /= weight.sum(-1, keepdims=True)
  mixed = np.einsum('bhns,bhsd->bnhd', weight, value)
  return mixed.reshape(b, n, heads * width)


def inputs(seed, b, n, heads, groups, slots, width, bias):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
  mask = rng.random((b, n, slots)) < .6
  mask[:, :, 0] = True
  mask[:, :, slots - slots // 3:] = False
  extra = None if bias is None else draw(bias, heads, n, slots)
  return (draw(b, n, heads, width), draw(b, groups, slots, width),
          draw(b, groups, slots, width), extra, mask)


CASES = [(1, 1, 1, 1, 1, 32, None, None), (1, 8, 4, 4, 24, 64, 1, None),
         (2, 3, 4, 2, 33, 32, 2, None), (2, 9, 6, 1, 50, 96, None, 5.0),
         (1, 17, 2, 2, 129, 64, 1, 30.0), (3, 5, 3, 3, 16, 32, 3, None)]


@pytest.mark.parametrize('case', CASES)
def test_attention_is_that_of_numpy(build, case):
  *shape, bias, cap = case
  arrays = inputs(8, *shape, bias)
  found = np.asarray(kernels.attention(*arrays, cap))
  np.testing.assert_allclose(found, reference(*arrays, cap), rtol=2e-5,
                             atol=2e-6)


@pytest.mark.parametrize('case', CASES)
def test_attention_is_that_of_layers(case):
  *shape, bias, cap = case
  arrays = list(map(lambda x: x if x is None else jnp.asarray(x),
                    inputs(9, *shape, bias)))
  arrays[4] = arrays[4].at[:, 0].set(False)       # this node sees nothing
  found = layers.attend(*arrays, soft_cap=cap, kernel=True)
  want = layers.attend(*arrays, soft_cap=cap)
  # In C it is 2e-6 from float64 at most (the test above); XLA's may be as far.
  np.testing.assert_allclose(found, want, rtol=2e-5, atol=4e-6)


def test_large_scores_are_no_trouble(build):
  query, key, value, _, mask = inputs(10, 1, 4, 2, 2, 40, 32, None)
  arrays = (query * 100, key * 10, value, None, mask)
  np.testing.assert_allclose(kernels.attention(*arrays),
                             reference(*arrays, None), rtol=1e-4, atol=1e-4)


def test_a_node_has_the_same_bits_in_any_block(build):
  """Also if another node of the block sees farther."""
  query, key, value, bias, mask = inputs(11, 1, 12, 2, 1, 70, 64, 1)
  mask[0, 3, 60] = True
  found = np.asarray(kernels.attention(query, key, value, bias, mask))
  for i in range(12):
    one = slice(i, i + 1)
    alone = kernels.attention(query[:, one], key, value,
                              np.ascontiguousarray(bias[:, :, one]),
                              mask[:, one])
    np.testing.assert_array_equal(found[:, one], np.asarray(alone))


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_what_is_not_finite_shows_where_it_is_seen(build, value):
  query, key, values, _, mask = inputs(12, 1, 3, 2, 2, 20, 32, None)
  mask[0, :, 1:] = False
  mask[0, 1, 5] = True
  query[..., 0] = 1.
  key[0, :, 5, 0] = value
  found = np.asarray(kernels.attention(query, key, values, None, mask))
  assert np.isnan(found[0, 1]).all()
  assert np.isfinite(found[0, [0, 2]]).all()


@pytest.mark.parametrize('case', ['query', 'all keys', 'keys that are seen'])
@pytest.mark.parametrize('value', [np.nan, -np.inf])
def test_where_nothing_is_finite_no_result_is(build, case, value):
  query, key, values, _, mask = map(np.copy, (
      np.ones((1, 2, 1, 64), np.float32), np.ones((1, 1, 20, 64), np.float32),
      np.ones((1, 1, 20, 64), np.float32), 0, np.ones((1, 2, 20), bool)))
  if case == 'query':
    query[0, 0] = value
  else:
    seen = 20 if case == 'all keys' else 3
    key[0, 0, :seen, 5] = value
    mask[0, 0, seen:] = False
  found = np.asarray(kernels.attention(query, key, values, None, mask))
  if np.isnan(value) or case != 'keys that are seen':
    assert np.isnan(found[0, 0]).all()
  assert not (found[0, 0] == 1).all()


def test_misfits_are_refused():
  x, w = jnp.ones((2, 8)), jnp.ones((4, 8))
  with pytest.raises(Exception, match='shapes of a product do not fit'):
    kernels.product(x, w, 5).block_until_ready()
  with pytest.raises(Exception, match='of float32 rows, with'):
    kernels.product(x.astype(jnp.bfloat16), w, 4).block_until_ready()
  query, key, value, _, mask = inputs(13, 1, 2, 2, 2, 8, 32, None)
  with pytest.raises(Exception, match='shapes of attention do not fit'):
    kernels.attention(query, key, value[:, :, :4], None,
                      mask).block_until_ready()


MODELS = {
    't5': t5.T5(t5.T5Config(vocab_size=77, emb_dim=32, num_heads=2, head_dim=32,
                            num_encoder_layers=1, num_decoder_layers=2,
                            mlp_dim=48)),
    'gemma': gemma.Gemma(gemma.GemmaConfig(
        vocab_size=77, emb_dim=32, num_layers=2, num_heads=2, num_kv_heads=1,
        head_dim=32, mlp_dim=48, attention_soft_cap=20.))}


def by_xla(lm, params):
  return lm.pack(params, cut=True)


def scores(lm, params, steps):
  """Logits of 8 tokens behind one, in blocks of `steps`."""
  inputs = jnp.asarray([[5, 9, 4, 1]]) if isinstance(lm, t5.T5) else None
  prompt = types.Prompt(jnp.asarray([[3]]), jnp.asarray([1]), inputs)
  cache, found = lm.init(params, prompt, 16), []
  tokens = jnp.asarray([[4, 8, 15, 16, 23, 42, 7, 70]])
  for i in range(0, 8, steps):
    hidden, cache = lm.extend(params, cache,
                              types.chain(tokens[:, i:i + steps]))
    cache = cache.truncate(cache.length + steps)
    found.append(lm.head(params, hidden))
  return np.asarray(jnp.concatenate(found, 1))


@pytest.mark.parametrize('name', MODELS)
def test_models_are_those_without(name):
  lm = MODELS[name]
  params = lm.init_params(jax.random.key(0))
  packed = lm.pack(params)
  assert any(x.kernel for x in jax.tree.leaves(
      packed, is_leaf=lambda x: isinstance(x, products.Packed))
      if isinstance(x, products.Packed))
  want = scores(lm, by_xla(lm, params), 8)
  for steps in (1, 2, 4, 8):
    np.testing.assert_allclose(scores(lm, packed, steps), want, atol=2e-5)


@pytest.mark.parametrize('name', MODELS)
def test_damaged_keys_show_in_the_logits(name):
  lm = MODELS[name]
  params = jax.tree_util.tree_map_with_path(
      lambda path, x: x * jnp.nan if any(
          getattr(k, 'key', '') == 'key' for k in path) else x,
      lm.init_params(jax.random.key(6)))
  assert not np.isfinite(scores(lm, lm.pack(params), 4)).any()


@pytest.mark.parametrize('name', MODELS)
def test_a_narrow_head_reads_its_tokens(name):
  lm = MODELS[name]
  params = lm.pack(lm.init_params(jax.random.key(1)))
  hidden, tokens = jax.random.normal(jax.random.key(2), (1, 3, 32)), [3, 9, 76]
  narrow = lm.narrow(params, jnp.asarray(tokens))
  np.testing.assert_allclose(lm.head(narrow, hidden),
                             lm.head(params, hidden)[..., jnp.asarray(tokens)],
                             atol=1e-6)


def test_a_large_table_is_not_copied(monkeypatch):
  monkeypatch.setattr(products, 'COPIED_ELEMENTS', 100)
  lm = t5.T5(t5.T5Config(vocab_size=77, emb_dim=32, num_heads=2, head_dim=32,
                         num_encoder_layers=1, num_decoder_layers=1,
                         mlp_dim=48, logits_via_embedding=True))
  params = lm.init_params(jax.random.key(3))
  packed = lm.pack(params)
  table = packed['token_embedder']
  assert table['packed'].kernel and table['packed'].array is table['embedding']
  np.testing.assert_allclose(scores(lm, packed, 4),
                             scores(lm, by_xla(lm, params), 4), atol=2e-5)


def weights_of(packed):
  """Every `Packed` of a tree that kernels read."""
  is_packed = lambda x: isinstance(x, products.Packed)
  return [x for x in jax.tree.leaves(packed, is_leaf=is_packed)
          if is_packed(x) and x.kernel]


def dtypes_of(packed):
  return {str(x.array.dtype) for x in weights_of(packed)}


@pytest.mark.parametrize('tied', ['small', 'large'])
@pytest.mark.parametrize('name', MODELS)
def test_weights_that_are_bfloat16_take_half_and_give_the_same(
    name, tied, monkeypatch):
  if tied == 'large':
    monkeypatch.setattr(products, 'COPIED_ELEMENTS', 100)
  lm = MODELS[name]
  lm = dataclasses.replace(lm, config=dataclasses.replace(
      lm.config, logits_via_embedding=True))
  params = rounded(lm.init_params(jax.random.key(7)))
  whole, packed = lm.pack(params), products.compacted(lm.pack(params))
  assert dtypes_of(whole) == {'float32'} and dtypes_of(packed) == {'bfloat16'}
  table = packed['token_embedder']
  assert (table['packed'].array is table['embedding']) == (tied == 'large')
  for steps in (1, 8):
    np.testing.assert_array_equal(scores(lm, packed, steps),
                                  scores(lm, whole, steps))
  hidden = jax.random.normal(jax.random.key(8), (1, 3, 32))
  some = jnp.asarray([3, 9, 76])
  np.testing.assert_array_equal(lm.head(lm.narrow(packed, some), hidden),
                                lm.head(lm.narrow(whole, some), hidden))


@pytest.mark.parametrize('odd', [1 + 2.**-9, 2.**-140, -3.1])
def test_one_number_more_than_bfloat16_has_keeps_all_whole(odd):
  lm = MODELS['t5']
  params = rounded(lm.init_params(jax.random.key(9)))
  layer = params['decoder']['layers_1']['mlp']
  layer['wo']['kernel'] = layer['wo']['kernel'].at[3, 4].set(odd)
  assert dtypes_of(products.compacted(lm.pack(params))) == {'float32'}


@pytest.mark.parametrize('special', [0., -0., np.inf, np.nan, 2.**-133])
def test_special_numbers_are_halved_too(special):
  x = np.full((2, 3), special, np.float32)
  assert kernels.are_halves(jnp.asarray(x))
  found = kernels.halves(x)
  np.testing.assert_array_equal(
      found.astype(np.float32).view(np.uint32), x.view(np.uint32))


def test_halved_panels_are_panels_of_halves():
  w = rounded(normal(11, 6, 77))
  np.testing.assert_array_equal(
      kernels.halves(np.asarray(kernels.panels(w))),
      kernels.panels(w.astype(jnp.bfloat16)))


def test_without_our_kernels_nothing_is_halved():
  """XLA reads float32 products' weights as float32."""
  lm = MODELS['gemma']
  params = rounded(lm.init_params(jax.random.key(10)))
  found = products.compacted(by_xla(lm, params))
  assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype('float32')}


def test_compacted_weights_lie_in_one_piece():
  config = dataclasses.replace(MODELS['t5'].config, emb_dim=256, mlp_dim=1024)
  lm = t5.T5(config)
  params = lm.init_params(jax.random.key(12))
  whole, packed = lm.pack(params), products.compacted(lm.pack(params))
  arrays = sorted((x.array for x in weights_of(packed)),
                  key=lambda x: x.unsafe_buffer_pointer())
  places = [x.unsafe_buffer_pointer() for x in arrays]
  ends = [at + pages.room(x.nbytes) for at, x in zip(places, arrays)]
  assert sum(x.nbytes for x in arrays) > pages.HUGE
  assert places[0] % pages.HUGE == 0 and places[1:] == ends[:-1]
  jax.tree.map(np.testing.assert_array_equal, packed, whole)
  np.testing.assert_array_equal(scores(lm, packed, 4), scores(lm, whole, 4))


def test_a_piece_stays_as_long_as_an_array_of_it():
  piece = pages.Piece(pages.HUGE)
  kept = piece.put(np.arange(1000, dtype=np.float32))
  del piece
  gc.collect()
  other = [np.full(pages.HUGE // 4, 7, np.float32) for _ in range(4)]
  np.testing.assert_array_equal(kept, np.arange(1000))
  assert kept.dtype == jnp.float32 and len(other) == 4


def test_halving_lets_arrays_go_one_by_one():
  lm = MODELS['t5']
  params = rounded(lm.init_params(jax.random.key(11)))
  packed = lm.pack(params)
  held = products.compacted(packed)
  assert not packed and held


def test_decoding_is_that_without():
  lm = MODELS['t5']
  large, small = (lm.init_params(jax.random.key(i)) for i in (4, 5))
  spec = decode.GenSpecSample(lm, chain.Chain(lm, 3), 20, eos=(1,))
  prompt = types.Prompt(jnp.zeros((3, 1), jnp.int32), jnp.ones(3, jnp.int32),
                        jnp.asarray([[5, 9, 4], [7, 7, 0], [2, 0, 0]]))
  found = [np.asarray(decode.run(
      spec, pack(large), pack(small), prompt, decode.row_keys(0, [0, 1, 2]),
      targets.Lossless(), warp.Warp(temperature=jnp.asarray([0., 1., .5])))
      .tokens) for pack in (lm.pack, lambda x: by_xla(lm, x))]
  np.testing.assert_array_equal(*found)


def fresh(monkeypatch):
  """`kernels.library` as if it had not been asked for."""
  undecorated = kernels.library.__wrapped__
  monkeypatch.setattr(kernels, 'library', undecorated)
  return undecorated


def test_without_a_compiler_xla_multiplies_and_it_is_said(
    monkeypatch, tmp_path):
  library = fresh(monkeypatch)
  monkeypatch.setenv('PATH', str(tmp_path))
  monkeypatch.setattr(kernels, 'KEPT', str(tmp_path))
  monkeypatch.delenv('CC', raising=False)
  with pytest.warns(UserWarning, match='There is no C compiler.*Install'):
    assert library() is None
  with pytest.warns(UserWarning):
    assert kernels.name() == 'xla'


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
  library = fresh(monkeypatch)
  bad = tmp_path / 'cc'
  bad.write_text('#!/bin/sh\necho "kernels.c:1: error: no such luck" >&2\n'
                 'echo "note: but once" >&2\nexit 1\n')
  bad.chmod(bad.stat().st_mode | stat.S_IEXEC)
  monkeypatch.setenv('CC', str(bad))
  monkeypatch.setattr(kernels, 'KEPT', str(tmp_path / 'kept'))
  with pytest.warns(UserWarning, match='could not compile.*no such luck\\. '):
    assert library() is None
  assert not list(pathlib.Path(tmp_path, 'kept').iterdir())


def test_a_folder_that_cannot_be_made_is_said(monkeypatch, tmp_path):
  library = fresh(monkeypatch)
  (tmp_path / 'file').write_text('')
  monkeypatch.setattr(kernels, 'KEPT', str(tmp_path / 'file' / 'kept'))
  with pytest.warns(UserWarning, match='file'):
    assert library() is None


def test_without_a_home_it_is_said(monkeypatch):
  library = fresh(monkeypatch)
  monkeypatch.setattr(os.path, 'expanduser', lambda path: path)
  with pytest.warns(UserWarning, match='no home directory'):
    assert library() is None


def test_a_damaged_library_is_made_again(monkeypatch, tmp_path):
  library = fresh(monkeypatch)
  monkeypatch.setattr(kernels, 'KEPT', str(tmp_path))
  monkeypatch.setattr(kernels, 'SYMBOLS', ())     # those are known already
  path = kernels.compiled()
  path.write_bytes(b'')
  assert library().path == path and path.stat().st_size > 0


def test_what_is_kept_needs_no_compiler(monkeypatch):
  kernels.compiled()
  monkeypatch.setenv('PATH', '/nowhere')
  monkeypatch.delenv('CC', raising=False)
  assert kernels.compiled().exists()


def test_the_environment_chooses(monkeypatch):
  library = fresh(monkeypatch)
  monkeypatch.setenv(kernels.CHOICE, 'xla')
  assert library() is None
  monkeypatch.setenv(kernels.CHOICE, 'cuda')
  with pytest.raises(ValueError, match="SPEC_CASCADES_KERNELS='cuda'; allowed: "
                     'c, xla'):
    library()


def test_it_is_compiled_once(monkeypatch, tmp_path):
  monkeypatch.setattr(kernels, 'KEPT', str(tmp_path))
  first = kernels.compiled()
  made = first.stat().st_mtime_ns
  assert kernels.compiled() == first and first.stat().st_mtime_ns == made
  assert os.listdir(tmp_path) == [first.name]


def test_the_source_gives_no_warnings(monkeypatch, tmp_path):
  monkeypatch.setattr(kernels, 'KEPT', str(tmp_path))
  flags = ('-Wall', '-Wextra', '-Wno-sign-compare', '-Wno-unknown-pragmas',
           '-Werror')
  assert kernels.compiled((*flags, *kernels.FLAGS)).exists()


def test_a_large_matrix_stays_where_it_is(monkeypatch):
  monkeypatch.setattr(products, 'COPIED_ELEMENTS', 100)
  monkeypatch.setattr(products, 'LARGE', 100)
  lm = dataclasses.replace(MODELS['t5'], config=dataclasses.replace(
      MODELS['t5'].config, vocab_size=900, logits_via_embedding=True))
  params = rounded(lm.init_params(jax.random.key(13)))
  whole, packed = lm.pack(params), products.compacted(lm.pack(params))
  table = packed['token_embedder']
  assert dtypes_of(packed) == {'float32', 'bfloat16'}
  assert table['packed'].array is table['embedding']
  assert table['embedding'].dtype == jnp.float32
  np.testing.assert_array_equal(scores(lm, packed, 4), scores(lm, whole, 4))
