"""Several texts in one row, which do not see each other; branches of a text.

A batch of packed rows has `input_segments` [B, W] and `target_segments` [B, T]:
0 is padding, and a row's texts are numbered from 1, one behind the other:

    input_segments    1 1 1 2 2 0
    target_segments   1 1 2 2 2 2
"""
from __future__ import annotations

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

from spec_cascades import struct


@struct.dataclass
class Branches:
  """K nodes in a row behind each of G places of a text.

  A branch sees what its place sees, and a node of it those before it. Behind
  the places 0 and 2 of a text of 3 tokens, with K = 2:

      positions   0 1 2   1 2   3 4
  """
  embedded: Float[Array, 'B G K E']
  places: Int[Array, 'B G']

  def moved(self, at: Int[Array, 'B T']) -> Branches:
    """The same where place t is slot at[t]."""
    return self.replace(places=jnp.take_along_axis(at, self.places, 1))

  def beside(self, seen: Bool[Array, 'B N S']) -> Bool[Array, 'B M S']:
    """What every token sees, and behind that what nodes see: M = N + G K."""
    own = jnp.take_along_axis(seen, self.places[..., None], 1)
    return jnp.concatenate([seen, jnp.repeat(own, self._length, 1)], 1)

  def behind(self, x: Float[Array, 'B N E'], position: Int[Array, 'B N'],
             mask: Bool[Array, 'B N N']
             ) -> tuple[Float[Array, 'B M E'], Int[Array, 'B M'],
                        Bool[Array, 'B M M']]:
    """Embeddings, positions and what is seen, with those of the branches."""
    b, g, k, e = self.embedded.shape
    first = jnp.take_along_axis(position, self.places, 1)[..., None]
    later = (first + 1 + jnp.arange(k)[None, None]).reshape(b, g * k)
    own = np.kron(np.eye(g, dtype=bool), np.tri(k, dtype=bool))
    own = jnp.broadcast_to(own, (b, *own.shape))
    seen = jnp.pad(own, ((0, 0), (mask.shape[1], 0), (0, 0)))
    return (jnp.concatenate([x, self.embedded.reshape(b, g * k, e)], 1),
            jnp.concatenate([position, later], 1),
            jnp.concatenate([self.beside(mask), seen], 2))

  def parted(self, hidden: Float[Array, 'B M E']
             ) -> tuple[Float[Array, 'B N E'], Float[Array, 'B G K E']]:
    """States of the text, and those of the branches behind them."""
    shape, n = self.embedded.shape, self.places.shape[1] * self._length
    return hidden[:, :-n], hidden[:, -n:].reshape(*shape[:3], -1)

  @property
  def _length(self) -> int:
    return self.embedded.shape[2]


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
