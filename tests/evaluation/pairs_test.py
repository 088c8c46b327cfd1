"""Pairs from the disk: what is one, limits, dtypes, progress and memory."""
from concurrent import futures
import functools
import json
import shutil
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.drafters import chain
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import text
from spec_cascades.evaluation import translate
from spec_cascades.models import products
from spec_cascades.models import t5
from tests import ggufs
from tests.checkpoints import hubs
from tests.checkpoints import loading_test
import tinypair


def both(pair_dir, **options):
  return pairs.load(str(pair_dir / 'verifier'), str(pair_dir / 'drafter'),
                    **options)


def test_nothing_is_compiled_before_inputs_are_checked():
  """Of the shipped pair, whose encoders are compared; by all threads."""
  compiled = []
  def count(event, *unused, **more):
    if 'backend_compile' in event:
      compiled.append(event)
  jax.monitoring.register_event_duration_secs_listener(count)
  try:
    assert pairs.is_shared(pairs.load().drafter)
    assert not compiled
    jax.jit(lambda x: x + 3).lower(jnp.ones(7)).compile()
    assert compiled
  finally:
    jax.monitoring.unregister_event_duration_listener(count)


def test_threads_that_ask_at_once_get_the_same_parameters(monkeypatch):
  """As Python 3.12 has it, whose `cached_property` locks nothing."""
  class Lockless(functools.cached_property):
    def __get__(self, instance, owner=None):
      if instance is None:
        return self
      found = vars(instance)
      if self.attrname not in found:
        found[self.attrname] = self.func(instance)
      return found[self.attrname]

  class Slow:
    def pack(self, params):
      inside.set()
      time.sleep(.2)
      return dict(params)

  packed, inside = Lockless(vars(pairs.Model)['_packed'].func), (
      threading.Event())
  packed.__set_name__(pairs.Model, '_packed')
  monkeypatch.setattr(pairs.Model, '_packed', packed)
  model = pairs.Model('slow', Slow(), dict(x=jnp.ones(3)), '', 9)
  with futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(lambda: model.params)
    inside.wait()
    second = pool.submit(lambda: model.params)
    assert first.result() is second.result()


def nbytes(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


@pytest.mark.parametrize('name,limit', [
    ('t5_1_1', loading.DEFAULT_MAX_INPUT), ('smollm2', 9)])
def test_only_relative_positions_go_beyond_what_a_tokenizer_says(
    tmp_path, name, limit):
  hubs.save(name, tmp_path / 'a')
  hubs.words(tmp_path / 'a', model_max_length=9)
  pair = pairs.load(str(tmp_path / 'a'), None)
  assert pair.verifier.max_input_length == pair.max_input_length == limit
  converting.convert(tmp_path / 'a', tmp_path / 'b')
  pair = pairs.load(str(tmp_path / 'b'), None)
  assert pair.max_input_length == limit
  assert native.read_config(tmp_path / 'b')['max_input_length'] == limit


def test_a_prompt_and_its_answer_fit_what_a_decoder_takes(tmp_path):
  """Nine tokens in all: what could not be written is refused, not cut."""
  hubs.save('smollm2', tmp_path / 'a')
  hubs.words(tmp_path / 'a', model_max_length=9)
  pair = pairs.load(str(tmp_path / 'a'), None)
  source = 'Open the file.'
  taken = len(pair.vocabulary.encode(source))
  for new, fits in ((8 - taken, True), (9 - taken, True), (10 - taken, False)):
    decoder = translate.Translator(
        pair, translate.Settings(drafter='null', max_length=new))
    bucket = programs.Bucket(8, new)
    if fits:
      assert len(decoder.encode(source)) == taken
      programs.check_room('x', taken, [bucket], pair)
      continue
    match = (f'has {taken} tokens, its answer up to {new}; the model takes 9 '
             'in all. Give')
    with pytest.raises(ValueError, match=f'The input {match}'):
      decoder.encode(source)
    with pytest.raises(ValueError, match=f'Example x {match}'):
      programs.check_room('x', taken, [bucket], pair)


def test_a_gemma_3_may_have_a_token_for_images_without_an_embedding(
    tmp_path, monkeypatch):
  """As the published 270M and 1B have: 262,145 tokens, 262,144 embeddings."""
  for place, specials in (('a', ['<image>']), ('b', [])):
    hubs.save('gemma3', tmp_path / place)
    hubs.words(tmp_path / place, specials=specials)
  pair = pairs.load(str(tmp_path / 'a'), str(tmp_path / 'b'))
  assert pair.vocabulary.size == 32 == 1 + pair.verifier.lm.vocab_size
  other = pairs.load(str(tmp_path / 'b'), None)
  assert pair.vocabulary_sha256 == other.vocabulary_sha256
  translator = translate.Translator(pair, translate.Settings())
  assert translator.encode('a') == [3]
  with pytest.raises(ValueError, match="'<image>', which the model has no emb"):
    translator.encode('a<image>')
  monkeypatch.chdir(tmp_path / 'b')
  assert pairs.load('.', '../a').verifier.name == other.verifier.name == 'b'


def test_a_t5_of_ours_with_a_tokenizer_json_decodes(tmp_path):
  hubs.save('t5_1_1', tmp_path / 'a')
  hubs.words(tmp_path / 'a')
  converting.convert(tmp_path / 'a', tmp_path / 'b')
  assert not pairs.is_own(str(tmp_path / 'b'))
  texts = []
  for place in 'ab':
    pair = pairs.load(str(tmp_path / place), None)
    run = translate.Translator(pair, translate.Settings(
        drafter='ngram', max_length=6, temperature=1., seed=3))
    texts.append([step.text for step in run(run.encode('c'))])
  assert texts[0] == texts[1] and ''.join(texts[0])
  pairs.load(str(tmp_path / 'a'), str(tmp_path / 'b'))


def test_a_model_of_ours_without_a_tokenizer_says_what_to_do(tmp_path):
  for name in ('t5_1_1', 'smollm2'):
    hubs.save(name, tmp_path / 'a')
    with pytest.raises(ValueError, match='no tokenizer; put its tokenizer.jso'):
      pairs.load(str(tmp_path / 'a'), None)
    converting.convert(tmp_path / 'a', tmp_path / 'b')
    assert json.loads((tmp_path / 'b/config.json').read_text())[
        'vocabulary'] is None
    with pytest.raises(ValueError, match='convert it again, with --vocabulary'):
      pairs.load(str(tmp_path / 'b'), None)
    for place in 'ab':
      shutil.rmtree(tmp_path / place)


@pytest.mark.parametrize('reduced', (False, True))
def test_bfloat16_is_that_of_weights_activations_and_caches(
    pair_dir, tmp_path, reduced):
  path = pair_dir
  if reduced:
    path = tmp_path
    (path / 'texts').write_text('Open the file.\n')
    (path / 'verifier').symlink_to(pair_dir / 'verifier')
    converting.convert(pair_dir / 'drafter', path / 'drafter',
                       draft=converting.Draft(100, path / 'texts'))
  pair = both(path, dtype='bfloat16')
  wide = both(path)
  assert nbytes(pair.verifier.checkpoint) * 2 == nbytes(
      wide.verifier.checkpoint)
  for model in (pair.verifier, pair.drafter):
    kinds = {x.dtype for x in jax.tree.leaves(model.params)}
    assert kinds - {jnp.dtype('int32')} == {jnp.dtype('bfloat16')}
  prompt = text.encoder_prompt([pair.vocabulary.encode('Open it.')], 16)
  cache = pair.drafter.lm.init(pair.drafter.params, prompt, 9)
  assert {x.dtype for x in jax.tree.leaves(cache.layers)} == {
      jnp.dtype('bfloat16')}
  state = decode.GenSpecSample(
      pair.verifier.lm, chain.Chain(pair.drafter.lm, 2), 9)(
          pair.verifier.params, pair.drafter.params, prompt,
          decode.row_keys(0, [0]), targets.TokenV3(.4), warp.Warp())
  assert int(state.fault[0]) == 0 and int(state.lengths[0]) > 1


@pytest.mark.parametrize('dtype', ('float16', 'int8', '', None))
def test_other_dtypes_are_refused_before_anything_is_read(dtype):
  with pytest.raises(ValueError, match='allowed: float32, bfloat16'):
    pairs.load('nowhere', None, dtype=dtype)


@pytest.mark.parametrize('what', ('other words', 'no words', 'a hole'))
def test_what_does_not_go_together_is_refused_before_weights_are_read(
    tmp_path, monkeypatch, what):
  for place in 'ab':
    hubs.save('smollm2', tmp_path / place)
    hubs.words(tmp_path / place)
  if what == 'other words':
    path = tmp_path / 'b/tokenizer.json'
    path.write_text(path.read_text().replace('"b"', '"q"'))
  elif what == 'no words':
    (tmp_path / 'b/tokenizer.json').unlink()
  else:
    path = tmp_path / 'b/model.safetensors'
    tensors = safetensors.numpy.load_file(path)
    tensors.pop('model.norm.weight')
    safetensors.numpy.save_file(tensors, path)
  monkeypatch.setattr(loading, 'load', lambda *args, **kwargs: pytest.fail(
      'weights were read'))
  message = {'other words': 'vocabularies of', 'no words': 'no tokenizer',
             'a hole': 'lack model.norm'}[what]
  with pytest.raises(ValueError, match=message):
    pairs.load(str(tmp_path / 'a'), str(tmp_path / 'b'))


def test_progress_counts_the_bytes_of_every_model(pair_dir, tmp_path):
  pytest.importorskip('tokenizers')
  bars = loading_test.Bar.made
  del bars[:]
  pair = both(pair_dir, progress=loading_test.Bar)
  assert [bar.done for bar in bars] == [bar.total for bar in bars] == [
      nbytes(model.checkpoint) for model in (pair.verifier, pair.drafter)]
  path = ggufs.make(tmp_path / 'x.gguf', 'llama', ggufs.byte_level())
  pairs.load(str(path), None, progress=loading_test.Bar)
  assert len(bars) == 3 and bars[-1].done == bars[-1].total > 0


def test_the_checkpoint_is_let_go_while_it_is_packed(monkeypatch):
  """Memory holds each array once, and beside them what is being packed."""
  lm = t5.T5(tinypair.config(64, 6, vocab_size=64))
  make = lambda: pairs.Model('deep', lm, lm.init_params(jax.random.key(0)), '',
                             9)
  want, model = lm.pack(make().unpacked()), make()
  sizes = [x.nbytes for x in jax.tree.leaves(model.checkpoint)]
  held = lambda: sum(x.nbytes for x in jax.live_arrays())
  before, most, pack = held(), [], products.pack_kernels

  def watched(*args):
    out = pack(*args)
    most.append(held())
    return out

  monkeypatch.setattr(products, 'pack_kernels', watched)
  packed = model.params
  # Four sibling kernels, old and new; and a tied table that is so small has a
  # transposed copy.
  assert len(most) > 30 and sum(sizes) > 30 * max(sizes)
  assert max(most) <= before + 9 * max(sizes)
  assert held() <= before + max(sizes) and packed is model.params
  assert model.checkpoint is None
  jax.tree.map(np.testing.assert_array_equal, packed, want)
  with pytest.raises(ValueError, match='were packed, and .* load it again'):
    model.unpacked()
