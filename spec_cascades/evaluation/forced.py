"""What both models say of texts, from one teacher-forced pass over them.

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
from spec_cascades import fetching
from spec_cascades import types
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import sequoia
from spec_cascades.evaluation import text

ROWS = 8              # of a pass, at most
LOGITS = 2**26        # of a model in a pass, unless one row has more
STEP = 32             # widths are multiples of it, so that few are compiled


def acceptance(pair: pairs.Pair, inputs: Sequence[Sequence[int]],
               texts: Sequence[Sequence[int]], target: Any, warp: Any,
               drafter: tuple[Any, Any] | None = None) -> list[np.ndarray]:
  """Per text, the probability that each token is accepted if it is drafted.

  min(1, q~(y_t) / pi(y_t)); 0 where pi(y_t) is 0, as after a near-tie that a
  block of tokens has decided otherwise than one pass does.

  Args:
    pair: Models, with a drafter, unless one is given.
    inputs: Tokens that each text answers to, as a prompt takes them.
    texts: New tokens, the end among them; empty texts have no acceptance.
    target: The rule that has written them.
    warp: The sampling transform that it used.
    drafter: The model that drafts, and its parameters; None: the pair's.

  Raises:
    ValueError: Texts and inputs that don't match, or no drafter; tokens outside
      the vocabulary; numbers outside their domains, or one for each text.
  """
  found = _passes(pair, drafter or _small(pair), inputs, texts, target, warp)
  over = lambda drawn, pi: np.minimum(
      np.divide(drawn, pi, out=np.zeros_like(pi), where=pi > 0), 1)
  return [over(drawn, pi) for _, _, pi, drawn in found]


def by_rank(pair: pairs.Pair, inputs: Sequence[Sequence[int]],
            texts: Sequence[Sequence[int]], target: Any, warp: Any, *,
            ranks: int = 8) -> np.ndarray:
  """How often a node's k-th child is accepted and none before it: [ranks].

  The mean of `sequoia.acceptance` over the places of all texts. Arguments and
  errors are those of `acceptance`, and a number of ranks below 1; no token at
  all is a ValueError, too.
  """
  check.interval('ranks', ranks, 1, pair.verifier.lm.vocab_size, whole=True)
  if not any(map(len, texts)):
    raise ValueError(f'Got {len(texts)} texts without a token; give one that '
                     'has some.')
  found = _passes(pair, _small(pair), inputs, texts, target, warp, ranks=ranks)
  return np.concatenate(found, 1).mean(1)


def _small(pair):
  """The model that drafts, and its parameters."""
  if pair.drafter is None:
    raise ValueError('The pair has no drafter; allowed: one with a model that '
                     'drafts.')
  return pair.drafter.lm, pair.drafter.params


def probabilities(pair: pairs.Pair, drafter: tuple[Any, Any] | None,
                  inputs: Sequence[Sequence[int]],
                  texts: Sequence[Sequence[int]], target: Any, warp: Any, *,
                  width: int = 1) -> list[np.ndarray]:
  """Per text, q, p and pi of each of its tokens: [3, tokens].

  q and p at temperature 1, pi as it is sampled from; q is NaN without a
  drafter.

  Args:
    pair: Of which the verifier is asked.
    drafter: The model that is q, and its parameters; None for rules that do not
      read it.
    inputs: Tokens that each text answers to, as a prompt takes them.
    texts: New tokens, whoever has written them.
    target: The rule.
    warp: The sampling transform.
    width: Of inputs and texts, at least: calls of one width share a program.

  Raises:
    ValueError: As `acceptance` does, and a rule that needs a drafter.
  """
  if drafter is None and target.uses_q:
    raise ValueError(f'{type(target).__name__} reads q, but there is no '
                     'drafter; allowed: rules that do not, such as Lossless.')
  return [laws[:3] for laws in _passes(pair, drafter, inputs, texts, target,
                                       warp, width)]


def _passes(pair, drafter, inputs, texts, target, warp, width=1, ranks=0):
  """Checks; what `_laws` says of each text, [4 or ranks, tokens] in float64."""
  if len(inputs) != len(texts):
    raise ValueError(f'{len(inputs)} inputs and {len(texts)} texts; allowed: a '
                     'text for each input.')
  check.target(target)
  check.scalars(target, warp)
  for new in texts:
    if len(new):
      check.interval('Token of texts', np.asarray(new), 0,
                     pair.verifier.lm.vocab_size - 1, whole=True)
  lengths = [(max(_widths([row], [new], width)), len(new), len(row))
             for new, row in zip(texts, inputs)]
  order = sorted(range(len(texts)), key=lengths.__getitem__)   # alike together
  most = sum(_wide(rows, width) for rows in (inputs, texts) if len(rows))
  count = min(ROWS, max(1, LOGITS // max(
      1, most * pair.verifier.lm.vocab_size)))
  out = [np.empty((0, 0))] * len(texts)
  for at in range(0, len(order), count):
    some = order[at:at + count]
    for i, found in zip(some, _pass(
        pair, drafter or (None, None), [list(inputs[i]) for i in some],
        [list(texts[i]) for i in some], target, warp, width, ranks, count)):
      out[i] = found
  return out


def _wide(rows, width):
  """Of a block that holds them."""
  return -(-max(width, *map(len, rows)) // STEP) * STEP


def _widths(inputs, texts, width):
  """Of inputs, and of texts behind a token that starts them.

  One for both where they are short: programs fewer.
  """
  found = _wide(inputs, width), _wide([[0, *new] for new in texts], width)
  return (max(found),) * 2 if max(found) <= 2 * STEP else found


def _pass(pair, drafter, inputs, texts, target, warp, width, ranks, most):
  """`_passes` of up to `most` texts, all in one block."""
  count, groups = len(texts), meshes.groups(pair.verifier.lm)
  empty = most + -most % groups - count
  inputs, texts = inputs + [inputs[0]] * empty, texts + [[]] * empty
  wide, least = _widths(inputs, texts, width)
  prompt = pair.prompt(inputs, wide)
  check.prompt_rows(prompt, prompt.prefix.shape[1] + 1,
                    pair.verifier.lm.vocab_size)
  starts = np.asarray(prompt.prefix_lengths)
  rows = [[*row[:start], *new] for row, start, new in zip(
      np.asarray(prompt.prefix).tolist(), starts, texts)]
  lm, params = drafter
  tokens, asked = meshes.rows(pair.verifier.lm, (
      jnp.asarray(text.pad(rows, max(least, _wide(rows, width)))),
      prompt.inputs))
  found = fetching.get(_laws(
      pair.verifier.lm, lm, pair.verifier.params, params, tokens, asked, target,
      warp, ranks))
  return [found[:, i, start - 1:start - 1 + len(new)].astype(np.float64)
          for i, (start, new) in enumerate(zip(starts, texts[:count]))]


@functools.partial(jax.jit, static_argnums=(0, 1, 8))
def _laws(lm, small, params, draft_params, tokens, inputs, target, warp, ranks):
  """q, p, pi and q~ of tokens 1, 2, ... of every row: [4, B, L - 1].

  With `ranks`, the acceptance of as many children in the place of each token:
  [ranks, B, L - 1].
  """
  def predicted(model, params):
    one = jnp.ones(len(tokens), jnp.int32)
    start = types.Prompt(tokens[:, :1], one, inputs)
    cache = model.init(params, start, tokens.shape[1])
    hidden, _ = model.extend(params, cache, types.chain(tokens[:, :-1]))
    return warp(model.head(params, hidden))

  of = lambda law: jnp.take_along_axis(law, tokens[:, 1:, None], -1)[..., 0]
  # Not a softmax of every row: only the tokens' own entries are wanted.
  raw = lambda x: jnp.exp(of(x.logits) - jax.nn.logsumexp(x.logits, -1))
  p, q = predicted(lm, params), small and predicted(small, draft_params)
  if ranks:
    found = sequoia.acceptance(jax.random.key(0), q, target(q, p).pi, ranks)
    return jnp.moveaxis(found, -1, 0)
  unknown = jnp.full(tokens[:, 1:].shape, jnp.nan)
  return jnp.stack([raw(q) if q else unknown, raw(p), of(target(q, p).pi),
                    of(q.probs) if q else unknown])
