"""Several texts in one row, which do not see each other.

A batch of packed rows has `input_segments` [B, W] and `target_segments` [B, T]:
0 is padding, and a row's texts are numbered from 1, one behind the other:

    input_segments    1 1 1 2 2 0
    target_segments   1 1 2 2 2 2
"""
from __future__ import annotations

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def same(queries: Int[Array, 'B N'], keys: Int[Array, 'B S']
         ) -> Bool[Array, 'B N S']:
  """Which keys are of the text that a query is of."""
  return queries[:, :, None] == keys[:, None]


def seen(inputs: Int[Array, 'B I'], n: int) -> Bool[Array, 'B N I']:
  """Tokens of an input that each of n nodes sees: not the padding, 0."""
  b, width = inputs.shape
  return jnp.broadcast_to((inputs > 0)[:, None], (b, n, width))


def positions(segments: Int[Array, 'B N']) -> Int[Array, 'B N']:
  """Of each token in its own text: [1 1 2 2 2] -> [0 1 0 1 2]."""
  slots = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
  first = jnp.where(_begins(segments), slots, 0)
  return slots - lax.cummax(first, axis=1)


def shifted(tokens: Int[Array, 'B N'],
            segments: Int[Array, 'B N']) -> Int[Array, 'B N']:
  """Each text's tokens moved right by one, 0 first: what a decoder reads."""
  moved = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
  return jnp.where(_begins(segments), 0, moved)


def behind(inputs: Int[Array, 'B W'], lengths: Int[Array, 'B'],
           targets: Int[Array, 'B T']
           ) -> tuple[Int[Array, 'B N'], Int[Array, 'B T']]:
  """Inputs of one text a row with its targets, and where those are predicted.

  With inputs of 1 and 2 tokens, and padding (.) that is never seen:

    a .   x y        a x y      0 1
    b c   z .   ->   b c z      1 2

  The last target is not read: nothing is predicted from it.
  """
  width, room = inputs.shape[1], targets.shape[1]
  slot = jnp.arange(width + room - 1)[None] - lengths[:, None]
  later = jnp.take_along_axis(targets, jnp.clip(slot, 0, room - 1), 1)
  padded = jnp.pad(inputs, ((0, 0), (0, room - 1)))
  return (jnp.where(slot < 0, padded, later),
          lengths[:, None] - 1 + jnp.arange(room)[None])


def joined(inputs: Int[Array, 'B W'], input_segments: Int[Array, 'B W'],
           targets: Int[Array, 'B T'], target_segments: Int[Array, 'B T']
           ) -> tuple[Int[Array, 'B N'], Int[Array, 'B N'], Int[Array, 'B N'],
                      Int[Array, 'B T']]:
  """Rows of a decoder that goes on from the inputs with the targets.

  All inputs come first and all targets behind them, N = W + T. Order is that of
  positions, not of slots: a target's go on from its own input.

      inputs    a a b      tokens      a a b x y y
      targets   x y y      positions   0 1 0 2 1 2

  Returns:
    Tokens, their segments, their positions, and the slots where the targets are
    predicted: the last of an input, or the target before.
  """
  tokens = jnp.concatenate([inputs, targets], 1)
  segments = jnp.concatenate([input_segments, target_segments], 1)
  own = same(target_segments, input_segments)
  behind = positions(target_segments)
  position = jnp.concatenate(
      [positions(input_segments), own.sum(-1) + behind], 1)
  width = inputs.shape[1]
  last = jnp.where(own, jnp.arange(width)[None, None], 0).max(-1)
  before = jnp.broadcast_to(width - 1 + jnp.arange(targets.shape[1]),
                            targets.shape)
  return tokens, segments, position, jnp.where(behind == 0, last, before)


def _begins(segments):
  """Where another text begins than that of the slot before."""
  before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
  return segments != before
