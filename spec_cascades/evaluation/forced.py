"""How often drafts are accepted, from one teacher-forced pass over texts.

    rates = forced.acceptance(pair, inputs, texts, Lossless(), Warp(0.))
    theory.tokens_per_call(rates, gamma=4)

Exact in expectation for chains verified token by token, over texts that the
rule itself has written: nothing is decoded, and one pass serves every gamma.
"""
from __future__ import annotations

import functools
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades import types
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import text

ROWS = 8              # of a pass
STEP = 32             # widths are multiples of it, so that few are compiled


def acceptance(pair: pairs.Pair, inputs: Sequence[Sequence[int]],
               texts: Sequence[Sequence[int]], target: Any, warp: Any
               ) -> list[np.ndarray]:
  """Per text, the probability that each token is accepted if it is drafted.

  min(1, q~(y_t) / pi(y_t)); 0 where pi(y_t) is 0, as after a near-tie that a
  block of tokens has decided otherwise than one pass does.

  Args:
    pair: Models, with a drafter.
    inputs: Tokens that each text answers to, as a prompt takes them.
    texts: New tokens, the end among them; empty texts have no acceptance.
    target: The rule that has written them.
    warp: The sampling transform that it used.

  Raises:
    ValueError: Texts and inputs that don't match, or no drafter; tokens outside
      the vocabulary; numbers outside their domains, or one for each text.
  """
  if pair.drafter is None or len(inputs) != len(texts):
    raise ValueError(f'{len(inputs)} inputs and {len(texts)} texts with the '
                     f'drafter {pair.drafter}; allowed: a text for each input, '
                     'and a model that drafts.')
  check.target(target)
  check.scalars(target, warp)
  for new in texts:
    if len(new):
      check.interval('Token of texts', np.asarray(new), 0,
                     pair.verifier.lm.vocab_size - 1, whole=True)
  out = []
  for at in range(0, len(texts), ROWS):
    some = slice(at, at + ROWS)
    out += _pass(pair, list(inputs[some]), list(texts[some]), target, warp)
  return out


def _pass(pair, inputs, texts, target, warp):
  """`acceptance` of up to ROWS texts, all in one block."""
  count, empty = len(texts), ROWS - len(texts)
  inputs, texts = inputs + [inputs[0]] * empty, texts + [[]] * empty
  prompt = pair.prompt(inputs, _up(max(map(len, inputs))))
  check.prompt_rows(prompt, prompt.prefix.shape[1] + 1,
                    pair.verifier.lm.vocab_size)
  starts = np.asarray(prompt.prefix_lengths)
  rows = [[*row[:start], *new] for row, start, new in zip(
      np.asarray(prompt.prefix).tolist(), starts, texts)]
  tokens = jnp.asarray(text.pad(rows, _up(max(map(len, rows)))))
  rates = np.asarray(_rates(
      pair.verifier.lm, pair.drafter.lm, pair.verifier.params,
      pair.drafter.params, tokens, prompt.inputs, target, warp))
  return [rate[start - 1:start - 1 + len(new)].astype(np.float64)
          for rate, start, new in zip(rates, starts, texts[:count])]


def _up(width):
  return -(-width // STEP) * STEP


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rates(lm, small, params, draft_params, tokens, inputs, target, warp):
  """min(1, q~ / pi) of tokens 1, 2, ... of every row: [B, L - 1]."""
  def predicted(model, params):
    one = jnp.ones(len(tokens), jnp.int32)
    start = types.Prompt(tokens[:, :1], one, inputs)
    cache = model.init(params, start, tokens.shape[1])
    hidden, _ = model.extend(params, cache, types.chain(tokens[:, :-1]))
    return warp(model.head(params, hidden))

  q, p = predicted(small, draft_params), predicted(lm, params)
  of = lambda law: jnp.take_along_axis(law, tokens[:, 1:, None], -1)[..., 0]
  pi, drawn = of(target(q, p).pi), of(q.probs)
  return jnp.where(pi > 0, jnp.minimum(drawn / jnp.where(pi > 0, pi, 1), 1), 0)
