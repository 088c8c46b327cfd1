"""What a compiled decode loop has besides what its layouts ask for."""
from __future__ import annotations

from typing import Any, Callable, Sequence

import jax

from spec_cascades.evaluation import hlo


def loop_of(text: str) -> list[hlo.Instruction]:
  """What the decode loop of a whole program runs: its largest loop."""
  read = hlo.parse(text)
  return max((read.inside(x) for x in read.loops), key=len)


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
