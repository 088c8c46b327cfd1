"""TriForce: the verifier drafts for itself on a part of its cache."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import decoded
from spec_cascades.drafters import growing
from spec_cascades.drafters.cached import Keeping
from spec_cascades.drafters.line import Line
from spec_cascades.models import partial


@struct.dataclass
class Chosen:
  """Chunks of each layer, best first; rounds; what drafts has its state."""
  chunks: Int[Array, 'B K C']
  rounds: Int[Array, 'B']
  inner: Any


@struct.dataclass
class TriForce(Line, Keeping):
  """A chain of the verifier that sees `chunks` chunks and the recent tokens.

  Every so many rounds the root, read on the chunks chosen last, chooses anew:
  in each layer those whose mean key its query attends to most, the first chunk
  always. They and the recent tokens are copied from the verifier's own cache,
  so that a step reads as much however long the text is. Another drafter may
  draft for this chain as in a `Vertical`: TriForce takes a chain of a small
  model with a `partial.Streaming` cache.

  Attributes:
    lm: The verifier; it has `look`, which says its queries. Parameters are a
      pair: its own, and those of `drafter` or None.
    length: Tokens of a draft, gamma.
    drafter: Drafts for the chain; None: it is drawn token by token.
    chunks: That are seen at most.
    size: Tokens of a chunk.
    recent: Tokens before the root that are seen in any case.
    every: Rounds between choices.

  Reference: Sun et al. (2024), Alg. 1, https://arxiv.org/abs/2404.11912
  """
  lm: Any = struct.field(pytree_node=False)
  length: int = struct.field(pytree_node=False)
  drafter: Any = None
  chunks: int = struct.field(pytree_node=False, default=64)
  size: int = struct.field(pytree_node=False, default=8)
  recent: int = struct.field(pytree_node=False, default=64)
  every: int = struct.field(pytree_node=False, default=8)

  def __post_init__(self):
    super().__post_init__()
    for name in ('chunks', 'size', 'recent', 'every'):
      check.interval(f'{name} of TriForce', getattr(self, name), 1, 2**29,
                     whole=True, hint='It is a count.')

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for what the inner drafter can't use; host only."""
    if self.drafter is not None:
      self.drafter.validate(batch)

  def lagging(self, tokens: int) -> TriForce:
    """The same where the inner drafter's cache may lack the last tokens."""
    if self.drafter is None:
      return self
    return self.replace(drafter=check.lagging(self, self.drafter, tokens))

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Chosen:
    """The first chunks; the inner drafter reads the prompt."""
    check.params_of(self, params, 2)
    self.lagging(0)                    # has the inner one more than tokens?
    empty = jax.eval_shape(
        lambda own: self.lm.init(own, prompt, capacity), params[0])
    count = min(self.chunks, capacity // self.size)
    shape = len(prompt.prefix), len(empty.layers), count
    inner = ()
    if self.drafter is not None:
      inner = self.drafter.init(params[1], prompt, hidden, capacity
                                + self.length + self.drafter.num_nodes)
    return Chosen(jnp.broadcast_to(jnp.arange(count), shape),
                  jnp.zeros(shape[0], jnp.int32), inner)

  def propose(self, params: Any, state: Chosen, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Chosen]:
    """A sampled chain, and q at every node that was visited."""
    whole, inner = check.target_cache(self, ctx), self.drafter
    room = self.length + 2 + (inner.num_nodes if inner else 0)
    seen = lambda chunks: partial.gathered(whole, chunks, self.size,
                                           self.recent, room)
    due = state.rounds[0] % self.every == 0      # rows count alike
    chunks = jax.lax.cond(
        due, lambda old: partial.looked(
            self.lm, params[0], whole, seen(old), ctx.root, self.recent,
            self.size, old.shape[-1]), lambda old: old, state.chunks)
    part, after = seen(chunks), state.inner
    if inner is None:
      draft, _ = growing.grown(self.lm, params[0], part, ctx, keys, self.length)
    else:
      draft, _, after = decoded.decoded(self.lm, params, inner, self.length,
                                        part, state.inner, ctx, keys)
    draft = draft.replace(calls=draft.calls + due.astype(jnp.int32))
    return draft, Chosen(chunks, state.rounds + 1, after)
