"""Count tables against counting by hand, and as drafters."""
import collections
import types as python_types

from hypothesis import given, settings, strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import chain, tree
from spec_cascades.evaluation import counted, drafting, pairs
from spec_cascades.models import counts
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, RAGGED, joint, keys, p_value, prompt, tally)

ORDER, FOLLOW, DISCOUNT = 3, 4, .5
RNG = np.random.default_rng(3)
# Tokens that the tokens before them say much about.
TEXTS = [np.cumsum(RNG.integers(0, 3, RNG.integers(2, 20))) % 5
         for _ in range(40)]
TABLE = counts.build(TEXTS, 5, ORDER, follow=FOLLOW, discount=DISCOUNT)
COUNTS = counts.Counts(5, ORDER)
HEAD = jax.jit(COUNTS.head)
HEAD2 = jax.jit(counts.Counts(5, 2).head)


def reference(texts, context, least=1):
  """q after a context, by counting; the latest token last."""
  following = collections.Counter(int(x) for text in texts for x in text[1:])
  total = sum(following.values()) + 5 * DISCOUNT
  q = np.array([(following[x] + DISCOUNT) / total for x in range(5)])
  for size in range(1, ORDER):
    last = tuple(context[len(context) - size:])
    if len(context) < size:
      break
    found = collections.Counter(
        int(text[i]) for text in texts for i in range(size, len(text))
        if tuple(text[i - size:i]) == last)
    total = sum(found.values())
    if not total or total < least:
      break
    kept = sorted(found, key=lambda x: (-found[x], x))[:FOLLOW]
    share = np.zeros(5)
    for token in kept:
      share[token] = (found[token] - DISCOUNT) / total
    q = share + (1 - share.sum()) * q
  return q


def hidden(context):
  """What `extend` says of a node behind a context."""
  last = [-1, -1, *context][-2:]
  return jnp.array([last[::-1]])


@pytest.mark.parametrize('least', [1, 4])
def test_q_is_what_counting_says(least):
  table = counts.build(TEXTS, 5, ORDER, follow=FOLLOW, least=least,
                       discount=DISCOUNT)
  contexts = [(), *[(a,) for a in range(5)],
              *[(a, b) for a in range(5) for b in range(5)]]
  got = np.exp(HEAD(table, jnp.concatenate([hidden(c) for c in contexts])))
  want = np.array([reference(TEXTS, c, least) for c in contexts])
  np.testing.assert_allclose(got, want, atol=1e-6)
  np.testing.assert_allclose(got.sum(1), 1, atol=1e-6)


def test_an_end_is_drafted_only_behind_what_it_was_seen_behind():
  """As the commonest token it would fill every draft of a unigram."""
  texts = [[0, 2, 3, 1], [0, 3, 1], [0, 2, 1], [0, 1]]
  plain = counts.build(texts, 5, 2)
  table = counts.build(texts, 5, 2, ends=(1,))
  assert plain.unigram.argmax() == 1 and table.unigram.argmax() == 2
  np.testing.assert_allclose(table.unigram, np.array(
      [.5, .5, 2.5, 2.5, .5]) / 6.5, rtol=1e-6)
  jax.tree.map(np.testing.assert_array_equal, plain.levels, table.levels)
  q = np.exp(HEAD2(table, jnp.array([[3]]))[0])
  assert q.argmax() == 1 and q.min() > 0          # all that followed 3 ended


def test_what_was_never_seen_falls_back():
  table = counts.build([[0, 1, 2, 1, 2]], 5, 4)
  lm = counts.Counts(5, 4)
  head = jax.jit(lm.head)
  q = lambda *last: np.exp(head(table, jnp.array([last]))[0])
  np.testing.assert_array_equal(q(1, 4, 4), q(1, 3, -1))   # only 1 is known
  np.testing.assert_array_equal(q(3, 1, 2), q(-1, -1, -1))      # the unigram
  assert q(1, 0, -1).argmax() == 2 and (q(1, 0, -1) > 0).all()
  rare = counts.build([[0, 1, 2, 1, 2]], 5, 4, least=9)
  np.testing.assert_array_equal(
      np.exp(head(rare, jnp.array([[1, 0, -1]]))[0]), q(-1, -1, -1))


@given(st.lists(st.integers(0, 4), min_size=8, max_size=8),
       st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_every_node_sees_its_own_last_tokens(tokens, committed):
  """A tree behind 0 to 3 committed tokens."""
  parents = (-1, 0, 0, 1, 2)
  cache = COUNTS.init(TABLE, types.Prompt(jnp.zeros((1, 1), jnp.int32),
                                          jnp.ones(1, jnp.int32)), 10)
  slots = cache.layers[0].at[0, :3].set(jnp.array(tokens[:3]))
  cache = cache.replace(layers=(slots,), length=jnp.array([committed]))
  found, _ = COUNTS.extend(TABLE, cache, types.tree(
      jnp.array([tokens[3:]]), parents))
  for node in range(5):
    line, at = [], node
    while at >= 0:
      line.append(tokens[3 + at])
      at = parents[at]
    line += tokens[:committed][::-1] + [-1, -1]
    assert found[0, node].tolist() == line[:2]


@pytest.mark.slow
@pytest.mark.parametrize('drafter', [
    chain.Chain(COUNTS, 2), tree.Tree(COUNTS, (-1, 0, 0, 1))],
                         ids=['chain', 'tree'])
def test_rows_follow_the_exact_joint(drafter):
  spec = decode.GenSpecSample(LM, drafter, 6, eos=-1)
  state = spec(P, TABLE, prompt(2**15), keys(2**15), targets.Lossless(),
               Warp(.7))
  assert p_value(tally(state), joint(targets.Lossless(), Warp(.7))) > LEVEL
  assert state.stats.accepted.sum() > 0


def test_a_rule_that_reads_q_reads_that_of_the_table():
  """Chow with a threshold that keeps q: the text is the table's own."""
  spec = decode.GenSpecSample(LM, chain.Chain(COUNTS, 2), 12, eos=-1)
  state = spec(P, TABLE, RAGGED, keys(3), targets.Chow(1.), Warp(0.))
  for row, start in zip(np.asarray(state.tokens).tolist(),
                        RAGGED.prefix_lengths.tolist()):
    for i in range(start, 12):
      q = reference(TEXTS, row[:i])
      assert q[row[i]] == pytest.approx(q.max(), abs=1e-6)
  assert (state.stats.corrected == 0).all()


def test_unigrams_and_bigrams_are_tables_too():
  """Of the same counts: what is further back is not looked at."""
  nodes = types.tree(jnp.array([[2, 4, 1]]), (-1, 0, 0))
  for order in (1, 2):
    lm = counts.Counts(5, order)
    cache = lm.init(TABLE, RAGGED, 8).replace(length=jnp.array([0]))
    cache = cache.replace(layers=(cache.layers[0][:1],))
    found, _ = lm.extend(lm.pack(TABLE), cache, nodes)
    assert found.shape == (1, 3, order - 1)
    got = np.exp(lm.head(TABLE, found))
    for i, token in enumerate((2, 4, 1)):
      want = reference(TEXTS, (token,)[:order - 1])
      np.testing.assert_allclose(got[0, i], want, atol=1e-6)


def test_a_table_is_saved_and_drafted_with(tmp_path):
  path = tmp_path / 'table.npz'
  counted.write(path, TABLE)
  jax.tree.map(np.testing.assert_array_equal, counted.read(path), TABLE)
  model = lambda lm, params: python_types.SimpleNamespace(lm=lm, params=params)
  pair = pairs.Pair(model(LM, P), None, None, '')
  name = f'counts:{path}'
  drafting.check_name(name, targets.Chow(.1), 3)
  drafting.supplied(pair, [(name, 3)])
  made, table = drafting.make(name, pair, 3)
  assert made == chain.Chain(COUNTS, 3) and len(table.levels) == 2
  with pytest.raises(ValueError, match='counts:PATH'):
    drafting.check_name('counts', targets.Lossless(), 3)
  whole = path.read_bytes()
  at = whole.index(b'unigram.npy') + 30          # in what is compressed
  path.write_bytes(whole[:at] + b'\xff' * 20 + whole[at + 20:])
  with pytest.raises(ValueError, match='does not hold a table of counts'):
    drafting.make(name, pair, 3)
  path.write_bytes(b'x')
  with pytest.raises(ValueError, match='does not hold a table of counts'):
    drafting.make(name, pair, 3)
  np.save(tmp_path / 'one.npy', np.zeros(5))
  with pytest.raises(ValueError, match='of counts: it is one array. Give a f'):
    drafting.make(f'counts:{tmp_path}/one.npy', pair, 3)


def test_rows_of_several_texts_are_not_counted():
  corpus = python_types.SimpleNamespace(packed=True)
  with pytest.raises(ValueError, match='packed=True to count; allowed: texts'):
    next(counted.texts(corpus, LM))


@pytest.mark.parametrize('make,match', [
    (lambda: counts.build([[1]], 5), 'No text of two tokens'),
    (lambda: counts.build([[1, 7]], 5), 'Token of texts is 7'),
    (lambda: counts.build([[1, 2]], 5, 0), 'order of a table is 0'),
    (lambda: counts.build([[1, 2]], 5, discount=1.), 'discount is 1'),
    (lambda: counts.Counts(5, 0), 'order of Counts is 0'),
    (lambda: counts.Counts(6, 2).pack(TABLE), 'A table of 5 tokens'),
    (lambda: counts.Counts(5, 4).pack(TABLE), 'order 3; allowed: 5')])
def test_what_makes_no_table_is_refused(make, match):
  with pytest.raises(ValueError, match=match):
    make()
