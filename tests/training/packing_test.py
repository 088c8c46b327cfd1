"""Pairs that share a row train a model as if each had its own."""
import collections
import dataclasses
import re

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades.training import data
from spec_cascades.training import divergences
from spec_cascades.training import loop
from spec_cascades.training import losses
from spec_cascades.training import packing
from spec_cascades.training import policies
from spec_cascades.training import train_step
from tests.models import tiny
from training.runs import run_of

WIDTHS = 13, 11
PAIRS = 9


@st.composite
def lengths_and_widths(draw):
  widths = draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
  pair = st.tuples(*(st.integers(1, width) for width in widths))
  return draw(st.lists(pair, max_size=60)), widths


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(lengths_and_widths(), st.integers(0, 5), st.integers(1, 40))
def test_every_pair_is_in_one_row_that_holds_it(given, seed, rows):
  lengths, widths = given
  found = packing.assign(lengths, widths, seed=seed, rows=rows)
  assert sorted(i for row in found for i in row) == list(range(len(lengths)))
  assert all(found)
  for row in found:
    assert (np.sum([lengths[i] for i in row], 0) <= widths).all()
  assert found == packing.assign(lengths, widths, seed=seed, rows=rows)
  # Two rows that were open together to the end would else be one.
  if rows >= len(lengths):
    total = lambda row: np.sum([lengths[i] for i in row], 0)
    assert sum((2 * total(row) <= widths).all() for row in found) <= 1


def test_a_pair_longer_than_a_row_is_refused():
  with pytest.raises(ValueError, match=r'\(3, 9\) tokens .* rows of \(8, 8\)'):
    packing.assign([(2, 2), (3, 9)], (8, 8))


class Words:
  """A word 't7' is token 7; 1 ends a text."""
  ends = (1,)
  specials = frozenset()

  def encode(self, text):
    return [*self.bare(text), 1]

  def bare(self, text):
    return [int(word[1:]) for word in text.split()]

  def decode(self, tokens):
    return ' '.join(f't{t}' for t in tokens if t > 1)


@dataclasses.dataclass(frozen=True)
class Lines:
  """Pairs of so many words; no two alike."""
  lengths: tuple[tuple[int, int], ...]
  splits = ('train',)

  def __call__(self, split, part):
    del split
    index, count = part
    text = lambda i, n: ' '.join(f't{2 + i}' for _ in range(n))
    return [(i, dict(en=text(i, a), de=text(i, b)))
            for i, (a, b) in enumerate(self.lengths)][index::count]


def corpus_of(lengths, **changes):
  return data.ParallelText(None, Words(), reader=Lines(tuple(lengths)), **{
      **dict(buckets=(4, 9), tokens_per_batch=27, packed=True), **changes})


def pairs_in(batch):
  """The pairs of a packed batch, from its segments."""
  for row in range(len(batch['inputs'])):
    mine = lambda side, kind, row=row: batch[f'{side}{kind}'][row]
    for text in range(1, mine('input', '_segments').max(initial=0) + 1):
      yield tuple(tuple(mine(side, 's')[mine(side, '_segments') == text])
                  for side in ('input', 'target'))


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10)), max_size=40),
    st.integers(0, 3))
def test_an_epoch_shows_every_pair_that_fits_once_and_whole(lengths, seed):
  corpus, fits = corpus_of(lengths, seed=seed), [
      (i, a, b) for i, (a, b) in enumerate(lengths) if max(a, b) < 9]
  if not fits:
    with pytest.raises(ValueError, match='No batch'):
      corpus.batch(0)
    return
  want = collections.Counter(((2 + i,) * a + (1,), (2 + i,) * b + (1,))
                             for i, a, b in fits)
  for epoch in (0, 1):
    steps = range(epoch * corpus.steps_per_epoch,
                  (epoch + 1) * corpus.steps_per_epoch)
    batches = [corpus.batch(step) for step in steps]
    assert collections.Counter(
        pair for batch in batches for pair in pairs_in(batch)) == want
    for batch in batches:
      assert batch['inputs'].shape == batch['targets'].shape == (3, 9)
      np.testing.assert_array_equal(batch['weights'], batch['targets'] > 0)
      np.testing.assert_array_equal(batch['inputs'] > 0,
                                    batch['input_segments'] > 0)
  again = corpus_of(lengths, seed=seed)
  for name, x in again.batch(steps[-1]).items():     # straight there
    np.testing.assert_array_equal(x, batches[-1][name])


def test_the_order_depends_on_the_seed_and_the_epoch():
  lengths = [(1 + i % 7, 1 + i % 5) for i in range(60)]
  one, two = corpus_of(lengths), corpus_of(lengths, seed=1)
  first = lambda corpus, step: corpus.batch(step)['inputs'].tolist()
  assert first(one, 0) != first(two, 0)
  assert first(one, 0) != first(one, one.steps_per_epoch)
  assert one.where(0) == (
      'batch 0 of epoch 0, 3 rows of pairs of up to 9 tokens, the first '
      f'{Words().decode(next(pairs_in(one.batch(0)))[0])!r}')


def ragged(seed=3):
  """Pairs of random tokens and lengths, each in a row of its own."""
  rng = np.random.default_rng(seed)
  lengths = np.stack([rng.integers(1, 6, PAIRS), rng.integers(1, 7, PAIRS)])
  kept = [np.arange(width) < n[:, None] for width, n in zip(WIDTHS, lengths)]
  inputs, targets = (rng.integers(2, tiny.VOCAB, x.shape) * x for x in kept)
  return dict(inputs=inputs, targets=targets, weights=kept[1].astype('float32'),
              input_lengths=lengths[0].astype(np.int32))


def laws(name, teacher):
  """Loss, sums and gradient of the pairs alone and packed, by one update."""
  lm = tiny.LMS[name]
  params, guide = tiny.params_of(lm), tiny.params_of(lm, 1)
  update = train_step.Update(
      lm, None, teacher=lm if teacher else None,
      distillation=losses.Distillation(divergences.JSD(), mix=.3))
  grad = jax.jit(jax.value_and_grad(update.loss, has_aux=True))
  return [grad(params, batch, guide if teacher else None)
          for batch in packed_pairs()]


def packed_pairs():
  unpacked = ragged()
  packed = packing.packed({WIDTHS[0]: unpacked}, WIDTHS)
  assert len(packed['inputs']) - 1 <= PAIRS // 2
  assert packed['input_segments'].max() >= 3
  return unpacked, packed


@pytest.mark.parametrize('name,teacher', [
    ('t5_1_1', False), ('t5_1_1', True), ('gemma2', False), ('gemma3', True)])
def test_loss_and_gradient_are_those_of_the_pairs_alone(name, teacher):
  """To float32 rounding; windows, caps, rotary and relative positions."""
  ((want, sums), grads), ((got, packed_sums), packed_grads) = laws(
      name, teacher)
  np.testing.assert_allclose(got, want, rtol=2e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=5e-6),
               packed_sums, sums)
  scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0, atol=5e-6 * scale), packed_grads, grads)


@pytest.mark.parametrize('name', ['t5_1_1', 'gemma3'])
def test_without_segments_of_a_side_the_loss_is_another(name):
  """What the law above would say if texts saw each other."""
  lm = tiny.LMS[name]
  params, loss = tiny.params_of(lm), jax.jit(train_step.Update(lm, None).loss)
  packed = packed_pairs()[1]
  right = loss(params, packed)[0]
  for side in ('input_segments', 'target_segments'):
    blind = dict(packed, **{side: np.minimum(packed[side], 1)})
    assert abs(loss(params, blind)[0] / right - 1) > 1e-4     # 50 times that


def test_a_run_trains_on_packed_texts(corpus, tmp_path):
  wide = dataclasses.replace(corpus, buckets=(96,), tokens_per_batch=288)
  packed, lines = dataclasses.replace(wide, packed=True), []
  run = run_of(packed, tmp_path, steps=30, log_every=10, eval_every=30,
               save_every=30, accumulate=2)
  loop.train(run, log=lines.append)
  found = [float(re.search(r'loss ([0-9.]+)', line)[1]) for line in lines
           if 'tokens/s' in line]
  assert found[-1] < found[0] - .2
  filled = lambda corpus: np.mean([
      corpus.batch(i)['weights'].mean() for i in range(corpus.steps_per_epoch)])
  assert filled(packed) > filled(wide) + .1


def test_own_texts_are_not_packed(corpus, tmp_path):
  run = dataclasses.replace(
      run_of(dataclasses.replace(corpus, packed=True), tmp_path),
      teacher='any', on_policy=policies.OnPolicy(.5))
  with pytest.raises(ValueError, match='share of 0.5 and packed texts'):
    loop.train(run)
