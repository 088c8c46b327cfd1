"""Gemma's published Orbax layouts, written here from its einsums."""
import dataclasses
import json
import logging

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from checkpoints.t5x_faults_test import fuzz
from checkpoints.t5x_test import assert_equal
from spec_cascades import checkpoints
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import orbax
from spec_cascades.checkpoints import stores
from spec_cascades.models import gemma
from spec_cascades.models import presets
from tests.models import tiny


def save(path, tree, **options):
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as writer:
    writer.save(path, args=ocp.args.PyTreeSave(tree))
  return path


def theirs(lm, params, transposed):
  """Our parameters as gemma's modules hold them, nested.

  Written from the einsums there: BTD,NDH->BTNH, BSD,CKDH->CBSKH,
  BTD,SNDH->SBTNH, BTNH,NHD->BTD, ...F,NFH->...NH (or NHF), ...H,HF->...F.
  """
  cfg, decoder = lm.config, params['decoder']
  heads = lambda x, n: np.stack(np.split(np.asarray(x), n, -1))
  out = {'embedder': {'input_embedding': params['token_embedder']['embedding']},
         'final_norm': decoder['decoder_norm']}
  for i in range(cfg.num_layers):
    layer = decoder[f'layers_{i}']
    attention, mlp = layer['self_attention'], layer['mlp']
    query, key, value = (
        heads(attention[name]['kernel'], n) for name, n in (
            ('query', cfg.num_heads), ('key', cfg.num_kv_heads),
            ('value', cfg.num_kv_heads)))
    if cfg.num_heads == cfg.num_kv_heads:
      attn = {'qkv_einsum': {'w': np.stack([query, key, value])}}
    else:
      attn = {'q_einsum': {'w': query},
              'kv_einsum': {'w': np.stack([key, value])}}
    attn['attn_vec_einsum'] = {'w': np.stack(np.split(
        np.asarray(attention['out']['kernel']), cfg.num_heads))}
    if cfg.qk_norm:
      attn |= {'_query_norm': attention['query_norm'],
               '_key_norm': attention['key_norm']}
    gate = np.stack([mlp['wi_0']['kernel'], mlp['wi_1']['kernel']])
    block = {'attn': attn, 'mlp': {
        'gating_einsum': gate.transpose(0, 2, 1) if transposed else gate,
        'linear': mlp['wo']['kernel']},
             'pre_attention_norm': layer['pre_attention_norm'],
             'pre_ffw_norm': layer['pre_mlp_norm']}
    if cfg.post_norms:
      block |= {'post_attention_norm': layer['post_attention_norm'],
                'post_ffw_norm': layer['post_mlp_norm']}
    out[f'layer_{i}'] = block
  return jax.tree.map(jnp.asarray, out)


def flat(tree):
  """The layout of the published files: two levels, 'w' under mlp."""
  out = {}
  for *path, leaf in traverse_util.flatten_dict(tree):
    value = tree
    for key in (*path, leaf):
      value = value[key]
    if path[-1] == 'mlp':
      path, leaf = [*path, leaf], 'w'
    out.setdefault('/'.join(('transformer', *path)), {})[leaf] = value
  return out


def describe(lm):
  """What config.json has to say, with what shapes show left out."""
  fields = dataclasses.asdict(lm.config)
  return json.dumps({k: x for k, x in fields.items()
                     if k not in orbax.SIZES and k != 'vocab_size'})


def logits(lm, params):
  tokens = jnp.asarray([[3, 1, 4, 1, 5, 9, 2, 6]])
  return np.asarray(tiny.forward(lm, params, None, tokens))


LAYOUTS = {
    'nested': lambda tree: tree,
    'flat': flat,
    'multimodal': lambda tree: flat(tree) | {
        'SigLiPFromPatches_0/siglip_encoder': {'kernel': jnp.ones((2, 3))},
        'transformer/embedder/mm_input_projection': {'w': jnp.ones((2, 3))}},
    'kauldron': lambda tree: dict(params=tree, step=jnp.int32(3), opt_state={
        'mu': tree['final_norm']}, collections={}),
}


@pytest.mark.parametrize('name,layout,ocdbt', [
    *((name, 'nested', True) for name in ('gemma1', 'gemma2', 'gemma3')),
    *((name, 'flat', False) for name in ('gemma1', 'gemma2', 'gemma3')),
    ('gemma3', 'multimodal', True), ('gemma2', 'kauldron', True)])
def test_a_gemma_is_read_bitwise(name, layout, ocdbt, tmp_path):
  lm = tiny.LMS[name]
  params = tiny.params_of(lm)
  tree = LAYOUTS[layout](theirs(lm, params, transposed=name != 'gemma1'))
  path = save(tmp_path / 'model', tree, use_ocdbt=ocdbt)
  (tmp_path / 'config.json').write_text(describe(lm))
  found = checkpoints.load(path)
  assert found.lm == lm and found.tokenizer is None
  assert_equal(found.params, params)
  if layout == 'nested':
    np.testing.assert_array_equal(logits(lm, found.params), logits(lm, params))


def test_one_einsum_of_query_key_and_value_is_split(tmp_path):
  lm = gemma.Gemma(dataclasses.replace(
      tiny.LMS['gemma1'].config, num_kv_heads=4))
  params = tiny.params_of(lm)
  path = save(tmp_path / 'model', theirs(lm, params, transposed=False),
              use_zarr3=True)
  found = checkpoints.load(path)     # Gemma 1 has nothing that is not shown
  assert found.lm == lm
  assert_equal(found.params, params)


def test_bfloat16_is_stored_and_read_as_such(tmp_path):
  lm = tiny.LMS['gemma1']
  params = jax.tree.map(lambda x: x.astype('bfloat16'), tiny.params_of(lm))
  path = save(tmp_path / 'model', flat(theirs(lm, params, False)))
  assert_equal(checkpoints.load(path, dtype='bfloat16').params, params)


def test_the_published_model_of_these_sizes_says_the_rest(
    tmp_path, monkeypatch, caplog):
  lm = tiny.LMS['gemma3']
  params = tiny.params_of(lm)
  path = save(tmp_path / 'model', flat(theirs(lm, params, True)))
  with pytest.raises(ValueError, match='no published model has .*config.json'):
    checkpoints.load(path)
  # Published tables have more rows than the vocabulary.
  monkeypatch.setitem(presets.GEMMA, 'gemma3_tiny', dataclasses.replace(
      lm.config, vocab_size=tiny.VOCAB - 3))
  with caplog.at_level(logging.INFO):
    assert checkpoints.load(path).lm == lm
  assert 'is read as gemma3_tiny' in caplog.text
  (path / 'config.json').write_text('{"preset": "gemma3_tiny", "windows": [7]}')
  assert orbax.source(path).lm.config.windows == (7,)
  (path / 'config.json').write_text('{"preset": "gemma3_1b"}')
  with pytest.raises(ValueError, match='wrong shape'):
    checkpoints.load(path)
  (path / 'config.json').write_text('{"preset": "gemma9"}')
  with pytest.raises(ValueError, match="'gemma9'; allowed: gemma_2b"):
    checkpoints.load(path)


# Rows, width, layers, heads, key heads, size of a head, inner width; from the
# classes of google-deepmind/gemma, gemma/gm/nn/_gemma.py, and, for Gemma 1, its
# published configurations.
PUBLISHED = {
    'gemma_2b': (256_128, 2048, 18, 8, 1, 256, 16_384),
    'gemma_7b': (256_128, 3072, 28, 16, 16, 256, 24_576),
    'gemma2_2b': (256_128, 2304, 26, 8, 4, 256, 9216),
    'gemma2_9b': (256_128, 3584, 42, 16, 8, 256, 14_336),
    'gemma2_27b': (256_128, 4608, 46, 32, 16, 128, 36_864),
    'gemma3_270m': (262_144, 640, 18, 4, 1, 256, 2048),
    'gemma3_1b': (262_144, 1152, 26, 4, 1, 256, 6912),
    'gemma3_4b': (262_144, 2560, 34, 8, 4, 256, 10_240),
    'gemma3_12b': (262_144, 3840, 48, 16, 8, 256, 15_360),
    'gemma3_27b': (262_144, 5376, 62, 32, 16, 128, 21_504),
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_sizes_are_recognised(name, tmp_path, monkeypatch):
  """Of arrays that have the published shapes, and no contents."""
  rows, width, layers, heads, keys, size, inner = PUBLISHED[name]
  post, norm = not name.startswith('gemma_'), name.startswith('gemma3')
  shapes = {'embedder/input_embedding': (rows, width),
            'final_norm/scale': (width,)}
  block = {'attn/attn_vec_einsum/w': (heads, size, width),
           'mlp/gating_einsum/w': (2, inner, width) if norm else (
               2, width, inner),
           'mlp/linear/w': (inner, width), 'pre_attention_norm/scale': (width,),
           'pre_ffw_norm/scale': (width,)}
  if heads == keys:
    block['attn/qkv_einsum/w'] = (3, heads, width, size)
  else:
    block |= {'attn/q_einsum/w': (heads, width, size),
              'attn/kv_einsum/w': (2, keys, width, size)}
  if post:
    block |= dict.fromkeys(('post_attention_norm/scale',
                            'post_ffw_norm/scale'), (width,))
  if norm:
    block |= dict.fromkeys(('attn/_query_norm/scale', 'attn/_key_norm/scale'),
                           (size,))
  shapes |= {f'layer_{i}/{k}': x for i in range(layers)
             for k, x in block.items()}
  empty = {f'transformer/{k}': np.broadcast_to(np.float32(0), x)
           for k, x in shapes.items()}
  monkeypatch.setattr(stores, 'is_tree', lambda path: True)
  monkeypatch.setattr(stores, 'tree', lambda item: empty)
  found = orbax.source(tmp_path)
  assert found.lm.config == dataclasses.replace(
      presets.GEMMA[name], vocab_size=rows)
  loading.fit(found)


def test_gemmas_that_do_not_fit_are_refused(tmp_path):
  lm = tiny.LMS['gemma1']
  tree = theirs(lm, tiny.params_of(lm), False)
  layer = tree['layer_1']
  for i, (change, what) in enumerate((
      (dict(layer_1={**layer, 'mlp': {'linear': layer['mlp']['linear']}}),
       'missing: decoder/layers_1/mlp/wi_0'),
      (dict(layer_1={**layer, 'mlp': {
          **layer['mlp'], 'gating_einsum': jnp.ones((3, 16, 24))}}),
       'gating_einsum has shape .3, 16, 24., which no Gemma has'),
      (dict(per_layer_thing=jnp.ones(2)), 'left over: per_layer_thing'),
      (dict(final_norm={'scale': jnp.ones(17)}), 'wrong shape: final_norm'),
      (dict(final_norm={'scale': jnp.ones(16, int)}), 'is <i4; allowed'),
      (dict(layer_0={}), 'is no Gemma: .*layer_0'),
      ({'transformer/stacked_layers/attention_type_0/mlp/linear': {
          'w': jnp.ones((2, 2))}}, 'stacks its layers'))):
    path = save(tmp_path / str(i), {**tree, **change})
    with pytest.raises(ValueError, match=what) as error:
      checkpoints.load(path)
    assert '\n' not in str(error.value)


def test_fuzzed_headers_of_a_gemma_are_an_error_or_a_load(
    tmp_path, monkeypatch):
  lm = tiny.LMS['gemma1']
  tree = {'transformer': theirs(lm, tiny.params_of(lm), False)}
  folder = save(tmp_path / 'model', tree, use_ocdbt=False)
  names = [folder / '_METADATA', *sorted(folder.rglob('.zarray'))[::4]]
  assert fuzz(folder, names, monkeypatch) < 150
