"""Model directories: what is written is what is read, or one clear line."""
import errno
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import besides
import tinypair

from spec_cascades import checkpoints
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import pairs
from spec_cascades.models import reduced
from spec_cascades.models import skip
from spec_cascades.models import t5
from tests.models import tiny


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  return tinypair.make_vocabulary(tmp_path_factory.mktemp('vocabulary'))


@pytest.fixture
def model(tmp_path, vocabulary):
  return tinypair.write(tmp_path / 'model', vocabulary, 0)


def edit(model, **changes):
  path = model / native.CONFIG
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_float32_round_trip_is_exact(tmp_path, vocabulary):
  lm = t5.T5(tinypair.config(16, 2, logits_via_embedding=False))
  params = lm.init_params(jax.random.key(3))
  native.save(tmp_path, lm, params, vocabulary, 'float32')
  loaded, again, words = native.load(tmp_path)
  assert loaded == lm and hash(loaded) == hash(lm)
  assert words.size == tinypair.PIECES
  jax.tree.map(np.testing.assert_array_equal, params, again)


@pytest.mark.parametrize('name, layer, part', [
    ('gemma1', 1, 'mlp'), ('gemma1', 0, 'self_attention'),
    ('gemma2', 0, 'mlp'), ('t5_1_1', 1, 'encoder_decoder_attention')])
def test_a_model_without_a_sublayer_comes_back(tmp_path, name, layer, part):
  """Its parameters are those of the whole model."""
  lm = skip.without(tiny.LMS[name], [(layer, part)])
  params = tiny.params_of(tiny.LMS[name])
  native.save(tmp_path, lm, params, None, 'float32')
  loaded, again, _ = native.load(tmp_path)
  assert loaded == lm and loaded.config.skipped == ((layer, part),)
  jax.tree.map(np.testing.assert_array_equal, params, again)


def test_a_model_that_is_written_over_is_whole_until_another_is(
    tmp_path, vocabulary, monkeypatch):
  lm = t5.T5(tinypair.config(16, 1))
  first, then = (lm.init_params(jax.random.key(i)) for i in (0, 1))
  native.save(tmp_path, lm, first, vocabulary, 'float32', shard_bytes=5_000)
  write, written = native.tensors.write, []

  def full(path, *args):
    if len(written) == 2:
      raise OSError(errno.ENOSPC, f"{path} can't be written: no space left")
    written.append(path)
    return write(path, *args)
  monkeypatch.setattr(native.tensors, 'write', full)
  with pytest.raises(OSError, match=f'{tmp_path}/model-00003.* no space left'):
    native.save(tmp_path, lm, then, vocabulary, 'float32', shard_bytes=5_000)
  jax.tree.map(np.testing.assert_array_equal, first, native.load(tmp_path)[1])
  monkeypatch.undo()
  native.save(tmp_path, lm, then, vocabulary, 'float32', shard_bytes=5_000)
  jax.tree.map(np.testing.assert_array_equal, then, native.load(tmp_path)[1])
  assert not list(tmp_path.glob('.*'))


def test_bfloat16_is_rounded_once_and_read_as_float32(tmp_path, vocabulary):
  lm = t5.T5(tinypair.config(16, 1))
  params = lm.init_params(jax.random.key(3))
  native.save(tmp_path, lm, params, vocabulary)
  _, again, _ = native.load(tmp_path)
  want = jax.tree.map(
      lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)
  jax.tree.map(np.testing.assert_array_equal, want, again)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(again))


def test_large_weights_are_several_files(tmp_path, vocabulary):
  lm = t5.T5(tinypair.config(16, 1))
  params = lm.init_params(jax.random.key(3))
  native.save(tmp_path / 'one', lm, params, vocabulary, 'float32')
  native.save(tmp_path / 'many', lm, params, vocabulary, 'float32',
              shard_bytes=2**14)
  files = sorted((tmp_path / 'many').glob('*.safetensors'))
  assert [f.name for f in files] == native.weight_files(len(files))
  assert len(files) > 2 and not (tmp_path / 'many' / native.WEIGHTS).exists()
  jax.tree.map(np.testing.assert_array_equal, params,
               native.load(tmp_path / 'many')[1])
  files[1].write_bytes(files[1].read_bytes()[:-40])
  with pytest.raises(ValueError, match='00002-of-.* cut off'):
    native.load(tmp_path / 'many')
  files[1].unlink()
  with pytest.raises(ValueError, match='No model-00002-of'):
    native.load(tmp_path / 'many')


def test_digest_follows_weights_and_configuration(tmp_path, vocabulary):
  first = tinypair.write(tmp_path / 'a', vocabulary, 0)
  same = tinypair.write(tmp_path / 'b', vocabulary, 0, info={'note': 'x'})
  other = tinypair.write(tmp_path / 'c', vocabulary, 1)
  assert native.digest(first) == native.digest(same) != native.digest(other)


def test_a_missing_file_is_named(model):
  for name in (native.CONFIG, native.WEIGHTS, native.VOCABULARY):
    content = (model / name).read_bytes()
    (model / name).unlink()
    with pytest.raises(ValueError, match=name):
      native.load(model)
    (model / name).write_bytes(content)


@pytest.mark.parametrize('name, what', [
    (native.WEIGHTS, 'cut off'), (native.VOCABULARY, 'not a SentencePiece'),
    (native.CONFIG, 'not JSON')])
def test_a_truncated_file_is_named(model, name, what):
  path = model / name
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(ValueError, match=what):
    native.load(model)


def test_wrong_configurations_are_refused(model):
  fields = json.loads((model / native.CONFIG).read_text())['config']
  for changes, what in (
      (dict(family='gpt'), "'gpt'; allowed: t5"),
      (dict(format=9), 'format 9'), (dict(dtype='float16'), "'float16'"),
      (dict(dtype='bfloat16'), 'says bfloat16'),
      (dict(max_input_length='64'), "max_input_length='64'; allowed: 1 to"),
      (dict(max_input_length=0), 'max_input_length=0; allowed: 1 to'),
      (dict(config={**fields, 'depth': 3}), 'sets depth'),
      (dict(config={**fields, 'vocab_size': 4096}), '512 tokens'),
      (dict(config={**fields, 'mlp_dim': 24}), 'wrong shape'),
      (dict(config={**fields, 'num_decoder_layers': 2}), 'missing'),
      (dict(config={**fields, 'num_encoder_layers': 0}), 'left over')):
    before = (model / native.CONFIG).read_bytes()
    edit(model, **changes)
    with pytest.raises(ValueError, match=what) as error:
      native.load(model)
    assert '\n' not in str(error.value)
    (model / native.CONFIG).write_bytes(before)


def test_save_refuses_what_load_would(tmp_path, vocabulary):
  lm = t5.T5(tinypair.config(16, 1))
  params = lm.init_params(jax.random.key(0))
  with pytest.raises(ValueError, match='float16'):
    native.save(tmp_path, lm, params, vocabulary, 'float16')
  with pytest.raises(ValueError, match='left over: spare'):
    native.save(tmp_path, lm, {**params, 'spare': jnp.ones(2)}, vocabulary)
  with pytest.raises(ValueError, match='allowed: T5'):
    native.save(tmp_path, object(), params, vocabulary)
  assert not any(tmp_path.iterdir())


def test_a_draft_vocabulary_is_kept_with_the_drafter(tmp_path, vocabulary):
  lm = reduced.Reduced(t5.T5(tinypair.config(16, 1)), 3)
  params = dict(model=lm.lm.init_params(jax.random.key(3)),
                tokens=np.array([1, 7, 500]))
  native.save(tmp_path / 'a', lm, params, vocabulary, 'float32')
  found = checkpoints.load(tmp_path / 'a')
  assert found.lm == lm and found.tokenizer.size == tinypair.PIECES
  jax.tree.map(np.testing.assert_array_equal, params, found.params)
  assert found.params['tokens'].dtype == jnp.int32
  tinypair.write(tmp_path / 'p', vocabulary, 0)
  pair = pairs.load(str(tmp_path / 'p'), str(tmp_path / 'a'))
  logits = pair.drafter.lm.head(pair.drafter.params, jnp.ones((1, 16)))
  assert np.flatnonzero(np.isfinite(logits[0])).tolist() == [1, 7, 500]
  digest = native.digest(tmp_path / 'a')
  for tokens in ([1, 7, 501], [1, 7], None):
    edit(tmp_path / 'a', draft_vocabulary=tokens)
    assert native.digest(tmp_path / 'a') != digest
    native.load(tmp_path / 'a')
  for tokens in ([7, 1], [1, 1], [-1, 2], [1, 512], 'x', [1., 2], {}, [True],
                 [], [2**70]):
    edit(tmp_path / 'a', draft_vocabulary=tokens)
    with pytest.raises(ValueError, match='draft_vocabulary: Got') as error:
      native.load(tmp_path / 'a')
    assert '\n' not in str(error.value)
  with pytest.raises(ValueError, match='ascending'):
    native.save(tmp_path / 'b', lm, {**params, 'tokens': np.array([2, 1, 0])},
                vocabulary)
  assert not (tmp_path / 'b').exists()


def test_heads_beside_a_draft_vocabulary_are_refused(tmp_path, vocabulary):
  besides.write_whole(tmp_path, vocabulary, 'heads')
  native.load(tmp_path)
  edit(tmp_path, draft_vocabulary=[1, 7])
  with pytest.raises(ValueError, match='has heads and a draft vocabulary of 2'
                     ) as error:
    native.load(tmp_path)
  assert '\n' not in str(error.value)


def test_vocabularies_that_differ_are_refused(tmp_path, model, vocabulary):
  del vocabulary
  other = tinypair.make_vocabulary(tmp_path, 511)
  drafter = tinypair.write(tmp_path / 'drafter', other, 1)
  with pytest.raises(ValueError, match='vocabularies .* differ'):
    pairs.load(str(model), str(drafter))
