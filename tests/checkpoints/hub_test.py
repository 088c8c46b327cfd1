"""Hugging Face directories: transformers' logits, or one clear line."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from spec_cascades import checkpoints, types
from spec_cascades.checkpoints import loading
from spec_cascades.models import t5
from tests.checkpoints import hubs

every_family = pytest.mark.parametrize('name', hubs.FAMILIES)
# One of each kind; the others share their code and are slow to compile.
DECODED = ('gemma2', 'gemma3', 'qwen2_windows', 't5_1_1')


@functools.partial(jax.jit, static_argnums=0)
def score(lm, params, cache, tokens):
  hidden, cache = lm.extend(params, cache, types.chain(tokens))
  return lm.head(params, hidden), cache.truncate(
      cache.length + tokens.shape[1])


def cached(lm, params):
  """Logits of the same texts as `hubs.ours`, eight tokens at a time."""
  reads = isinstance(lm, t5.T5)
  texts = jnp.asarray(hubs.SHIFTED if reads else hubs.TOKENS, jnp.int32)
  prompt = types.Prompt(texts[:, :1], jnp.ones(2, jnp.int32),
                        jnp.asarray(hubs.INPUTS) if reads else None)
  packed = lm.pack(params)
  cache, found = jax.jit(lm.init, static_argnums=2)(packed, prompt, 32), []
  for start in range(0, hubs.LONG, 8):
    block, cache = score(lm, packed, cache, texts[:, start:start + 8])
    found.append(block)
  return jnp.concatenate(found, 1)


@pytest.fixture(scope='module')
def llama(tmp_path_factory):
  return hubs.save('llama3', tmp_path_factory.mktemp('llama'))


@pytest.fixture
def broken(llama, tmp_path):
  """A copy to break."""
  for path in llama.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  return tmp_path


@every_family
def test_logits_equal_those_of_transformers(name, tmp_path):
  hubs.save(name, tmp_path)
  lm, params, tokenizer = checkpoints.load(tmp_path)
  assert tokenizer is None
  np.testing.assert_allclose(hubs.ours(lm, params),
                             hubs.logits(hubs.model(name)), rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', [
    name if name in DECODED else pytest.param(name, marks=pytest.mark.slow)
    for name in hubs.FAMILIES])
def test_cached_logits_equal_those_of_transformers(name, tmp_path):
  lm, params, _ = checkpoints.load(hubs.save(name, tmp_path))
  np.testing.assert_allclose(cached(lm, params),
                             hubs.logits(hubs.model(name)), rtol=0, atol=1e-4)


@pytest.mark.parametrize('name', hubs.VERSION_4)
def test_configurations_of_older_versions_mean_the_same(name, tmp_path):
  hubs.save(name, tmp_path)
  keep = {key: ... for key in ('scale_decoder_outputs', 'tie_word_embeddings')}
  hubs.edit(tmp_path, **{**keep, **hubs.VERSION_4[name]},
            transformers_version='4.30.0')
  lm, params, _ = checkpoints.load(tmp_path)
  np.testing.assert_allclose(hubs.ours(lm, params),
                             hubs.logits(hubs.model(name)), rtol=0, atol=1e-4)


def test_shards_are_read_as_one_file_is(llama, tmp_path):
  hubs.save('llama3', tmp_path, max_shard_size='4KB')
  shards = sorted(tmp_path.glob('*.safetensors'))
  assert len(shards) > 2
  one, several = (checkpoints.load(x).params for x in (llama, tmp_path))
  jax.tree.map(np.testing.assert_array_equal, one, several)
  content = shards[1].read_bytes()
  shards[1].unlink()
  with pytest.raises(ValueError, match=f'No {shards[1].name} in'):
    checkpoints.load(tmp_path)
  shards[1].write_bytes(shards[0].read_bytes())
  with pytest.raises(ValueError, match='lacks .*unlike model.safetensors.ind'):
    checkpoints.load(tmp_path)
  shards[1].write_bytes(content[:-8])
  with pytest.raises(ValueError, match='00002-of-.* cut off'):
    checkpoints.load(tmp_path)
  index = tmp_path / 'model.safetensors.index.json'
  for wrong in ('{}', '[]', '{"weight_map": {"a": "../x.safetensors"}}',
                '{"weight_map": {"a": 3}}', '{'):
    index.write_text(wrong)
    with pytest.raises(ValueError, match='index.json is damaged'):
      checkpoints.load(tmp_path)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_dtypes_may_be_mixed(broken, dtype):
  path = broken / 'model.safetensors'
  state = safetensors.numpy.load_file(path)
  mixed = {name: x.astype(jnp.dtype(dtype)) if i % 2 else x
           for i, (name, x) in enumerate(state.items())}
  safetensors.numpy.save_file(mixed, path)
  found = checkpoints.load(broken).params
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(found))
  want = {name: np.asarray(x, np.float32) for name, x in mixed.items()}
  np.testing.assert_array_equal(found['decoder']['logits_dense']['kernel'],
                                want['lm_head.weight'].T)
  narrow = checkpoints.load(broken, dtype='bfloat16').params
  assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(narrow))


def write(path, changes):
  """Replaces, adds or (None) removes arrays."""
  state = safetensors.numpy.load_file(path / 'model.safetensors') | changes
  safetensors.numpy.save_file({k: x for k, x in state.items() if x is not None},
                              path / 'model.safetensors')


@pytest.mark.parametrize('changes,what', [
    ({'model.norm.weight': None}, 'lack model.norm.weight'),
    ({'model.extra': np.ones(2, np.float32)}, 'left over: model.extra'),
    ({'model.norm.weight': np.ones(3, np.float32)},
     r'wrong shape: model.norm.weight is \(3,\), not \(16,\)'),
    ({'model.norm.weight': np.ones(16, np.int32)}, 'model.norm.weight is I32')])
def test_weights_that_do_not_fit_are_refused(broken, changes, what):
  write(broken, changes)
  with pytest.raises(ValueError, match=what) as error:
    checkpoints.load(broken)
  assert '\n' not in str(error.value)


def test_constants_of_old_versions_are_left_out(broken):
  write(broken, {'model.layers.0.self_attn.rotary_emb.inv_freq':
                 np.ones(3, np.float32)})
  assert 'inv_freq' not in str(jax.tree.structure(checkpoints.load(broken)
                                                  .params))


def test_copies_of_a_tied_weight_have_to_be_copies(tmp_path):
  hubs.save('smollm2', tmp_path)
  state = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  table = state['model.embed_tokens.weight']
  write(tmp_path, {'lm_head.weight': table})
  checkpoints.load(tmp_path)
  write(tmp_path, {'lm_head.weight': table + 1})
  with pytest.raises(ValueError, match='lm_head.weight is not model.embed_tok'):
    checkpoints.load(tmp_path)


@pytest.mark.parametrize('changes,what', [
    (dict(model_type='mamba'), "'mamba' is not supported; allowed: gemma, "),
    (dict(model_type=...), 'model_type None is not supported'),
    (dict(model_type=['llama']), 'not supported'),
    (dict(hidden_size=...), "does not say 'hidden_size'"),
    (dict(hidden_size='16'), "emb_dim='16' is not possible"),
    (dict(rms_norm_eps='x'), "norm_epsilon='x' is not possible"),
    (dict(rope_parameters=[1]), 'wrong type'),
    (dict(hidden_size=32), 'wrong shape'),
    (dict(intermediate_size=25), 'wrong shape'),
    (dict(num_attention_heads=0), 'num_heads=0 is not possible'),
    (dict(num_attention_heads=3), 'not a multiple'),
    (dict(vocab_size=10**30), 'vocab_size=1000'),
    (dict(num_hidden_layers=2), 'left over: model.layers.2'),
    (dict(num_hidden_layers=4), 'lack model.layers.3'),
    (dict(num_hidden_layers=900), 'says 900 layers'),
    (dict(num_hidden_layers=10**9), 'num_layers=1000000000 is not possible'),
    (dict(rms_norm_eps=float('nan')), 'norm_epsilon=nan'),
    (dict(tie_word_embeddings=True), 'lm_head.weight is not model.embed'),
    (dict(tie_word_embeddings='no'), 'has to be true or false'),
    (dict(attention_bias=True), 'attention_bias=True is not supported'),
    (dict(layer_types=['full_attention']), 'layer_types of 1 layers'),
    (dict(layer_types=['a', 'b', 'c']), r"layer_types of 3 layers \['a'\]"),
    (dict(sliding_window=4, layer_types=['full_attention'] * 2 + [
        'sliding_attention']), "sliding_window=4 is not possible for a 'llam"),
    (dict(head_dim=5), 'head_dim=5 has to be even'),
    (dict(quantization_config=dict(bits=4)), 'quantization_config'),
    (dict(rope_parameters=dict(rope_type='yarn', rope_theta=1.)), "'yarn'"),
    (dict(model_type='t5'), "does not say 'num_layers'")])
def test_configurations_that_contradict_the_weights_are_refused(
    broken, changes, what):
  hubs.edit(broken, **changes)
  with pytest.raises(ValueError, match=what) as error:
    checkpoints.load(broken)
  assert str(broken) in str(error.value) and '\n' not in str(error.value)


def test_damaged_files_are_named(broken):
  weights, config = broken / 'model.safetensors', broken / 'config.json'
  whole = weights.read_bytes()
  for content in (whole[:-1], whole + b'\0', whole[:100], whole[:4], b'',
                  b'\xff' + whole[1:], whole[:9] + b'\xff' + whole[10:],
                  whole[:8] + b'[' + whole[9:]):
    weights.write_bytes(content)
    with pytest.raises(ValueError, match='model.safetensors is damaged'):
      checkpoints.load(broken)
  weights.write_bytes(whole)
  config.write_bytes(config.read_bytes()[:-20])
  with pytest.raises(ValueError, match='config.json is damaged'):
    checkpoints.load(broken)


def test_nothing_in_the_files_is_run(broken, monkeypatch):
  mark = broken / 'ran'
  (broken / 'modeling.py').write_text(f'open({str(mark)!r}, "w")')
  (broken / 'pytorch_model.bin').write_bytes(b'cos\nabort\n.')
  hubs.edit(broken, auto_map={'AutoModelForCausalLM': 'modeling.Model'},
            trust_remote_code=True)
  checkpoints.load(broken)
  assert not mark.exists()
  (broken / 'model.safetensors').unlink()
  with pytest.raises(ValueError, match='pytorch_model.bin, a pickle'):
    checkpoints.load(broken)


def test_a_tokenizer_has_to_fit(broken):
  made = hubs.words(broken)
  assert checkpoints.load(broken).tokenizer.size == 31
  made.add_special_tokens(['<image>'])       # Gemma 3 has one without a row
  made.save(str(broken / 'tokenizer.json'))
  found = checkpoints.load(broken).tokenizer
  assert found.size == 32 and found.encode('a') == [3]
  with pytest.raises(ValueError, match="'<image>', which the model has no emb"):
    found.encode('a<image>')
  made.add_tokens(['more'])
  made.save(str(broken / 'tokenizer.json'))
  with pytest.raises(ValueError, match='33 tokens, but the model has 31'):
    checkpoints.load(broken)


def test_a_tokenizer_must_not_be_far_too_small(broken):
  hubs.words(broken, 16)
  assert checkpoints.load(broken).tokenizer.size == 16
  for size in (2, 15):
    hubs.words(broken, size)
    with pytest.raises(ValueError, match=f'{size} tokens, but the model has 31'
                       ) as error:
      checkpoints.load(broken)
    assert str(broken) in str(error.value)


@pytest.mark.parametrize('size, rows, fits', [
    (151_646, 152_064, True),                 # Qwen2-7B
    (32_000, 32_128, True), (32_000, 32_512, True), (32_000, 32_513, False),
    (512, 512, True), (513, 512, False), (0, 31, False), (2**40, 512, False)])
def test_spare_embeddings_have_a_bound(size, rows, fits):
  if fits:
    loading.check_words('x', size, rows)
  else:
    with pytest.raises(ValueError, match=f'{size} tokens, but'):
      loading.check_words('x', size, rows, {rows, rows + 1} if size > rows + 1
                          else ())
