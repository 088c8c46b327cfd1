"""A bounded buffer of decoded texts, and counts over the last of them."""
from __future__ import annotations

import dataclasses
from typing import Sequence

from jaxtyping import Float, Int
import numpy as np

from spec_cascades import struct
from spec_cascades.evaluation import text

COUNTS = ('tokens', 'calls', 'accepted', 'judged')


@dataclasses.dataclass(frozen=True)
class Window:
  """What some consecutive requests took; numbers are from 1."""
  begin: int
  end: int
  tokens: int
  calls: int
  taken: int
  judged: int

  @property
  def tokens_per_call(self) -> float:
    """Tokens that a call of the verifier yielded."""
    return self.tokens / max(self.calls, 1)

  @property
  def accepted(self) -> float:
    """Drafts accepted of those judged."""
    return self.taken / max(self.judged, 1)

  def __str__(self) -> str:
    return (f'requests {self.begin}-{self.end}: {self.tokens_per_call:.3f} '
            f'tokens a call, {self.accepted:.1%} of drafts accepted')


@struct.dataclass
class Memory:
  """Numpy arrays of fixed shapes, which a checkpoint holds as they are.

  Text i of those kept is in row i modulo the buffer's size M, request j in row
  j modulo the window's size R. Methods return a new memory.
  """
  inputs: Int[np.ndarray, 'M W']
  input_lengths: Int[np.ndarray, 'M']
  targets: Int[np.ndarray, 'M T']
  weights: Float[np.ndarray, 'M T']
  texts: Int[np.ndarray, '']          # kept so far, those that left among them
  served: Int[np.ndarray, '']         # requests so far
  earliest: Int[np.ndarray, 'R 4']    # COUNTS of the first R requests
  latest: Int[np.ndarray, 'R 4']      # of the last R

  def kept(self, inputs: Sequence[int], targets: Sequence[int],
           weights: np.ndarray) -> Memory:
    """With one more text; one without any weight is not kept."""
    if not np.any(weights):
      return self
    row = int(self.texts) % len(self.inputs)
    width, length = self.inputs.shape[1], self.targets.shape[1]
    new = dict(inputs=text.pad([inputs], width)[0], input_lengths=len(inputs),
               targets=text.pad([targets], length)[0],
               weights=np.pad(weights, (0, length - len(weights))))
    return self.replace(
        texts=self.texts + 1,
        **{name: _with(getattr(self, name), row, x) for name, x in new.items()})

  def counted(self, *counts: int) -> Memory:
    """With the COUNTS of one more request."""
    i, size = int(self.served), len(self.latest)
    earliest = _with(self.earliest, i, counts) if i < size else self.earliest
    return self.replace(
        served=self.served + 1, earliest=earliest,
        latest=_with(self.latest, i % size, counts))

  def drawn(self, rows: int, seed: Sequence[int]) -> dict[str, np.ndarray]:
    """A batch of texts as `data.ParallelText` has them, none of them twice.

    Args:
      rows: Of the batch. Where fewer texts are there, rows without weight fill
        it up.
      seed: Of the choice.
    """
    count = min(int(self.texts), len(self.inputs))
    chosen = np.random.default_rng(seed).permutation(count)[:rows]
    padded = np.pad(chosen, (0, rows - len(chosen)))
    batch = {name: getattr(self, name)[padded]
             for name in ('inputs', 'input_lengths', 'targets', 'weights')}
    batch['weights'][len(chosen):] = 0
    return batch

  def first(self) -> Window:
    """The first requests, up to a window."""
    count = min(int(self.served), len(self.latest))
    return Window(min(1, count), count, *self.earliest.sum(0).tolist())

  def last(self) -> Window:
    """The last requests, up to a window."""
    served = int(self.served)
    begin = max(served - len(self.latest), 0) + 1
    return Window(min(begin, served), served, *self.latest.sum(0).tolist())


def empty(size: int, width: int, length: int, *, end: int,
          window: int) -> Memory:
  """Nothing kept, nothing counted.

  Args:
    size: Texts that are held.
    width: Of inputs.
    length: Of targets.
    end: A token; rows that hold no text have it as their input.
    window: Requests that are counted.
  """
  inputs = np.zeros((size, width), np.int32)
  inputs[:, 0] = end
  targets = np.zeros((size, length), np.int32)
  counts = np.zeros((window, len(COUNTS)), np.int32)
  return Memory(inputs, np.ones(size, np.int32), targets,
                targets.astype(np.float32), np.array(0, np.int32),
                np.array(0, np.int32), counts, counts)


def _with(array, row, new):
  """array[row] = new, in a copy."""
  out = array.copy()
  out[row] = new
  return out
