"""What a compiled decode loop has besides what its layouts ask for."""
from __future__ import annotations

from typing import Any, Callable, Sequence

import jax

from spec_cascades import sharding
from spec_cascades.evaluation import hlo


def loop_of(text: str) -> list[hlo.Instruction]:
  """What the decode loop of a whole program runs: its largest loop."""
  read = hlo.parse(text)
  return max((read.inside(x) for x in read.loops), key=len)


def expected(x: hlo.Instruction, models: Sequence[sharding.Sharded], rows: int,
             nodes: int) -> bool:
  """Whether the layouts ask for this exchange in the loop.

  Within a group sums and gathers no larger than a round's logits, of which a
  weight is not mistaken for one; between groups whether all rows are done, and
  what 'fsdp' gathers.

  Args:
    x: A collective.
    models: Verifier and drafter.
    rows: Of the batch.
    nodes: Of a draft.
  """
  data, model = models[0].layout.mesh.devices.shape
  cut = {axis for lm in models for name, axis in lm.layout.rules
         if name != 'batch'}
  if x.group == model and 'model' in cut and x.kind in (
      'all-reduce', 'all-gather') and (
          x.nbytes <= 4 * rows // data * nodes * models[0].vocab_size):
    return True
  return x.group == data and (x.nbytes <= 4 if x.kind == 'all-reduce' else
                              x.kind == 'all-gather' and 'data' in cut)


def lines(found: Sequence[hlo.Instruction], caches: Any,
          allowed: Callable[[hlo.Instruction], bool]) -> list[str]:
  """Lines that should not be among these instructions.

  Args:
    found: Of a loop, or of a whole program.
    caches: Arrays that must not be copied, with shardings.
    allowed: Whether a collective is expected.
  """
  shapes = {f'{hlo.NAMES[x.dtype.name]}'
            f'[{",".join(map(str, x.sharding.shard_shape(x.shape)))}]'
            for x in jax.tree.leaves(caches) if x.ndim == 4}
  return [x.line.strip() for x in (
      *hlo.host_transfers(found), *hlo.copies(found, shapes),
      *(y for y in hlo.collectives(found) if not allowed(y)))]
