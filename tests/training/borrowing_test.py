"""Drafters that read with their verifier's encoder: trained, kept and shared.
"""
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tinypair
from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.checkpoints import converting
from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import tensors
from spec_cascades.drafters import null
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.models import heads
from spec_cascades.models import reduced
from spec_cascades.models import t5
from spec_cascades.training import borrowing
from spec_cascades.training import export
from spec_cascades.training import loop
from spec_cascades.training import optimizers
from spec_cascades.training import start
from tests.models import tiny
from training.runs import run_of

QUIET = dict(log=lambda line: None)
DRAFTERS = ('chain', 'tree', 'spectr', 'cascade', 'horizontal')


@pytest.fixture(scope='module')
def places(corpus, tmp_path_factory):
  """A verifier, and a drafter that has an encoder of its own."""
  root, path = tmp_path_factory.mktemp('own'), corpus.vocabulary.path
  tinypair.write(root / 'verifier', path, 0, width=24, layers=2, scale=4.)
  tinypair.write(root / 'own', path, 1, scale=4.)
  return root


def run_with(corpus, places, directory, **changes):
  own, verifier = str(places / 'own'), str(places / 'verifier')
  run = run_of(corpus, directory, steps=3)
  lm = t5.T5(dataclasses.replace(run.lm.config, dropout_rate=0.))
  return dataclasses.replace(
      run, lm=borrowing.model(lm, verifier),
      init_from=own, encoder_from=verifier, teacher=verifier, **changes)


@pytest.fixture(scope='module')
def trained(corpus, places, tmp_path_factory):
  run = run_with(corpus, places, tmp_path_factory.mktemp('run'))
  return run, loop.train(run, **QUIET).params


@pytest.fixture(scope='module')
def drafter(trained, places):
  """Exported beside its verifier."""
  lines = []
  export.export(trained[0], str(places / 'drafter'), dtype='float32',
                sentences=2, log=lines.append)
  assert not any('with its encoder' in line for line in lines)
  return places / 'drafter'


@pytest.fixture(scope='module')
def pair(places, drafter):
  return pairs.load(str(places / 'verifier'), str(drafter))


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def lent_of(places):
  return native.load(places / 'verifier')[1]


@pytest.mark.parametrize('optimizer', [
    optimizers.adafactor, lambda rate: optimizers.adamw(rate, weight_decay=.1)])
@pytest.mark.usefixtures('promotion')
def test_only_what_is_its_own_is_trained(corpus, places, tmp_path, optimizer):
  run = run_with(corpus, places, tmp_path, optimizer=optimizer)
  begun = start.params(run.init_from, run.lm, jax.random.key(0), corpus, None,
                       run.encoder_from)
  ended = loop.train(run, **QUIET).params
  for name, theirs in t5.BORROWED.items():
    same(ended[name], lent_of(places)[theirs])
  moved = jax.tree.map(lambda a, b: bool((np.asarray(a) != b).any()),
                       {x: begun[x] for x in ('decoder', 'token_embedder')},
                       {x: ended[x] for x in ('decoder', 'token_embedder')})
  assert all(jax.tree.leaves(moved))


def test_keys_and_values_begin_as_those_of_the_states_before():
  """K' = W K where W is what maps the states; the ridge moves it a little."""
  rng = np.random.default_rng(0)
  across, states = rng.normal(size=(5, 3)), rng.normal(size=(400, 5))
  parts = [(x, x @ across) for x in np.split(states, 4)]
  found = borrowing._mapped(iter(parts))
  np.testing.assert_allclose(found, across, atol=5e-3)
  kernel = lambda n: dict(kernel=rng.normal(size=(n, 2)))
  layer = dict(encoder_decoder_attention=dict(
      key=kernel(3), value=kernel(3), query=kernel(3)), mlp=kernel(3))
  fed = borrowing._fed(layer, found)
  for name in ('key', 'value'):
    was = layer['encoder_decoder_attention'][name]['kernel']
    now = fed['encoder_decoder_attention'][name]['kernel']
    np.testing.assert_allclose(states @ now, states @ across @ was, atol=.1)
  assert fed['mlp'] is layer['mlp']
  assert fed['encoder_decoder_attention']['query'] is (
      layer['encoder_decoder_attention']['query'])


def test_the_drafter_it_was_and_the_one_it_becomes_are_near(corpus, places):
  """Of encoders that differ by a linear map, the drafters agree."""
  lm, own = native.load(places / 'own')[:2]
  config = dataclasses.replace(lm.config, encoder=lm.config)
  made = borrowing.params(own, t5.T5(config),
                          checkpoints.load(places / 'own'), corpus)
  batch = corpus.batch(0)
  got = t5.T5(config).teacher_forced(made, batch)
  want = lm.teacher_forced(own, batch)
  np.testing.assert_allclose(got, want, atol=.05 * float(jnp.abs(want).max()))


def test_weights_are_written_without_the_encoder(trained, drafter, places):
  names = set(tensors.read(drafter / native.WEIGHTS))
  assert names and not [x for x in names if x.split('/')[0] in t5.BORROWED]
  lm, params, _ = checkpoints.load(drafter)
  assert lm == trained[0].lm
  same(params, trained[1])
  assert native.digest(places / 'verifier') == json.loads(
      (drafter / native.CONFIG).read_text())[extras.LENDER]['sha256']


def test_away_from_its_verifier_it_is_written_whole(trained, tmp_path):
  lines = []
  export.export(trained[0], str(tmp_path / 'x'), dtype='float32', sentences=2,
                log=lines.append)
  assert 'written with its encoder' in lines[0]
  same(checkpoints.load(tmp_path / 'x').params, trained[1])


def test_where_the_verifier_has_changed_it_is_written_whole(
    corpus, trained, tmp_path):
  """It reads with the encoder that it was trained with, whatever the file."""
  tinypair.write(tmp_path / 'verifier', corpus.vocabulary.path, 8, width=24,
                 layers=2)
  lines = []
  export.export(trained[0], str(tmp_path / 'x'), dtype='float32', sentences=2,
                log=lines.append)
  assert 'written with its encoder' in lines[0]
  same(checkpoints.load(tmp_path / 'x').params, trained[1])


def test_it_is_not_written_over_its_verifier(trained, places):
  before = native.digest(places / 'verifier')
  with pytest.raises(ValueError, match='is where the verifier is that lends'):
    export.export(trained[0], str(places / 'verifier'), **QUIET)
  assert native.digest(places / 'verifier') == before


def test_converted_it_is_whole_and_hugging_face_has_none(drafter, trained,
                                                         tmp_path):
  converting.convert(drafter, tmp_path / 'ours', to='native', dtype='float32')
  same(checkpoints.load(tmp_path / 'ours').params, trained[1])
  with pytest.raises(ValueError, match='Hugging Face has no encoder of other'):
    converting.convert(drafter, tmp_path / 'hub', to='huggingface')


def decoded(pair, name, temperature, *, poisoned=False):
  """Tokens and calls of two rows."""
  prompt = pair.prompt([pair.vocabulary.encode(x)[:12] for x in (
      'Click the button.', 'Save the file in a folder.')], 16)
  made, params = drafting.make(name, pair, 3)
  if poisoned:                             # what is not read does no harm
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: x * jnp.nan if {p.key for p in path if hasattr(
            p, 'key')} & set(t5.BORROWED) else x, params)
  lm = drafting.verifier(pair, made)
  spec = decode.GenSpecSample(lm, made, 16)
  end = spec(pair.verifier.params, params, prompt, decode.row_keys(0, (0, 1)),
             targets.Lossless(), warp.Warp(temperature))
  assert not np.asarray(end.fault).any()
  return np.asarray(end.tokens), np.asarray(end.stats.verifier_calls)


def apart(pair):
  """The same pair, each model reading with its own encoder."""
  alone = lambda model: dataclasses.replace(
      model, lm=dataclasses.replace(model.lm, shared=False))
  return dataclasses.replace(pair, verifier=alone(pair.verifier),
                             drafter=alone(pair.drafter))


@pytest.mark.parametrize('name', DRAFTERS)
@pytest.mark.parametrize('temperature', [0., 1.])
def test_a_prompt_is_read_once_and_nothing_else_changes(
    pair, places, drafter, name, temperature):
  assert pairs.is_shared(pair.drafter) and pairs.is_shared(pair.verifier)
  once = decoded(pair, name, temperature, poisoned=True)
  twice = decoded(apart(pairs.load(str(places / 'verifier'), str(drafter))),
                  name, temperature)
  same(once, twice)


def test_alone_it_reads_with_the_encoder_that_it_was_lent(pair, trained):
  prompt = pair.prompt([pair.vocabulary.encode('Save the file.')], 16)
  small = pair.drafter
  spec = decode.GenSpecSample(small.lm, null.Null(), 12)
  end = spec(small.params, None, prompt, decode.row_keys(0, (0,)),
             targets.Lossless(), warp.Warp(0.))
  tokens = np.asarray(end.tokens)[:, 1:]
  logits = trained[0].lm.teacher_forced(trained[1], dict(
      inputs=prompt.inputs, targets=jnp.asarray(tokens)))
  count = int(end.lengths[0]) - 1
  same(np.asarray(logits.argmax(-1))[:, :count], tokens[:, :count])


def test_beside_another_verifier_it_uses_its_own(corpus, places, drafter,
                                                 tmp_path):
  tinypair.write(tmp_path / 'other', corpus.vocabulary.path, 7, width=24,
                 layers=2, scale=4.)
  found = pairs.load(str(tmp_path / 'other'), str(drafter))
  assert not (pairs.is_shared(found.verifier) or pairs.is_shared(found.drafter))
  decoded(found, 'chain', 0.)


def test_a_run_shares_too(pair, places, trained):
  found = pairs.load(str(places / 'verifier'), trained[0].model_dir)
  assert pairs.is_shared(found.drafter)


@pytest.mark.parametrize('change', ['gone', 'other'])
def test_without_its_verifier_it_is_refused(change, corpus, drafter, places,
                                            tmp_path):
  there = tmp_path / 'drafter'
  there.mkdir()
  for file in drafter.iterdir():
    (there / file.name).write_bytes(file.read_bytes())
  if change == 'other':
    tinypair.write(tmp_path / 'verifier', corpus.vocabulary.path, 9, width=24)
  with pytest.raises(ValueError, match='reads with the encoder of verifier '
                     r'\(SHA-256 .*which is not at .*; put it there') as error:
    checkpoints.load(there)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('lender', [
    5, {}, dict(name='../x', sha256='0' * 64), dict(name='..', sha256='0' * 64),
    dict(name='a/b', sha256='0' * 64), dict(name='x', sha256='0'),
    dict(name='', sha256='0' * 64),
    dict(name=3, sha256='0' * 64)])
def test_a_lender_that_is_none_is_refused(lender, tmp_path):
  with pytest.raises(ValueError, match='encoder_of: got .*; allowed: the name'):
    extras.lender_of(tmp_path, {extras.LENDER: lender})


def test_an_encoder_of_another_model_is_refused(corpus, places, drafter,
                                                tmp_path):
  run = run_with(corpus, places, tmp_path)
  for broken, what in (
      (dict(lm=native.load(places / 'own')[0]), 'whose encoder is another'),
      (dict(encoder_from=str(places / 'own')), 'whose encoder is another'),
      (dict(encoder_from=None, init_from=None), 'and init_from=None; give'),
      (dict(encoder_from=str(drafter)), 'that has no encoder to lend'),
      (dict(part=str(places / 'own')), 'something beside it'),
      (dict(init_from=str(places / 'verifier')), 'has other sizes')):
    with pytest.raises(ValueError, match=what) as error:
      loop.train(dataclasses.replace(run, **broken), **QUIET)
    assert '\n' not in str(error.value)
  with pytest.raises(ValueError, match='Got a Gemma that is to read'):
    borrowing.model(tiny.LMS['gemma1'], str(places / 'verifier'))


def test_a_verifier_with_heads_shares_what_it_is(pair, places):
  """What is around either model is left as it is."""
  large = pairs.load(str(places / 'verifier'), None).verifier
  lm = heads.Headed(large.lm, heads.HeadsConfig(2))
  around = dataclasses.replace(large, lm=lm, checkpoint=dict(
      model=large.unpacked(), heads=lm.fresh(large.unpacked(),
                                             jax.random.key(0))))
  small = pairs.load(str(places / 'drafter'), None).verifier
  assert pairs.is_shared(pairs.sharing(around, small))
  narrow = dataclasses.replace(
      small, lm=reduced.Reduced(small.lm, 9), checkpoint=dict(
          model=small.unpacked(), tokens=jnp.arange(9)))
  found = pairs.sharing(around, narrow)
  assert found.lm.size == 9 and pairs.is_shared(found)
  other = dataclasses.replace(small, checkpoint=jax.tree.map(
      lambda x: x + (x.shape == (24,)), small.unpacked()))
  assert not pairs.is_shared(pairs.sharing(around, other))


@pytest.mark.parametrize('encoder', [
    5, dict(num_heads=0), dict(wrong=1), dict(encoder={}),
    dict(mlp_activations=['tanh']), dict(emb_dim='8')])
def test_an_encoder_that_there_can_be_none_of_is_refused(encoder, drafter,
                                                         places):
  there = places / 'broken'
  there.mkdir(exist_ok=True)
  for file in drafter.iterdir():
    (there / file.name).write_bytes(file.read_bytes())
  told = json.loads((there / native.CONFIG).read_text())
  told['config']['encoder'] = encoder
  (there / native.CONFIG).write_text(json.dumps(told))
  with pytest.raises(ValueError, match='Save the model again') as error:
    checkpoints.load(there)
  assert '\n' not in str(error.value)
