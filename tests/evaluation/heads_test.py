"""The programs that are timed; what they measure is not tested here."""
import jax
import numpy as np
import pytest

from spec_cascades.evaluation import heads
from spec_cascades.models import gemma
from spec_cascades.models import reduced
from tests.models import tiny

LM = tiny.LMS['gemma3']


@pytest.fixture(scope='module')
def packed():
  return LM.pack(tiny.params_of(LM))


@pytest.mark.parametrize('size', (tiny.VOCAB, 7, 1))
def test_proposals_are_those_of_a_round(packed, size):
  lm, own = heads.narrowed(LM, packed, size)
  assert isinstance(lm, gemma.Gemma if size == tiny.VOCAB else reduced.Reduced)
  draft = heads.proposal(lm, own, 3)()
  tokens = np.asarray(draft.tree.tokens)
  assert tokens.shape == (1, 4) and (tokens[:, 1:] < size).all()
  probs = np.asarray(draft.prediction.probs)
  assert probs.shape == (1, 4, tiny.VOCAB) and (probs[..., size:] == 0).all()
  np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)


def test_weights_but_the_heads_are_shared(packed):
  _, own = heads.narrowed(LM, packed, 7)
  assert own['model']['decoder'] is packed['decoder']
  table = own['model']['token_embedder']
  assert table['embedding'] is packed['token_embedder']['embedding']
  narrow = table['packed']
  assert 7 in (narrow.features, *narrow.array.shape)
  assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(own))


def test_steps_are_timed_by_words():
  found = heads.measure(LM, (tiny.VOCAB, 7), 2, 2)
  assert list(found) == [tiny.VOCAB, 7]
  for spread in found.values():
    assert 0 < spread.low <= spread.median <= spread.high
  for size in (0, tiny.VOCAB + 1):
    with pytest.raises(ValueError, match=f'head of {size} words; allowed: 1 to'
                       f' {tiny.VOCAB}'):
      heads.measure(LM, (size,))


def test_figures_are_relative_to_the_whole_head(monkeypatch):
  spread = heads.benchmarks.Spread
  monkeypatch.setattr(heads, 'measure', lambda lm, sizes, *_: {
      size: spread(s, s / 2, 2 * s) for size, s in zip(sizes, (.05, .02, .01))})
  title, *rows, last = heads.lines(8192, 5, 3)
  assert 'gemma3_270m' in title and 'medians of 3' in title
  assert rows[1] == '  a head of   8,192 words: 20.00 ms [10.00, 40.00], 0.40x'
  assert '262,144 words: 50.00 ms' in rows[0] and '1.00x' in rows[0]
  for words in (1, 262_144, 300_000):
    with pytest.raises(ValueError, match='words; allowed: 2 to 262143'):
      heads.lines(words, 5, 3)
  assert last == '  8,192 words save 75 % of what the whole head costs'
