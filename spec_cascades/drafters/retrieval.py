"""REST: what a datastore has behind the longest suffix of the text."""
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types
from spec_cascades.drafters import suffixes
from spec_cascades.drafters.stateless import Reading


@struct.dataclass
class Retrieval(Reading):
  """Drafts the commonest continuations of the text's longest known suffix.

  Looks up the last `order` tokens in a datastore, then one less, until they
  occur; reads up to `samples` of the places, at even distances in the order of
  what follows, and drafts the `nodes` - 1 beginnings that most of them share.
  Its parameters are a `suffixes.Datastore`. What follows stops before the end
  of a text: an accepted end saves nothing, and another text is behind it.

  Attributes:
    length: Tokens behind a place, the depth of the tree.
    nodes: Of the tree, the root among them.
    order: Tokens that are looked up at most.
    samples: Places that are read.

  Reference: He et al. (2023), sec. 3, https://arxiv.org/abs/2311.08252
  """
  length: int = struct.field(pytree_node=False, default=6)
  nodes: int = struct.field(pytree_node=False, default=17)
  order: int = struct.field(pytree_node=False, default=8)
  samples: int = struct.field(pytree_node=False, default=32)

  def __post_init__(self):
    check.gamma(self.length)
    most = 1 + self.length * self.samples
    for name, low, high in (('order', 1, 2**31), ('samples', 1, 2**31),
                            ('nodes', 2, most)):
      check.interval(f'{name} of Retrieval', getattr(self, name), low, high,
                     whole=True, hint='It is a count.')

  @property
  def num_nodes(self) -> int:
    """The root and the drafts."""
    return self.nodes

  def propose(self, params: suffixes.Datastore, state: Any, ctx: types.Context,
              keys: Key[Array, 'B']) -> tuple[types.Draft, Any]:
    """A tree of deterministic drafts; the root alone where nothing is known."""
    del keys
    look = jax.vmap(self._follows, (None, 0, 0))
    chains, lengths = look(params, ctx.tokens, ctx.lengths)
    nodes = types.branches(ctx.root, chains, lengths, self.nodes)
    return types.Draft(nodes, None, jnp.zeros_like(ctx.lengths),
                       'deterministic', min(self.length, self.nodes - 1),
                       forks=self.samples > 1, full=False), state

  def _follows(self, store, text, length):
    """Continuations [samples, length] of one text, and their lengths."""
    size, most = len(store.tokens), min(self.order, len(text))
    last = text[jnp.maximum(length - most, 0) + jnp.arange(most)]
    known = jnp.minimum(length, most)
    last = jnp.roll(last, most - known)       # a short text is at the end, too
    look = jax.vmap(suffixes.places, (None, None, 0))
    counts = jnp.arange(1, most + 1)
    start, stop = look(store, last, counts)
    found = (stop > start) & (counts <= known)
    best = jnp.argmax(jnp.where(found, counts, 0))
    many = jnp.where(found.any(), stop[best] - start[best], 0)
    i = jnp.arange(self.samples)
    whole, part = jnp.divmod(many, self.samples)     # i * many may overflow
    step = jnp.where(whole > 0, i * whole + i * part // self.samples, i)
    at = store.order[jnp.minimum(start[best] + step, size - 1)] + counts[best]
    tokens = store.tokens[jnp.minimum(
        at[:, None] + jnp.arange(self.length)[None], size - 1)]
    left = jnp.clip(size - at, 0, self.length)
    goes = jnp.cumprod(tokens != store.end, 1).sum(1, dtype=jnp.int32)
    left = jnp.minimum(left, goes)
    return tokens, jnp.where(i < jnp.minimum(many, self.samples), left, 0)
