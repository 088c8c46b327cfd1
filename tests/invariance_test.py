"""What must not matter: batch mates, order, padding, cuts, streaming."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import chain, ngram
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, RAGGED, assert_counted, keys, prompt, select
from tests.toys import BIG, DRAFTERS, PB

CHAIN = chain.Chain(LM, 3)
ROWS = 64
RAGGED_MANY = types.Prompt(
    jax.random.randint(jax.random.key(5), (ROWS, 6), 0, 5),
    jnp.arange(ROWS) % 6 + 1)


def assert_rows_equal(got, want, lengths):
  for a, b, n in zip(got, want, lengths):
    np.testing.assert_array_equal(a[:n], b[:n])


def test_order_batch_mates_and_padding_change_nothing():
  spec = decode.GenSpecSample(LM, CHAIN, 30, eos=-1)
  run = lambda p, k: spec(P, Q, p, k, targets.Chow(.4), Warp())
  k, order = keys(3), jnp.array([2, 0, 1])
  together = run(RAGGED, k)
  shuffled = run(select(RAGGED, order), k[order])
  prefix = jnp.pad(RAGGED.prefix, ((0, 0), (0, 5)), constant_values=3)
  padded = run(types.Prompt(prefix, RAGGED.prefix_lengths), k)
  alone = [run(select(RAGGED, jnp.array([row])), k[row:row + 1])
           for row in range(3)]
  n = together.lengths
  assert_rows_equal(shuffled.tokens[jnp.argsort(order)], together.tokens, n)
  assert_rows_equal(padded.tokens, together.tokens, n)
  assert_rows_equal([a.tokens[0] for a in alone], together.tokens, n)
  for row, state in enumerate(alone):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[0], y, rtol=1e-6),
                 state.stats, select(together.stats, row))


def test_what_stands_behind_an_end_is_the_same_in_a_batch():
  """A batch drafts on there, a row alone does not; a rule may read either."""
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 6), 14, verify.Block(), eos=1)
  rows, rule = 500, targets.Chow(.3)
  many = spec(P, Q, prompt(rows), keys(rows), rule, Warp())
  for row in range(rows):
    one = spec(P, Q, prompt(1), keys(rows)[row:row + 1], rule, Warp())
    np.testing.assert_array_equal(one.tokens[0], many.tokens[row])


def test_a_batch_mixes_alphas_temperatures_and_truncations():
  """Every row draws what it draws alone, with scalars."""
  spec = decode.GenSpecSample(LM, CHAIN, 24, eos=-1)
  alpha = jnp.array([.1, .9, .4, .4, .2, .6])
  warp = Warp(jnp.array([0., 1., .5, 1.5, 1., 0.]),
              jnp.array([0, 3, 0, 2, 0, 4]),
              jnp.array([1., 1., .7, 1., .9, .5]),
              jnp.array([0., 0., 0., 0., .2, 0.]),
              jnp.array([0., 0., 0., .05, 0., 0.]))
  run = lambda p, k, a, w: spec(P, Q, p, k, targets.TokenV3(a), w).tokens
  mixed = run(prompt(6), keys(6), alpha, warp)
  for row in range(6):
    alone = run(prompt(1), keys(6)[row:row + 1], alpha[row], select(warp, row))
    np.testing.assert_array_equal(alone[0], mixed[row])
  assert len({tuple(row) for row in mixed.tolist()}) > 3


@pytest.mark.parametrize('temperature', [0., 1.])
def test_eos_cuts_a_row_at_any_offset_of_a_block(temperature):
  """A row with EOS is the row without, up to its first EOS: same keys."""
  run = lambda eos: decode.GenSpecSample(LM, CHAIN, 30, eos=eos)(
      P, Q * 1.02, RAGGED_MANY, keys(ROWS), targets.Lossless(),
      Warp(temperature))
  free, cut = run(-1), run(1)
  for row in range(ROWS):
    start, end = int(RAGGED_MANY.prefix_lengths[row]), int(cut.lengths[row])
    new = np.asarray(free.tokens[row, start:])
    stop = start + (list(new).index(1) + 1 if 1 in new else len(new))
    assert end == stop
    np.testing.assert_array_equal(cut.tokens[row, :end], free.tokens[row, :end])
    assert (cut.tokens[row, end:] == 0).all()
  assert_counted(cut, RAGGED_MANY.prefix_lengths)
  np.testing.assert_array_equal(cut.cache.length, cut.lengths - 1)
  np.testing.assert_array_equal(cut.drafter.length, cut.lengths - 1)


def test_eos_and_cap_at_every_offset_of_one_block():
  """A table that counts 0 1 2 3 4 0 ...: the drafter is always right.

  With gamma 4 a block offers five tokens. EOS is put at each of them in turn by
  the row's last prompt token; the cap by the length of its prompt.
  """
  token = jnp.arange(5)
  count = jnp.full((5, 5, 5), -9.).at[:, token, (token + 1) % 5].set(9.)
  drafter = chain.Chain(LM, 4)
  # EOS = 0: a prompt that ends in t reaches it after 5 - t tokens.
  prompts = types.Prompt(jnp.stack([jnp.full(5, 2), token], 1), jnp.full(5, 2))
  state = decode.GenSpecSample(LM, drafter, 20, eos=0)(
      count, count, prompts, keys(5), targets.Lossless(), Warp(0.))
  np.testing.assert_array_equal(state.stats.emitted, 5 - token)
  np.testing.assert_array_equal(state.stats.bonus, token == 0)
  np.testing.assert_array_equal(state.stats.rounds, 1)
  np.testing.assert_array_equal(state.cache.length, state.lengths - 1)
  for row in range(5):
    want = [*range(row + 1, 5), 0]
    assert state.tokens[row, 2:].tolist() == want + [0] * (18 - len(want))
  # The cap after 1 .. 5 tokens; the fifth is the bonus.
  prefix = jnp.array([[2, 3, 4, 0, 1]] * 5)
  lengths = 6 - jnp.arange(1, 6)
  state = decode.GenSpecSample(LM, drafter, 6, eos=-1)(
      count, count, types.Prompt(prefix, lengths), keys(5), targets.Lossless(),
      Warp(0.))
  np.testing.assert_array_equal(state.stats.emitted, jnp.arange(1, 6))
  np.testing.assert_array_equal(state.stats.rounds, 1)
  np.testing.assert_array_equal(state.stats.bonus, [0, 0, 0, 0, 1])
  np.testing.assert_array_equal(state.tokens, [[2, 3, 4, 0, 1, 2]] * 5)
  np.testing.assert_array_equal(state.cache.length, 5)


@pytest.mark.parametrize('drafter,params', [
    (CHAIN, Q), (ngram.NGram(3, 1), None),
    (chain.Chain(LM, 3, chain.Below(.5)), Q)], ids=['chain', 'ngram', 'stop'])
def test_streaming_equals_the_call_token_for_token(drafter, params):
  spec = decode.GenSpecSample(LM, drafter, 25)
  args = P, params, RAGGED, keys(3), targets.Lossless(), Warp(.8)
  want = spec(*args)
  for _ in range(2):                # the caller's arrays survive donation
    got = [row[:n].tolist() for row, n in zip(RAGGED.prefix,
                                              RAGGED.prefix_lengths.tolist())]
    origins, drafted, rounds = [], 0, 0
    for done in decode.stream(spec, *args):
      for row, (new, kinds) in enumerate(zip(done.tokens, done.origins)):
        got[row] += new.tolist()
        assert len(kinds) == len(new)
        assert kinds == sorted(kinds) and len(set(kinds) - {'accepted'}) <= 1
        np.testing.assert_array_equal(
            new[:kinds.count('accepted')],
            done.drafted[row][:kinds.count('accepted')])
      origins += sum(done.origins, [])
      drafted += sum(map(len, done.drafted))
      rounds += 1
    assert got == [row[:n].tolist() for row, n in zip(want.tokens,
                                                      want.lengths.tolist())]
    for kind in ('accepted', 'corrected', 'bonus'):
      assert origins.count(kind) == int(getattr(want.stats, kind).sum())
    assert drafted == int(want.stats.drafted.sum())
    assert rounds == int(want.stats.rounds.max())


def test_streaming_compiles_one_step():
  drafter, params = DRAFTERS['chain']
  spec = decode.GenSpecSample(BIG, drafter, 25, eos=-1)
  before = decode._step._cache_size()
  for alpha in (.2, .6):
    for _ in decode.stream(spec, PB, params, RAGGED, keys(3),
                           targets.Chow(alpha), Warp()):
      pass
  assert decode._step._cache_size() == before + 1
