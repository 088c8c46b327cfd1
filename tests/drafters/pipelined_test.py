"""Tokens that a layer names early: the drafter, and the closed form's clock."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, theory, types
from spec_cascades.drafters import null, pipelined
from spec_cascades.models import toy
from spec_cascades.warp import Warp
from tests.common import (
    LEVEL, LM, P, Q, ROWS, joint, keys, p_value, prompt, tally)
from tests.toys import BIG, PB

LOSSLESS = targets.Lossless()
FIRST = toy.ToyLM(layers=1)         # of the same arrays
PROMPT = types.Prompt(jnp.array([[3, 2, 3, 4], [3, 0, 0, 0], [2, 4, 2, 0]]),
                      jnp.array([4, 1, 3]))


def clock(matches, choices, layers, named):
  """Steps and busy device-steps of a text, one layer a device and step."""
  done, depth, starts, time, busy = 0, 0, 0, 0, 0
  begun = 0                       # layers that the starts have behind them
  while done <= len(matches):
    if depth == named and done < len(matches):
      starts, begun = choices, 0
    time, busy = time + 1, busy + 1 + starts
    depth, begun = depth + 1, begun + (starts > 0)
    if depth == layers:
      right = done < len(matches) and matches[done]
      done, starts, depth = done + 1, 0, begun if right else 0
      begun = 0
  return time, busy


@pytest.mark.parametrize('named', [4, 5, 7, 8])
def test_the_closed_form_is_the_clock(named):
  """Of matches that come in runs; every one of them, not only on average."""
  rng = np.random.default_rng(named)
  for choices in (1, 3):
    flips = rng.random(60) < .3
    matches = (np.cumsum(flips) % 2 == 0).tolist()
    want = clock(matches, choices, 8, named)
    got = theory.pipelined(np.mean(matches), choices, named / 8, 61)
    np.testing.assert_allclose(8 * np.array(got), want)


def test_the_example_of_the_closed_form_and_its_ends():
  np.testing.assert_allclose(theory.pipelined(.8, 3, .5, 101), (61, 211))
  assert theory.pipelined(0., 4, 1., 9) == (9, 9)
  assert clock([True] * 100, 1, 2, 1) == (102, 202)
  assert theory.pipelined(1., 1, .5, 101) == (51, 101)


@pytest.mark.parametrize('numbers,match', [
    ((1.1, 3, .5, 9), 'Match rate'), ((.5, 3, .4, 9), 'Name tokens higher'),
    ((.5, 0, .5, 9), 'choices'), ((.5, 1, .5, 0), 'tokens')])
def test_what_has_no_closed_form_is_refused(numbers, match):
  with pytest.raises(ValueError, match=match):
    theory.pipelined(*numbers)


@pytest.mark.parametrize('choices', [1, 2])
def test_greedy_calls_yield_two_tokens_where_a_choice_is_right(choices):
  """The layer's choices by a text that is read anew."""
  spec = decode.GenSpecSample(BIG, pipelined.Pipelined(FIRST, 1, choices), 22,
                              eos=-1)
  plain = decode.GenSpecSample(BIG, null.Null(), 22, eos=-1)
  want = plain(PB, None, PROMPT, keys(3), LOSSLESS, Warp(0.))
  got = spec(PB, PB, PROMPT, keys(3), LOSSLESS, Warp(0.))
  np.testing.assert_array_equal(got.tokens, want.tokens)
  cache = FIRST.init(PB, PROMPT, 22)
  read = jax.jit(FIRST.extend)(PB, cache, types.chain(want.tokens))[0]
  best = np.argsort(-np.asarray(FIRST.head(PB, read)), -1)[..., :choices]
  found = []
  for row, start in enumerate(PROMPT.prefix_lengths.tolist()):
    text, at, calls, matches = want.tokens[row].tolist(), start, 0, 0
    while at < 22:
      match = text[at] in best[row, at - 1]
      calls, matches = calls + 1, matches + match
      at += 1 + match
    assert calls == got.stats.rounds[row]
    assert got.stats.accepted[row] == matches
    found.append(matches / calls)
  assert max(found) > 0 and min(found) < 1


def test_rows_follow_the_exact_joint():
  """The table's first layer may be the table; any choices keep the law."""
  spec = decode.GenSpecSample(LM, pipelined.Pipelined(LM, 1, 2), 6, eos=-1)
  for rule in (LOSSLESS, targets.Chow(.4)):
    state = spec(P, Q, prompt(ROWS), keys(ROWS), rule, Warp())
    assert p_value(tally(state), joint(rule, Warp())) > LEVEL
    assert p_value(tally(state), joint(rule, Warp(.9))) < LEVEL


def test_more_choices_than_tokens_are_refused():
  with pytest.raises(ValueError, match='choices of Pipelined is 6'):
    pipelined.Pipelined(LM, 1, 6)
  with pytest.raises(ValueError, match='layers of Pipelined is 0'):
    pipelined.Pipelined(LM, 0, 2)
