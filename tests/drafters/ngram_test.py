"""Prompt lookup on token rows written out by hand."""
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types
from spec_cascades.drafters import ngram, null, vertical
from spec_cascades.evaluation import text
from spec_cascades.models import t5
from spec_cascades.warp import Warp
from tests.common import LM, keys
from tests.models import tiny

T5 = t5.T5(dataclasses.replace(tiny.LMS['t5_1_1'].config,
                               num_encoder_layers=1, num_decoder_layers=1))
PT = tiny.params_of(T5)


def propose(drafter, rows, inputs=None, width=12):
  """Drafted tokens of each row."""
  tokens, lengths = text.pad(rows, width), [len(row) for row in rows]
  prompt = types.Prompt(jnp.array(tokens), jnp.array(lengths), inputs and
                        jnp.array(text.pad(inputs, max(map(len, inputs)))))
  state = drafter.init(None, prompt, None, 0)
  ctx = types.Context(jnp.array(tokens), jnp.array(lengths), None, Warp(),
                      False)
  draft, after = drafter.propose(None, state, ctx, keys(len(rows)))
  assert after is state and not draft.calls.any()
  np.testing.assert_array_equal(draft.tree.tokens[:, 0],
                                [row[-1] for row in rows])
  return [nodes[up >= 0].tolist() for nodes, up in zip(
      np.asarray(draft.tree.tokens), np.asarray(draft.tree.parents))]


def lookup(row, *, length, order):
  return propose(ngram.NGram(length, order), [row])[0]


@pytest.mark.parametrize('row,length,order,want', [
    ([5, 6, 7, 8, 5, 6], 3, 2, [7, 8, 5]),     # the example of the docstring
    ([5, 6, 7, 8, 5, 6], 2, 2, [7, 8]),
    ([5, 6, 7, 8, 5, 6], 3, 1, [7, 8, 5]),
    ([5, 6, 7, 8, 5, 6], 6, 2, [7, 8, 5, 6, 7, 8]),      # and once more
    ([1, 2, 1, 3, 1], 3, 1, [3, 1, 3]),        # the latest
    ([1, 2, 3, 4], 3, 1, []),                  # no match
    ([1], 3, 1, []), ([1], 3, 3, []),          # too short to match
    ([1, 1], 3, 2, [1, 1, 1]),
    ([7, 7], 3, 1, [7, 7, 7]),
    ([1, 2, 9, 3, 2, 8, 1, 2], 2, 3, [9, 3]),  # 1 2 rather than the later 2
    ([1, 2, 9, 3, 2, 8, 4, 2], 2, 3, [8, 4]),  # one less, where 4 2 is new
    ([0, 4, 0], 3, 2, [4, 0, 4])])             # padding is no match
def test_continuations(row, length, order, want):
  assert lookup(row, length=length, order=order) == want


INPUTS = [                  # inputs and their end, tokens, drafts
    ([5, 6, 7, 8, 1], [0, 5, 6], [7, 8]),      # the end is not drafted
    ([5, 6, 1], [0, 5, 9, 3, 5], [9, 3, 5]),   # the later of the same length
    ([3, 5, 7, 1], [0, 5, 9, 3, 5], [7]),      # the longer one
    ([4, 5, 1], [0, 5], []),                   # nothing behind it
    ([7, 5, 1], [7, 9, 5, 7], [9, 5, 7]),      # 5 1 7 is no text
    ([7, 1], [0], [])]                         # padding is no match


def test_what_an_encoder_reads_is_copied_too():
  inputs, rows, want = map(list, zip(*INPUTS))
  together = propose(ngram.NGram(3), rows, inputs)
  assert together == want
  assert together == [propose(ngram.NGram(3), [row], [own])[0]
                      for row, own in zip(rows, inputs)]


@pytest.mark.parametrize('drafter,own', [
    (ngram.NGram(3), None),
    pytest.param(vertical.Vertical(T5, ngram.NGram(3), 2), (PT, None),
                 marks=pytest.mark.slow)], ids=['alone', 'inside'])
def test_greedy_tokens_of_an_encoder_decoder_stay_the_same(drafter, own):
  run = lambda drafter, params: decode.GenSpecSample(T5, drafter, 12, eos=-1)(
      PT, params, text.encoder_prompt([[2, 3, 2, 4, 1], [4, 5, 1]], 7), keys(2),
      targets.Lossless(), Warp(0.))
  got, want = run(drafter, own), run(null.Null(), None)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  assert (got.stats.accepted > 0).any()


def test_a_loop_is_drafted_to_the_full_length():
  """A model that counts 0 1 2 3 4 0 ..., and drafts of two periods."""
  token = jnp.arange(5)
  count = jnp.full((5, 5, 5), -9.).at[:, token, (token + 1) % 5].set(9.)
  prompt = types.Prompt(jnp.array([[0, 1, 2, 3, 4, 0]]), jnp.array([6]))
  spec = decode.GenSpecSample(LM, ngram.NGram(9, 2), 26, eos=-1)
  state = spec(count, None, prompt, keys(1), targets.Lossless(), Warp(0.))
  assert state.tokens[0].tolist() == [i % 5 for i in range(26)]
  assert state.stats.rounds[0] == 2 and state.stats.accepted[0] == 18


def test_a_repetitive_text_takes_few_rounds():
  """A model that counts 0 1 2 3 4 0 ... and a prompt of one period."""
  token = jnp.arange(5)
  count = jnp.full((5, 5, 5), -9.).at[:, token, (token + 1) % 5].set(9.)
  prompt = types.Prompt(jnp.array([[0, 1, 2, 3, 4, 0, 1]]), jnp.array([7]))
  spec = decode.GenSpecSample(LM, ngram.NGram(4, 2), 22, eos=-1)
  state = spec(count, None, prompt, keys(1), targets.Lossless(), Warp(0.))
  assert state.tokens[0].tolist() == [i % 5 for i in range(22)]
  assert state.stats.rounds[0] == 3 and state.stats.accepted[0] == 12
