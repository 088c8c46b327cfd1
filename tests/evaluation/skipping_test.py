"""The search for sublayers to leave out."""
import json

import numpy as np
import pytest

import tinypair
from spec_cascades import decode, targets, theory, warp
from spec_cascades.data import files
from spec_cascades.drafters import chain
from spec_cascades.evaluation import (
    drafting, estimated, examples, kinds, pairs, skipping)
from spec_cascades.models import skip

pytest.importorskip('optuna', reason='needs requirements-search.txt')
GAMMA, LENGTH, SOME = 3, 20, [(0, 'mlp'), (1, 'self_attention')]


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  place = tmp_path_factory.mktemp('deep')
  words = tinypair.make_vocabulary(place)
  return str(tinypair.write(place / 'x', words, 0, layers=2, scale=4.))


@pytest.fixture(scope='module')
def search(path):
  pair = pairs.load(path, None)
  rows = [pair.vocabulary.encode(x.source) for x in examples.read()[:6]]
  return skipping.Search(pair, rows, gamma=GAMMA, length=LENGTH)


def test_texts_are_the_verifiers_own(search, path):
  assert len(search.texts) == 6 and max(map(len, search.texts)) == LENGTH
  full = [np.ones(len(text)) for text in search.texts]
  assert search.tokens_per_call([]) == theory.tokens_per_call(full, GAMMA)


def test_predicted_tokens_are_those_that_are_decoded(search, path):
  """Greedy acceptance is 0 or 1, so a prediction is a count."""
  pair = pairs.load(path, None)
  lm, params = pair.verifier.lm, pair.verifier.params
  drafter = chain.Chain(skip.without(lm, SOME), GAMMA)
  width = max(map(len, search.rows))
  calls = tokens = 0
  for row, want in zip(search.rows, search.texts):
    spec = decode.GenSpecSample(lm, drafter, 1 + len(want), eos=-1)
    state = spec(params, params, pair.prompt([row], width),
                 decode.row_keys(0, [0]), targets.Lossless(), warp.Warp(0.))
    np.testing.assert_array_equal(state.tokens[0, 1:], want)
    calls += int(state.stats.verifier_calls[0])
    tokens += len(want)
  assert calls < tokens
  assert abs(search.tokens_per_call(SOME) - tokens / calls) < 1e-9


def test_a_speedup_is_what_theory_makes_of_both(search):
  times = skipping.Times({1: 3., 4: 4.}, dict(
      self_attention=.5, encoder_decoder_attention=.25, mlp=.75))
  search = _with(search, times)
  tokens = search.tokens_per_call(SOME)
  assert search.speedup(SOME) == pytest.approx(
      tokens * 3 / (4 + GAMMA * (3 - .75 - .5)))
  assert search.speedup([(0, 'self_attention'), (1, 'self_attention')]) == 0


@pytest.mark.parametrize('parts', [
    dict(self_attention=.5, encoder_decoder_attention=.25, mlp=.75),
    dict(self_attention=2., encoder_decoder_attention=0., mlp=3.)])
def test_times_of_kinds_add_up_to_what_all_take(search, monkeypatch, parts):
  """However wrong differences of noisy times are, a drafter takes some time."""
  every, one = skip.sublayers(search.lm), .8
  clock = {1: 3., GAMMA + 1: 4., 'one': one,
           **{name: 3. - x for name, x in parts.items()}}
  monkeypatch.setattr(
      skipping.benchmarks, 'timed', lambda calls, runs: {
          key: skipping.benchmarks.Spread(*3 * [20 * clock[key]])
          for key in calls})
  times = skipping.measure(search.lm, search._pair.verifier.params, GAMMA,
                           search._pair.prompt([search.rows[0]], 64))
  assert times.without(every[1:]).drafter == pytest.approx(one)
  assert times.parts['mlp'] / times.parts['self_attention'] == pytest.approx(
      parts['mlp'] / parts['self_attention'])
  nothing = skipping.scaled(dict.fromkeys(parts, 0.), every[1:], 2.)
  assert set(nothing.values()) == {0.}


def _with(search, times):
  other = object.__new__(skipping.Search)
  vars(other).update(vars(search), times=times)
  return other


def test_a_search_finds_what_is_best_of_its_trials_and_goes_on(
    search, path, tmp_path):
  times = skipping.Times({1: 3., 4: 3.5}, dict(
      self_attention=.9, encoder_decoder_attention=.9, mlp=.9))
  search, judged = _with(search, times), []
  found = search(str(tmp_path), 3)
  assert found['trials'] == 3

  def spy(steps):
    judged.extend(steps)
    return judged

  found = search(str(tmp_path), 8, progress=spy)
  assert judged == [3, 4, 5, 6, 7] and found['trials'] == 8
  assert found['speedup'] == pytest.approx(search.speedup(found['skipped']))
  storages = skipping._optuna().storages
  asked = [x.params for x in skipping._optuna().load_study(
      study_name=f'gamma{GAMMA}', storage=storages.JournalStorage(
          storages.journal.JournalFileBackend(
              str(tmp_path / skipping.TRIALS)))).trials]
  assert asked[3:5] != asked[1:3]              # it goes on, not over it again
  first = [part for part in skip.sublayers(search.lm) if part[0] % 2]
  tried = skip.without(search.lm, found['skipped']).config.skipped
  assert found['speedup'] >= search.speedup(first) or tuple(first) == tried
  share = 1 - len(tried) / len(skip.sublayers(search.lm))
  for place in (tmp_path, tmp_path / skipping.NAME):
    assert skipping.kept(str(place)) == pytest.approx(share)
  assert skipping.kept(str(tmp_path / 'nothing')) is None
  on = estimated.Slice('v4-8', '', theory.StepTimes({1: 1.}, .1), .1, .25)
  cost = kinds.KINDS['sublayers'].cost_of
  assert cost(str(tmp_path))(2, on) == pytest.approx(2 * (.75 * share + .25))
  assert cost(str(tmp_path / 'nothing')) is None
  pair = pairs.load(path, None)
  drafter, params = drafting.make(f'sublayers:{tmp_path}', pair, GAMMA)
  assert drafter.chain.lm.config.skipped == tried
  assert params is pair.verifier.params


@pytest.mark.parametrize('what', ['verifier', 'texts', 'max_length', 'gamma'])
def test_the_trials_of_another_call_are_not_gone_on_with(
    search, tmp_path, what):
  claim = lambda: files.claim(tmp_path / skipping.CALL, search._call)
  claim()
  (tmp_path / skipping.TRIALS).touch()
  assert claim() is None                                # the same goes on
  other = _with(search, search.times)
  other._call = {**search._call, what: 'other'}
  with pytest.raises(ValueError, match=f'with another {what}; give another'):
    other(str(tmp_path), 3)
  (tmp_path / skipping.CALL).unlink()                   # whose is not known
  with pytest.raises(ValueError, match='gamma, max_length, texts, verifier;'):
    search(str(tmp_path), 3)
  assert not (tmp_path / skipping.TRIALS).read_bytes()


@pytest.mark.parametrize('change,what', [
    (lambda x: x.update(verifier='other'), 'another verifier'),
    (lambda x: x.pop('skipped'), "can't be read"),
    (lambda x: x.update(skipped=[[7, 'mlp']]), 'allowed: a layer from 0')])
def test_what_does_not_fit_is_refused(search, path, tmp_path, change, what):
  pair = pairs.load(path, None)
  said = dict(version=1, verifier=pair.verifier.sha256, skipped=SOME)
  change(said)
  (tmp_path / 'skipped.json').write_text(json.dumps(said), encoding='utf-8')
  with pytest.raises(ValueError, match=what):
    drafting.make(f'sublayers:{tmp_path}/skipped.json', pair, GAMMA)
  with pytest.raises(ValueError, match='No skipped.json'):
    drafting.make(f'sublayers:{tmp_path}/x', pair, GAMMA)
