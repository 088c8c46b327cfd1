"""Ouroboros: phrases draft for the small model, and behind its drafts."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key
import numpy as np

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters import vertical
from spec_cascades.drafters.line import Line
from spec_cascades.drafters.lookahead import Lookahead


@struct.dataclass
class Ouroboros(Line, struct.Fixed):
  """A small model drafts phrase by phrase; phrases go on where it ends.

  The model decodes gamma tokens by lookahead, losslessly, so that they have the
  law of q. Pooled phrases that begin with the last of them follow it, as point
  masses, several side by side in one tree. The model reads these, too: rules
  get q everywhere, and its cache has whatever is accepted.

  A verifier call says what would follow each draft. From each draft on, the
  draft and what p ranks first behind it and behind those after it become a
  phrase: where drafts were right that is the text, behind a wrong one it is
  what p makes of the rest. The small model's lookahead finds the others.

  Attributes:
    lm: The small model.
    phrases: Drafts for it and has the pool; `guesses` are also the phrases
      behind a draft. Parameters are a pair: the model's, and the n-grams that
      the pool begins with or None, see `phrases.commonest`.
    length: Tokens that the model drafts, gamma; at least `order` - 2.

  Reference: Zhao et al. (2024), secs. 3.1 to 3.4,
    https://arxiv.org/abs/2402.13720
  """
  lm: Any = struct.field(pytree_node=False)
  phrases: Lookahead
  length: int = struct.field(pytree_node=False)

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.phrases, Lookahead):    # else a tree of something else
      order, pool = self.phrases.order, self.phrases.pool
      check.interval('length of Ouroboros', self.length, order - 2,
                     pool + order - 3, whole=True, hint='A round makes length '
                     '+ 3 - order phrases, at least one and at most a pool.')

  @property
  def num_nodes(self) -> int:
    """The root, the drafts of the model, and the phrases behind them."""
    return 1 + self.length + self.phrases.guesses * (self.phrases.order - 1)

  @property
  def _line(self) -> vertical.Vertical:
    return vertical.Vertical(self.lm, self.phrases, self.length)

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> vertical.Levels:
    """The model reads the prompt; the pool is as given."""
    check.params_of(self, params, 2)
    return self._line.init(params, prompt, hidden, capacity)

  def propose(self, params: Any, state: vertical.Levels, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, vertical.Levels]:
    """A chain and phrases behind it, their laws, and q at every node."""
    made, state = self._line.propose(params, state, ctx, keys)
    last = made.tree.tokens[:, -1]
    tail = types.branches(
        last, *state.inner.ring.after(last, self.phrases.guesses),
        self.num_nodes - self.length)
    # The cache has the chain; what branches off its end goes behind it.
    cache = state.cache.truncate(ctx.lengths + self.length)
    hidden, cache = self.lm.extend(params[0], cache, types.tail_of(tail))
    q = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 1), made.prediction,
                     ctx.warp(self.lm.head(params[0], hidden)))
    masses = jax.nn.one_hot(tail.tokens, q.probs.shape[-1])
    laws = jnp.concatenate([masses[:, :1], made.prediction.probs[:, :-1],
                            masses[:, 1:]], 1)      # the root's is never read
    draft = types.Draft(
        types.joined(made.tree, tail), q, made.calls + 1, 'given',
        self.length + self.phrases.order - 1, full=False, laws=laws)
    return draft, state.replace(cache=cache.truncate(state.cache.length))

  def observe(self, params: Any, state: vertical.Levels,
              feedback: types.Feedback) -> vertical.Levels:
    """Keeps what was accepted, and what p would have said instead."""
    del params
    draft, live = feedback.draft, feedback.live
    count = self.length + 1
    best = warp_lib.argmax(feedback.logits[:, :count])
    number = count + 2 - self.phrases.order
    line = np.add.outer(range(number), range(self.phrases.order - 1))
    grams = jnp.concatenate([draft.tree.tokens[:, :number, None],
                             best[:, line]], 2)
    return vertical.Levels(
        state.cache.accept(draft, feedback.verdict, live),
        state.inner.replace(ring=state.inner.ring.filed(grams, live)))
