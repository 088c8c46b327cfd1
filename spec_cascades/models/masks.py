"""Mask tokens: learned embeddings at which a verifier predicts further ahead.

    t x_0 .. x_t  M_1 .. M_K:   logits at M_k are of x_{t+k+1}

M_1 stands where x_{t+1}, the token that the verifier itself predicts from x_t,
will stand, and M_k sees the text up to x_t and the masks before it, so that K
more tokens are predicted in the same pass. They are predicted independently of
one another, and of x_{t+1}. The embeddings are all that has to be trained: the
verifier may stay as it is.

References: Monea et al. (2023), PaSS, https://arxiv.org/abs/2311.13581;
  Yi et al. (2024), SPACE, https://arxiv.org/abs/2402.11809
"""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spec_cascades import check
from spec_cascades import types
from spec_cascades.models import heads
from spec_cascades.models import segments


@dataclasses.dataclass(frozen=True)
class MasksConfig:
  """How many mask tokens there are.

  Attributes:
    count: K.
  """
  kind: ClassVar[str] = 'masks'
  drafters: ClassVar[tuple[str, ...]] = ('pass', 'space')   # `evaluation.kinds`
  count: int = 4

  def __post_init__(self):
    check.interval('count of MasksConfig', self.count, 1, 1000, whole=True,
                   hint='It is a count.')


@dataclasses.dataclass(frozen=True)
class Masked(heads.Beside):
  """A verifier and mask tokens; as a `LanguageModel` the verifier alone.

  Parameters are `{'model': those of lm, 'heads': {'embedding': [K, E]}}`.
  """
  lm: Any
  heads: MasksConfig = MasksConfig()

  def fresh(self, model: Any, key: jax.Array) -> dict[str, Any]:
    """Random ones, with mean and spread of the verifier's embeddings."""
    table = self.lm.embed(model, jnp.arange(self.vocab_size))
    noise = jax.random.normal(key, (self.heads.count, table.shape[1]))
    table = table.astype(jnp.float32)
    rows = lambda x: jnp.broadcast_to(x[None], noise.shape)
    return dict(embedding=rows(table.mean(0)) + rows(table.std(0)) * noise)

  def read(self, params: Any, batch: Mapping[str, Array],
           places: Int[Array, 'G'], **kwargs: Any
           ) -> tuple[Float[Array, 'B T E'], Float[Array, 'B G K E']]:
    """States before the targets, and of masks behind some of them.

    Args:
      params: In checkpoint layout.
      batch: See `lm.states`.
      places: Of targets: masks stand behind what target t is predicted from.
      **kwargs: See `lm.states`.
    """
    rows, table = len(batch['targets']), params['heads']['embedding']
    branches = segments.Branches(
        jnp.broadcast_to(table, (rows, len(places), *table.shape)),
        jnp.broadcast_to(places, (rows, len(places))))
    return branches.parted(self.lm.states(
        params['model'], batch, branches=branches, **kwargs))

  def ahead(self, params: Any, k: int, hidden: Float[Array, '*axes K E'],
            tokens: Any = None) -> Float[Array, '*axes V']:
    """Float32 logits of mask k, from 1; `tokens` are not read."""
    del tokens
    return self.lm.head(params['model'], hidden[..., k - 1, :])

  def embedded(self, params: Any, rows: int, groups: int,
               count: int) -> Float[Array, 'B M E']:
    """Of the first `count` masks, group by group: M = groups * count."""
    table = params['heads']['embedding'][:count]
    return jnp.broadcast_to(jnp.tile(table, (groups, 1)),
                            (rows, groups * count, table.shape[1]))

  def first(self, params: Any, cache: Any, root: Int[Array, 'B'],
            count: int) -> Float[Array, 'B K1 V']:
    """Logits at the root and at `count` masks behind it: a pass of its own.

    Args:
      params: In decode layout.
      cache: The verifier's, of what comes before the root; is left as it is.
      root: The last committed token.
      count: Of masks.
    """
    nodes = types.chain(jnp.pad(root[:, None], ((0, 0), (0, count))))
    if count:
      nodes = nodes.replace(embedded=self.embedded(params, len(root), 1, count))
    return self.head(params, self.extend(params, cache, nodes)[0])


def grouped(tree: types.TokenTree, embedded: Float[Array, 'B M E'],
            count: int) -> types.TokenTree:
  """A chain with a group of masks, as scratch, behind each of its nodes.

  Behind a root and a draft with two masks each:

      depth   0 1   1 2   2 3
      seen by the last: 1 1   0 0   1 1

  Args:
    tree: The chain.
    embedded: Of the masks, group by group.
    count: Masks of a group.
  """
  rows, n = tree.tokens.shape
  zeros = jnp.zeros((rows, n * count), jnp.int32)
  i = jnp.broadcast_to(jnp.arange(n), (rows, n))
  branches = segments.Branches(embedded.reshape(rows, n, count, -1), i)
  _, depth, mask = branches.behind(
      jnp.zeros((rows, n, embedded.shape[2]), embedded.dtype), tree.depth,
      tree.mask)
  return types.TokenTree(
      jnp.concatenate([tree.tokens, zeros], 1),
      jnp.concatenate([tree.parents, zeros - 1], 1), depth, mask, embedded)
