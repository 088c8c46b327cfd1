"""Masks are trained as they are read; states of Jacobi decoding, too."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import masked, space
from spec_cascades.models import masks, t5
from spec_cascades.training import (
    ahead, consistent, losses, train_step, trajectories, writing)
from spec_cascades.warp import Warp
from tests.common import keys
from training.ahead_test import BATCH, T5, surprise
from training.follow_test import GEMMA

CONFIG, EVERYWHERE = masks.MasksConfig(3), jnp.arange(5)
PROMPTS = dict(
    t5=types.Prompt(jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32),
                    BATCH['inputs']),
    gemma=types.Prompt(BATCH['inputs'], BATCH['input_lengths']))
PLACES = jnp.array([[0, 1, 3], [0, 1, -1]])
STATES = dict(BATCH, places=PLACES, guesses=jnp.array(
    [[[6, 6], [2, 2], [5, 5]], [[4, 3], [2, 1], [0, 0]]]))


def made(family):
  lm = masks.Masked(dict(t5=T5, gemma=GEMMA)[family], CONFIG)
  return lm, jax.jit(lm.init_params)(jax.random.key(0))


@pytest.fixture(scope='module')
def trained():
  return made('t5')


@pytest.mark.parametrize('family,make', [
    ('t5', space.Space), *(pytest.param(*x, marks=pytest.mark.slow) for x in (
        ('t5', masked.PaSS), ('gemma', space.Space), ('gemma', masked.PaSS)))])
def test_masks_are_trained_as_they_are_read_when_decoding(family, make):
  """Laws of all drafts, from one pass over the texts that they ended in."""
  lm, params = made(family)
  packed, given = lm.pack(params), PROMPTS[family]
  width = given.prefix.shape[1]
  spec = decode.GenSpecSample(lm.lm, make(lm, 2), width + 7, eos=-1)
  step, drafts = jax.jit(decode.GenSpecSample.step), []
  state = jax.jit(decode.GenSpecSample.init)(
      spec, packed['model'], packed, given, keys(2))
  while not state.done.all():
    before = np.asarray(state.lengths - given.prefix_lengths)
    state, seen = step(spec, packed['model'], packed, targets.Chow(.5), Warp(),
                       state)
    drafts.append((before, jax.device_get(seen)))
  new = given.prefix_lengths[:, None] + jnp.arange(7)[None]
  batch = dict(inputs=BATCH['inputs'], input_lengths=BATCH['input_lengths'],
               targets=jnp.take_along_axis(state.tokens, new, 1))

  @jax.jit
  def read(params):
    hidden, ahead_of = lm.read(params, batch, jnp.arange(7))
    return lm.head(params, hidden), lm.head(params, ahead_of)

  own, said = map(np.asarray, read(params))
  for i, (before, seen) in enumerate(drafts):
    logits = seen.draft.prediction.logits
    for row in np.flatnonzero(seen.live):
      place = before[row]
      if i == 0 or make is masked.PaSS:
        want = np.concatenate([own[row, place:place + 1], said[row, place, :2]])
      else:
        want = said[row, place - 1]
      np.testing.assert_allclose(logits[row], want, atol=1e-5)
  assert i > 1


@pytest.mark.slow
def test_the_loss_is_that_of_every_mask_behind_every_place(trained):
  lm, params = trained
  loss = ahead.Ahead(.5, losses.Distillation(mix=1.))
  total, sums = jax.jit(lambda x: loss(lm, x, BATCH))(params)
  said, own = map(np.asarray, jax.jit(lambda x: (
      lm.head(x, lm.read(x, BATCH, EVERYWHERE)[1]),
      lm.teacher_forced(x, BATCH)))(params))
  want, counts = 0., np.zeros(4)
  for row, words in enumerate(np.asarray(BATCH['targets'])):
    for k in range(1, 4):
      for t in range(int(BATCH['weights'][row].sum()) - k):
        want += .5**k * surprise(said[row, t, k - 1], words[t + k])
        counts[k] += said[row, t, k - 1].argmax() == own[row, t + k].argmax()
  assert float(total) == pytest.approx(want, rel=1e-4)
  for k in (1, 2, 3):
    assert float(sums[f'agreement_{k}']) == counts[k]


@pytest.mark.slow
def test_places_that_are_drawn_count_for_those_that_are_not(trained):
  """Over the offsets they are each place once, so the mean is the whole."""
  lm, params = trained
  every = jax.jit(lambda x, key: ahead.Ahead(every=2)(
      lm, x, BATCH, dropout=key)[0])
  first = lambda key: int(jax.random.randint(
      jax.random.fold_in(key, 1), (), 0, 2))
  known = {}
  for seed in range(64):
    known[first(jax.random.key(seed))] = jax.random.key(seed)
  found = [float(every(params, known[i])) for i in (0, 1)]
  whole = jax.jit(lambda x: ahead.Ahead()(lm, x, BATCH)[0])(params)
  assert np.mean(found) == pytest.approx(float(whole), rel=1e-5)
  assert found[0] != pytest.approx(found[1], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('weight', [0., 5.])
def test_the_verifier_learns_with_its_masks_only_if_it_is_to(trained, weight):
  lm, params = trained
  update = train_step.Update(lm, None, objective=ahead.Ahead(verifier=weight))
  grads = jax.jit(jax.grad(lambda x: update.loss(x, BATCH)[0]))(params)
  size = lambda tree: sum(float(jnp.abs(x).sum())
                          for x in jax.tree.leaves(tree))
  assert size(grads['heads']) > 0
  assert (size(grads['model']) > 0) == (weight > 0)


@pytest.mark.slow
def test_texts_in_a_row_have_masks_of_their_own():
  """The loss of two texts in one row is that of a row each."""
  apart = dict(inputs=jnp.array([[3, 4], [5, 1]]),
               input_lengths=jnp.array([2, 2]),
               targets=jnp.array([[3, 2, 1], [6, 6, 1]]),
               weights=jnp.ones((2, 3)))
  row = lambda x: x.reshape(1, -1)
  packed = dict(inputs=row(apart['inputs']), targets=row(apart['targets']),
                weights=row(apart['weights']),
                input_segments=jnp.array([[1, 1, 2, 2]]),
                target_segments=jnp.array([[1, 1, 1, 2, 2, 2]]))
  for family in ('t5', 'gemma'):
    lm, params = made(family)
    loss = jax.jit(lambda x, batch, lm=lm: ahead.Ahead()(lm, x, batch)[0])
    assert float(loss(params, packed)) == pytest.approx(
        float(loss(params, apart)), rel=1e-5)


def law(logits):
  weight = np.exp(np.asarray(logits, np.float64))
  return weight / weight.sum(-1, keepdims=True)


@pytest.mark.slow
def test_consistency_is_that_of_texts_with_guesses_in_them():
  """Each state written out as a text of its own, read from the beginning."""
  params = jax.jit(T5.init_params)(jax.random.key(0))
  params['decoder']['decoder_norm']['scale'] *= 3.
  forced = jax.jit(T5.teacher_forced)
  loss = consistent.Consistent(2., .5, .25, states=3)
  total, sums = jax.jit(lambda x: loss(T5, x, STATES))(params)
  next_one = np.asarray(consistent.later(STATES, jnp.tile(
      jnp.arange(3)[None], (2, 1))))
  texts, own = np.asarray(BATCH['targets']), np.asarray(forced(params, BATCH))
  want = sum(2. * surprise(own[row, t], texts[row, t]) for row in range(2)
             for t in range(int(BATCH['weights'][row].sum())))

  def after(row, place, words):
    """Laws behind each of some words at a place of the text."""
    text = np.array(texts)
    text[row, place:place + 2] = words[:5 - place]
    return law(forced(params, dict(BATCH, targets=jnp.asarray(text))))[
        row, place + 1:place + 3]

  kl = lambda p, q: (p * np.log(p / q)).sum()
  for row, places in enumerate(np.asarray(PLACES).tolist()):
    size, there = int(BATCH['weights'][row].sum()), sum(
        place >= 0 for place in places)
    for state, place in enumerate(places):
      if place < 0:
        continue
      q = after(row, place, np.asarray(STATES['guesses'])[row, state])
      near = after(row, place, next_one[row, state])
      for k in range(min(2, size - place - 1)):
        want += .5 * kl(law(own[row, place + k + 1]), q[k]) / there
        want += .25 * kl(near[k], q[k]) / there
  assert float(total) == pytest.approx(want, rel=1e-4)
  assert float(sums['tokens']) == 8


def test_the_next_round_has_what_is_settled_and_then_its_guesses():
  batch = dict(places=jnp.array([[2, 4, -1]]), targets=jnp.array(
      [[7, 8, 9, 5, 6, 3]]), guesses=jnp.array(
          [[[9, 9, 9], [6, 6, 6], [0, 0, 0]]]))
  found = consistent.later(batch, jnp.array([[0, 1]]))
  assert found[0].tolist() == [[9, 5, 6], [6, 3, 3]]


@pytest.mark.slow
def test_trajectories_are_those_of_jacobi_decoding():
  """Guesses that are right up to the first that is not are settled."""
  lm = T5
  params = jax.jit(lm.init_params)(jax.random.key(4))
  params['decoder']['decoder_norm']['scale'] *= 3.
  rows = [[3, 4, 5, 1], [2, 6, 1], [5, 1]]
  found, calls = trajectories.write(lm, lm.pack(params), rows, width=4,
                                    length=8, batch=2, end=1, guesses=3)
  assert len(found) == 3
  assert calls == sum(len(x['states']) for x in found)
  for x in found:
    tokens, states = x['tokens'], x['states']
    for (at, guesses), (then, _) in zip(states, [*states[1:], (None, None)]):
      right = np.cumprod([g == t for g, t in zip(guesses, tokens[at:])]).sum()
      want = min(at + 1 + int(right), len(tokens))
      assert then == want or (then is None and want == len(tokens))
    shorter = trajectories.cut(x, 3)
    assert shorter['tokens'] == tokens[:3]
    assert all(at < 3 for at, _ in shorter['states'])
  kept = trajectories.padded([x['states'] for x in found], 3)
  assert kept['guesses'].shape == (*kept['places'].shape, 3)
  line = dict(trajectory=found[0])
  assert trajectories.read(line, 3, 'x')[0] == found[0]['tokens']
  assert trajectories.read({}, 3, 'x') is None
  with pytest.raises(ValueError, match='x: states have 3 guesses, but got'):
    trajectories.read(line, 2, 'x')
  with pytest.raises(ValueError, match='x: trajectory is not what'):
    trajectories.read(dict(trajectory=[3]), 3, 'x')


@pytest.mark.parametrize('module, more', [
    (trajectories, dict(guesses=3)), (writing, {})])
def test_texts_of_broken_weights_are_refused(module, more):
  """Only the third input, in a batch of its own, reads what is broken."""
  lm = t5.T5(dataclasses.replace(T5.config, logits_via_embedding=False))
  params = jax.jit(lm.init_params)(jax.random.key(4))
  table = params['token_embedder']['embedding']
  params['token_embedder']['embedding'] = table.at[5].set(jnp.nan)
  with pytest.raises(ValueError, match='Text 2 stopped in round 1: the logits '
                     'are not finite'):
    module.write(lm, lm.pack(params), [[3, 4, 1], [2, 6, 1], [5, 1]], width=4,
                 length=1, batch=2, end=1, **more)


def test_numbers_outside_their_domains_are_refused():
  for make, match in (
      (lambda: ahead.Ahead(every=0), 'every of Ahead is 0'),
      (lambda: consistent.Consistent(0.), 'verifier of Consistent is 0'),
      (lambda: consistent.Consistent(states=0), 'states of Consistent is 0'),
      (lambda: consistent.Consistent(distillation=losses.Distillation(
          mix=.5)), 'mix=0.5 for Consistent')):
    with pytest.raises(ValueError, match=match):
      make()
