"""What a compiled decode loop has besides what its layouts ask for."""
from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import jax

from spec_cascades import sharding
from spec_cascades.evaluation import hlo


def loop_of(text: str) -> list[hlo.Instruction]:
  """What the decode loop of a whole program runs: its largest loop."""
  read = hlo.parse(text)
  return max((read.inside(x) for x in read.loops), key=len)


def expected(x: hlo.Instruction, models: Sequence[sharding.Sharded],
             params: Any, rows: int, nodes: int) -> bool:
  """Whether the layouts ask for this exchange in the loop.

  Within a group sums of a round's states or logits, and gathers of logits, that
  is of whole vocabularies, but not of a head that is as large; between groups
  whether all rows are done, and what 'fsdp' gathers: weights.

  Args:
    x: A collective.
    models: Verifier and drafter.
    params: Theirs, with shardings.
    rows: Of the batch.
    nodes: Of a draft.
  """
  data, model = models[0].layout.mesh.axis_sizes
  cut = {axis for lm in models for name, axis in lm.layout.rules
         if name != 'batch'}
  tokens, vocab = rows // data * nodes, models[0].vocab_size
  whole = 4 * vocab, 4 * -(-vocab // model) * model      # or padded
  logits = lambda n: n <= tokens * whole[1] and not all(n % x for x in whole)
  states = 4 * tokens * max(lm.config.emb_dim for lm in models)
  small = lambda n: logits(n) or (x.kind == 'all-reduce' and n <= states)
  if x.within(data, model):
    heads = {hlo.array(hlo.NAMES.get(y.dtype.name), y.shape)
             for y in jax.tree.leaves(params)
             if 'model' in jax.tree.leaves(tuple(y.sharding.spec))}
    return 'model' in cut and x.kind in (
        'all-reduce', 'all-gather') and all(map(small, x.parts)) and not (
            x.kind == 'all-gather' and heads.intersection(x.arrays))
  if x.group != data:
    return False
  weights = {data * _held(y) for y in jax.tree.leaves(params)
             if 'data' in jax.tree.leaves(tuple(y.sharding.spec))}
  return x.nbytes <= 4 if x.kind == 'all-reduce' else (
      x.kind == 'all-gather' and weights.issuperset(x.parts))


def _held(x: Any) -> int:
  """Of one chip's part of an array."""
  return x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape))


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
  return list(dict.fromkeys(x.line.strip() for x in (
      *hlo.host_transfers(found), *hlo.copies(found, shapes),
      *(y for y in hlo.collectives(found) if not allowed(y)))))
