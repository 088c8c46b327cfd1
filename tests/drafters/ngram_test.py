"""Prompt lookup on token rows written out by hand."""
import jax.numpy as jnp
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import ngram
from spec_cascades.warp import Warp
from tests.common import LM, keys


def lookup(row, *, length, order, width=12):
  """Drafted tokens of one row."""
  tokens = jnp.zeros((1, width), jnp.int32).at[0, :len(row)].set(jnp.array(row))
  ctx = types.Context(tokens, jnp.array([len(row)]), None, Warp(), False)
  draft, _ = ngram.NGram(length, order).propose(None, (), ctx, keys(1))
  assert draft.tree.tokens[0, 0] == row[-1] and draft.calls.tolist() == [0]
  return draft.tree.tokens[0][draft.tree.parents[0] >= 0].tolist()


@pytest.mark.parametrize('row,length,order,want', [
    ([5, 6, 7, 8, 5, 6], 3, 2, [7, 8, 5]),     # the example of the docstring
    ([5, 6, 7, 8, 5, 6], 2, 2, [7, 8]),
    ([5, 6, 7, 8, 5, 6], 3, 1, [7, 8, 5]),
    ([1, 2, 1, 3, 1], 3, 1, [3, 1]),           # the latest, and what there is
    ([1, 2, 3, 4], 3, 1, []),                  # no match
    ([1], 3, 1, []), ([1, 1], 3, 2, []),       # too short to match
    ([7, 7], 3, 1, [7]),
    ([0, 0, 0], 3, 2, [0])])                   # padding is no match
def test_continuations(row, length, order, want):
  assert lookup(row, length=length, order=order) == want


def test_a_repetitive_text_takes_few_rounds():
  """A model that counts 0 1 2 3 4 0 ... and a prompt of one period."""
  token = jnp.arange(5)
  count = jnp.full((5, 5, 5), -9.).at[:, token, (token + 1) % 5].set(9.)
  prompt = types.Prompt(jnp.array([[0, 1, 2, 3, 4, 0, 1]]), jnp.array([7]))
  spec = decode.GenSpecSample(LM, ngram.NGram(4, 2), 22, eos=-1)
  state = spec(count, None, prompt, keys(1), targets.Lossless(), Warp(0.))
  assert state.tokens[0].tolist() == [i % 5 for i in range(22)]
  assert state.stats.rounds[0] == 3 and state.stats.accepted[0] == 12
