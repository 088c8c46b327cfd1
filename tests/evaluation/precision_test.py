"""Where narrowed texts part: the first difference, and float32's gap there."""
import functools

import numpy as np
import pytest

from spec_cascades.evaluation import lossless
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import precision


def test_the_first_difference_counts():
  best = [(np.array([.5, .1, .2]), np.array([[4, 5], [6, 8], [1, 0]])),
          (np.array([.5, .3]), np.array([[2, 3], [1, 0]])),
          (np.array([.7]), np.array([[2, 3]]))]
  found = precision.divergences(
      [[4, 6, 1], [2, 1], [2]], [[4, 8, 9, 1], [2, 1], [9, 1]], best)
  assert found == [precision.Divergence(0, 1, .1, True),
                   precision.Divergence(2, 0, .7, False)]


def load(pair_dir, **options):
  return pairs.load(str(pair_dir / 'verifier'), str(pair_dir / 'drafter'),
                    **options)


@pytest.mark.slow
def test_teacher_forced_argmaxes_are_the_greedy_texts(pair_dir):
  pair = load(pair_dir)
  inputs = lossless.sentences(pair, 3)
  texts = lossless.measured(2, 1, pair=pair, limit=3).alone
  for text, (gaps, ids) in zip(texts, precision.top_two(
      pair.verifier, inputs, texts)):
    assert ids[:, 0].tolist() == text and (gaps >= 0).all()


@pytest.mark.slow
def test_narrowed_texts_part_where_float32_nearly_ties(pair_dir):
  found = precision.compare(2, load=functools.partial(load, pair_dir), limit=4)
  assert found.texts == 4 and found.gaps.min() >= 0
  assert found.alone                       # random models tie all the time
  for x in (*found.alone, *found.speculative, *found.drafted):
    assert 0 <= x.gap < np.quantile(found.gaps, .9)


def test_the_same_dtype_has_the_same_texts(pair_dir):
  found = precision.compare(2, load=functools.partial(load, pair_dir), limit=2,
                            dtype='float32')
  assert not (found.alone or found.speculative or found.drafted)
