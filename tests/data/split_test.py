"""Splits, duplicates and similarities."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from spec_cascades.data import split

HALF = split.Fractions(validation=0.25, test=0.25)
WORDS = st.lists(
    st.sampled_from('file files read reads error text the a 12 ä'.split()),
    max_size=6,
).map(' '.join)


def _row(ident, group, en, de='de'):
  return {'id': ident, 'group': group, 'en': en, 'de': de}


def _divide(rows):
  return split.divide(rows, source='en', target='de', fractions=HALF)


def _group_in(name):
  """A group that belongs to a split."""
  return next(g for g in map(str, range(99)) if HALF.split_of(g) == name)


@given(st.lists(st.tuples(st.sampled_from('abcdefgh'), WORDS, WORDS)))
@settings(max_examples=200, deadline=None)
def test_no_group_and_no_source_text_is_in_two_splits(triples):
  rows = [_row(str(i), *x) for i, x in enumerate(triples)]
  splits = _divide(rows)
  for key in ('group', 'en'):
    sets = [
        {split.fingerprint(x[key]) for x in splits[name]}
        for name in split.SPLITS
    ]
    assert len(set().union(*sets)) == sum(len(x) for x in sets)
  kept = {split.fingerprint(x['en']) for rows in splits.values() for x in rows}
  assert kept == {split.fingerprint(x[1]) for x in triples}


def test_shared_source_text_stays_in_train():
  train, test = _group_in('train'), _group_in('test')
  splits = _divide([
      _row('1', test, 'Contains version 2.', 'eins'),
      _row('2', train, 'contains Version 3', 'zwei'),
      _row('3', train, 'contains Version 3', 'zwei'),  # Exact duplicate.
      _row('4', train, 'contains version 3', 'drei'),
      _row('5', test, 'Another text'),
      _row('6', test, 'another text!', 'anders'),
  ])
  assert sorted(x['id'] for x in splits['train']) == ['2', '4']
  assert [x['id'] for x in splits['test']] == ['5']


def test_split_does_not_depend_on_other_rows_or_their_order():
  rows = [_row(str(i), f'g{i % 40}', f'text {"x" * i}') for i in range(120)]
  splits = _divide(rows)
  assert splits == _divide(rows[::-1])
  for name, kept in splits.items():
    assert kept and all(HALF.split_of(x['group']) == name for x in kept)
  fewer = _divide(rows[:60])
  for name in split.SPLITS:
    ids = {x['id'] for x in splits[name]}
    assert {x['id'] for x in fewer[name]} <= ids


def test_hashes_are_stable_across_machines():
  assert split.stable_id('a', 'b') == '59b271ae1bbc'
  fraction = split.stable_fraction('glibc')
  np.testing.assert_allclose(fraction, 0.105735, atol=1e-6)


@pytest.mark.parametrize('validation, test', [(0, 0.1), (0.5, 0.5), (0.1, -1)])
def test_bad_fractions_are_refused(validation, test):
  with pytest.raises(ValueError, match='below 1'):
    split.Fractions(validation=validation, test=test)


def _brute_force(query, texts):
  def grams(text):
    data = f' {split.fingerprint(text)} '.encode().ljust(5, b'\0')
    return {data[i : i + 5] for i in range(len(data) - 4)}

  a = grams(query)
  scores = [len(a & b) / len(a | b) for b in map(grams, texts)]
  return max(scores, default=0.0)


@given(WORDS, st.lists(WORDS, max_size=8))
@settings(max_examples=300, deadline=None)
def test_nearest_equals_brute_force(query, texts):
  similarity, place = split.ShingleIndex(texts).nearest(query)
  np.testing.assert_allclose(similarity, _brute_force(query, texts))
  if place >= 0:
    np.testing.assert_allclose(similarity, _brute_force(query, [texts[place]]))
  else:
    assert similarity == 0.0


def test_marks_follow_the_threshold():
  base = 'Development files of the XML parser library'
  marked = split.mark_near_duplicates(
      {
          'train': [_row('1', 'a', base), _row('2', 'a', 'editor')],
          'validation': [],
          'test': [
              _row('3', 'b', base.replace('XML', 'HTML')),
              _row('4', 'b', 'A game about ancient warfare'),
              _row('5', 'b', base.upper()),
          ],
      },
      source='en',
      threshold=0.5,
  )
  assert [x['near_duplicate'] for x in marked['test']] == [True, False, True]
  assert marked['test'][2]['similarity'] == 1.0
  assert {x['similarity'] for x in marked['train']} == {0.0}


def test_what_is_apart_is_new_and_far_from_what_is_held_out():
  base = 'Development files of the XML parser library'
  rows = [
      _row('1', 'a', base.replace('XML', 'HTML')),
      _row('2', 'a', 'A game about ancient warfare'),
      _row('3', 'b', 'A game about ancient warfare'),
      _row('4', 'b', '*'),
      _row('5', 'b', 'Opens 20 windows!'),
      _row('6', 'b', 'Shows what the battery still holds'),
  ]
  kept = split.apart(
      rows, [base, 'opens 3 windows'], source='en', target='de', threshold=0.5
  )
  assert sorted(x['id'] for x in kept) == ['2', '4', '6']
  nothing_held = split.apart(rows, [], source='en', target='de')
  assert sorted(x['id'] for x in nothing_held) == ['1', '2', '4', '5', '6']
