"""Rounds from every place of a text predict a greedy decode, to the round."""
import dataclasses

import jax
import numpy as np
import pytest

from spec_cascades import struct
from spec_cascades.drafters import chain
from spec_cascades.evaluation import afresh
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import kinds
from spec_cascades.evaluation import pairs
from tests import besides

SOURCES = [x.source for x in examples.read()][:3]


def measured(pair, drafter, params, judge):
  rows = [pair.vocabulary.encode(x)[:24] for x in SOURCES]
  texts, calls = afresh.decoded(pair, drafter, params, rows, 16, judge)
  ahead = afresh.emitted(pair, drafter, params, rows, texts, judge)
  assert [len(x) for x in ahead] == [len(x) for x in texts]
  assert all((x >= 1).all() for x in ahead)
  return texts, calls, afresh.rounds(ahead)


def of_name(pair, name, gamma=3):
  pair = drafting.supplied(pair, [(name, gamma)])
  drafter, params = drafting.make(name, pair, gamma)
  return measured(pair, drafter, params, drafting.split(name)[0].judge)


@pytest.fixture(scope='module')
def pair(pair_dir):
  """The small model is the verifier, somewhat out of tune."""
  found = pairs.load(str(pair_dir / 'verifier'), None)
  large, rng = found.verifier, np.random.default_rng(0)
  noisy = jax.tree.map(
      lambda x: x + .05 * rng.normal(size=x.shape).astype(x.dtype),
      large.unpacked())
  return dataclasses.replace(found, drafter=pairs.Model(
      'noisy', large.lm, noisy, '', large.max_input_length))


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] * (name != 'ngram'))
    for name in ('chain', 'tree', 'spectr', 'cascade', 'horizontal', 'ngram',
                 'skip', 'exit', 'pipelined', 'null')])
def test_it_is_what_was_decoded(pair, name):
  texts, calls, foretold = of_name(pair, name)
  np.testing.assert_array_equal(foretold, calls)
  assert (calls.sum() < sum(map(len, texts))) == (name != 'null')


@pytest.mark.slow
@pytest.mark.parametrize('kind, name', [
    (kind, name) for kind, names in besides.NAMES.items() for name in names
    if name != 'space'])
def test_of_what_was_trained_beside_a_verifier_too(
    tmp_path, pair_dir, kind, name):
  words = str(pair_dir / 'verifier/sentencepiece.model')
  place = besides.write_whole(tmp_path / 'whole', words, kind)
  pair = pairs.load(place, None)
  texts, calls, foretold = of_name(pair, f'{name}:{place}', 2)
  np.testing.assert_array_equal(foretold, calls)
  assert len(texts) == len(SOURCES)


@struct.dataclass
class Forgetful(chain.Chain):
  """Keeps in its cache what was rejected, and lacks as much of what was not."""

  def observe(self, params, state, feedback):
    kept = super().observe(params, state, feedback)
    more = (feedback.verdict.count > 0).astype(kept.length.dtype)
    return kept.replace(length=kept.length - more)


def test_a_cache_that_is_carried_on_wrongly_shows(pair):
  drafter, params = drafting.make('chain', pair, 3)
  wrong = Forgetful(drafter.lm, drafter.length)
  _, calls, foretold = measured(
      pair, wrong, params, kinds.KINDS['chain'].judge)
  right = measured(pair, drafter, params, kinds.KINDS['chain'].judge)
  np.testing.assert_array_equal(right[1], right[2])
  assert right[1].sum() < calls.sum() != foretold.sum()


def test_rounds_follow_each_other_as_far_as_each_goes():
  ahead = [np.array([2, 1, 3, 1, 1]), np.array([1]), np.array([5, 4, 3, 2, 1])]
  np.testing.assert_array_equal(afresh.rounds(ahead), [2, 1, 1])
  assert afresh.rounds([np.array([], int)]) == [0]


def test_drafters_that_remember_are_refused():
  for name, kind in kinds.KINDS.items():
    path = ':x' if kind.needs else ''
    if kind.remembers:
      with pytest.raises(ValueError, match=f'^{name}{path} drafts by what'):
        afresh.check_name(name + path, 3)
    else:
      afresh.check_name(name + path, 3)
  assert {'lookahead', 'jacobi', 'recycling', 'space', 'ouroboros', 'adaptive',
          'tracking', 'sublayers'} == {
              name for name, kind in kinds.KINDS.items() if kind.remembers}
