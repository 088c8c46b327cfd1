"""EAGLE's chain and tree against the layer run over whole texts, uncached."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import eagle, eagle_static, eagle_tree, null
from spec_cascades.models import features, t5, toy
from spec_cascades.warp import Warp
from tests import tinypair
from tests.common import LEVEL, LM, P, joint, keys, p_value, prompt, tally

WIDTH = 22
PROMPT = types.Prompt(jnp.array([[3, 1, 4, 1], [2, 0, 0, 0], [0, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))
INPUTS = jnp.array([[2, 3, 4, 1], [4, 1, 0, 0], [3, 3, 1, 0]])
TOY = toy.ToyLM(layers=1, width=8)
T5 = t5.T5(dataclasses.replace(tinypair.config(8, 1), vocab_size=5))
SIZES = dict(toy=features.FeatureConfig(2, 4, 8), t5=features.FeatureConfig(
    2, 8, 8))
STEP, INIT = map(jax.jit, (decode.GenSpecSample.step,
                           decode.GenSpecSample.init))


def made(name):
  lm, asked = dict(toy=(TOY, PROMPT),
                   t5=(T5, PROMPT.replace(inputs=INPUTS)))[name]
  lm = features.Featured(lm, SIZES[name])
  params = jax.jit(lm.init_params)(jax.random.key(4))
  if name == 't5':                    # logits of a few units
    params['model']['decoder']['decoder_norm']['scale'] *= 3.
  return lm, params, asked


@functools.partial(jax.jit, static_argnums=0)
def truth(lm, params, asked, tokens):
  """The verifier's states of whole texts."""
  cache = lm.init(params, asked, tokens.shape[1])
  return lm.extend(params, cache, types.chain(tokens))[0]


@functools.partial(jax.jit, static_argnums=0)
def follow(lm, params, asked, tokens, before):
  """The layer's states of whole texts, and its logits."""
  i = jnp.arange(tokens.shape[1])
  distance = i[:, None] - i[None]
  mask = jnp.broadcast_to(distance >= 0, (len(tokens), *distance.shape))
  hidden, _ = lm.follow(params, before, tokens, distance[None], mask,
                        lm.encoded(lm.init(params, asked, 1)))
  return hidden, jax.nn.log_softmax(lm.head(params, hidden))


class Whole:
  """log q behind any continuation of texts, with nothing cached."""

  def __init__(self, lm, params, asked, state):
    self.parts = lm, params, asked
    self.texts, self.lengths = map(np.asarray, (state.tokens, state.lengths))
    tokens = np.pad(self.texts, ((0, 0), (0, WIDTH - self.texts.shape[1])))
    states = np.asarray(truth(lm, params, asked, jnp.asarray(tokens)))
    self.tokens = tokens
    self.before = np.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    self.known = {}

  def __call__(self, path):
    """Of all rows, [3, V]: behind the tokens of `path`, [3] each."""
    name = tuple(map(tuple, path))
    if name not in self.known:
      tokens, before = self.tokens.copy(), self.before.copy()
      for row, n in enumerate(self.lengths):
        before[row, n:] = 0
      for i in range(len(path) + 1):
        hidden, logs = map(np.asarray, follow(*self.parts, jnp.asarray(tokens),
                                              jnp.asarray(before)))
        for row, n in enumerate(self.lengths):
          if i < len(path):
            before[row, n + i] = hidden[row, n + i - 1]
            tokens[row, n + i] = path[i][row]
      at = self.lengths + len(path) - 1
      self.known[name] = logs[np.arange(len(at)), at]
    return self.known[name]


def rounds(lm, params, asked, drafter, target, most):
  """What was committed before a round, its draft, and who was live.

  Decoded to the end without q, the texts must be the verifier's own.
  """
  spec = decode.GenSpecSample(lm.lm, drafter, 16, eos=-1)
  model, packed = lm.lm.pack(params['model']), lm.pack(params)
  state = INIT(spec, model, packed, asked, keys(3))
  while not state.done.all() and most:
    whole = Whole(lm, params, asked, state)
    state, feedback = STEP(spec, model, packed, target, Warp(0.), state)
    most -= 1
    yield whole, feedback.draft, np.flatnonzero(feedback.live)
  if not target.uses_q:
    assert state.done.all() and state.stats.accepted.sum() > 0
    assert_greedy(lm, params, asked, state)


def assert_greedy(lm, params, asked, state):
  """Tokens are the verifier's own."""
  states = truth(lm, params, asked, state.tokens)
  best = np.asarray(lm.head(params, states)).argmax(-1)
  for row, n in enumerate(PROMPT.prefix_lengths.tolist()):
    np.testing.assert_array_equal(state.tokens[row, n:], best[row, n - 1:-1])


@pytest.mark.parametrize('name', [
    'toy', pytest.param('t5', marks=pytest.mark.slow)])
def test_a_chain_carries_the_q_of_the_whole_text(name):
  lm, params, asked = made(name)
  drafter = eagle.Eagle(lm, 3)
  for whole, draft, live in rounds(lm, params, asked, drafter,
                                   targets.Lossless(), 20):
    tokens = np.asarray(draft.tree.tokens)
    logits = np.asarray(jax.nn.log_softmax(draft.prediction.logits))
    for node in range(3):
      want = whole(list(tokens[:, 1:node + 1].T))
      np.testing.assert_allclose(logits[live, node], want[live], atol=2e-5)
      np.testing.assert_array_equal(tokens[live, node + 1],
                                    want.argmax(-1)[live])


def best_paths(whole, row, depth, width, nodes):
  """EAGLE-2 in words: tokens of the drafts, and log q behind any of them."""
  def behind(path):
    rows = [np.full(3, token) for token in path]
    return whole(rows)[row]

  level, pool = [((), 0.)], []
  for _ in range(depth):
    found = [((*path, int(x)), score + behind(path)[x])
             for path, score in level
             for x in np.argsort(-behind(path))[:width]]
    pool += found
    level = sorted(found, key=lambda item: -item[1])[:width]
  drafts = sorted(pool, key=lambda item: -item[1])[:nodes]
  return {path for path, _ in drafts}, behind


@pytest.mark.parametrize('name,target', [
    ('toy', targets.Chow(.4)), pytest.param(
        't5', targets.Lossless(), marks=pytest.mark.slow)])
def test_a_tree_has_the_likeliest_of_what_is_expanded(name, target):
  lm, params, asked = made(name)
  drafter = eagle_tree.EagleTree(lm, 3, 2, 6)
  for whole, draft, live in rounds(lm, params, asked, drafter, target,
                                   3 if target.uses_q else 20):
    tree = jax.tree.map(np.asarray, draft.tree)
    for row in live:
      paths = {0: ()}
      for node in range(1, 7):
        parent = tree.parents[row, node]
        assert parent < node
        paths[node] = (*paths[parent], int(tree.tokens[row, node]))
        assert tree.depth[row, node] == len(paths[node])
        sees = [paths[m] for m in np.flatnonzero(tree.mask[row, node])]
        assert sees == [paths[node][:i] for i in range(len(sees))]
      if whole.lengths[row] > 14 and target.uses_q:
        continue
      want, behind = best_paths(whole, row, 3, 2, 6)
      assert set(paths.values()) - {()} == want
      if target.uses_q:
        logs = jax.nn.log_softmax(draft.prediction.logits[row])
        for node, path in paths.items():
          np.testing.assert_allclose(logs[node], behind(path), atol=2e-5)


@pytest.mark.parametrize('name,target', [
    ('toy', targets.Chow(.4)), pytest.param(
        't5', targets.Lossless(), marks=pytest.mark.slow)])
def test_a_static_tree_has_the_best_tokens_of_each_state(name, target):
  lm, params, asked = made(name)
  drafter = eagle_static.EagleStatic(lm, (-1, 0, 0, 1, 1, 2, 3))
  for whole, draft, live in rounds(lm, params, asked, drafter, target,
                                   3 if target.uses_q else 20):
    tree = jax.tree.map(np.asarray, draft.tree)
    logs = np.asarray(jax.nn.log_softmax(draft.prediction.logits))
    behind = {0: [], 1: [1], 2: [2], 3: [1, 3], 4: [1, 4], 5: [2, 5]}
    for node, path in list(behind.items())[:6 if target.uses_q else 4]:
      want = whole([tree.tokens[:, x] for x in path])
      np.testing.assert_allclose(logs[live, node], want[live], atol=2e-5)
      children = np.flatnonzero(tree.parents[0] == node)
      best = np.argsort(-want, 1)[:, :len(children)]
      np.testing.assert_array_equal(tree.tokens[live][:, children], best[live])
    assert (tree.parents == drafter.parents).all() and draft.max_depth == 3


def test_a_tree_of_as_many_drafts_as_levels_is_no_chain():
  """It branches, and ends at the cap with the verifier's own tokens."""
  lm, params, asked = made('toy')
  packed, every = lm.pack(params), []
  for drafter in (null.Null(), eagle_tree.EagleTree(lm, 6, 2, 6)):
    spec = decode.GenSpecSample(lm.lm, drafter, WIDTH, eos=-1)
    every.append(spec(packed['model'], packed, asked, keys(3),
                      targets.Lossless(), Warp(0.)).tokens)
  np.testing.assert_array_equal(*every)
  draft = jax.eval_shape(lambda: STEP(
      spec, packed['model'], packed, targets.Lossless(), Warp(0.), INIT(
          spec, packed['model'], packed, asked, keys(3))))[1].draft
  assert draft.max_depth + 1 == drafter.num_nodes and not draft.is_chain


SMALL = features.Featured(LM, features.FeatureConfig(1, 4, 8))
ROWS = 2**14


@pytest.mark.slow
@pytest.mark.parametrize('drafter', [
    eagle.Eagle(SMALL, 2), eagle_static.EagleStatic(SMALL, (-1, 0, 0, 1)),
    eagle_tree.EagleTree(SMALL, 2, 2, 4)],
                         ids=lambda x: type(x).__name__)
def test_sampled_rows_follow_the_exact_joint(drafter):
  params = dict(model=P, heads=SMALL.fresh(P, jax.random.key(1)))
  spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
  state = spec(P, SMALL.pack(params), prompt(ROWS), keys(ROWS),
               targets.Lossless(), Warp())
  assert p_value(tally(state), joint(targets.Lossless(), Warp())) > LEVEL
  assert p_value(tally(state), joint(targets.Lossless(), Warp(.7))) < LEVEL


@pytest.mark.parametrize('make,match', [
    (lambda: eagle.Eagle(SMALL, 0), 'draft length'),
    (lambda: eagle_static.EagleStatic(SMALL, (0, 1)), 'tree'),
    (lambda: eagle_tree.EagleTree(SMALL, 2, 6, 4), 'width of EagleTree is 6'),
    (lambda: eagle_tree.EagleTree(SMALL, 2, 2, 7), 'nodes of EagleTree is 7'),
    (lambda: eagle_tree.EagleTree(SMALL, 4, 2, 3), 'nodes of EagleTree is 3'),
    (lambda: features.FeatureConfig(0), 'num_heads of FeatureConfig is 0'),
    (lambda: features.Featured(T5), 'allowed: its 2 heads of 8'),
    (lambda: eagle.Eagle(SMALL, 2).init(None, PROMPT, None, 9),
     'draft_params is None')])
def test_what_makes_no_draft_is_refused(make, match):
  with pytest.raises(ValueError, match=match):
    make()
