"""What decoding on a CPU gains from how its weights lie in memory.

Products are the same float32 ones, to the bit (`models/kernels`); what differs
is how many bytes they read, and from which pages (`models/pages`).
"""
from __future__ import annotations

import functools
from typing import Iterator

import jax
import numpy as np

from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import timing
from spec_cascades.models import kernels
from spec_cascades.models import products

WAYS = {
    'float32': lambda packed: packed,
    'float32, huge pages': functools.partial(products.compacted, halves=False),
    'bfloat16, huge pages': functools.partial(products.compacted, halves=True)}


def rounded(model: benchmarks.Loaded) -> benchmarks.Loaded:
  """A model whose kernels' matrices are float32, with bfloat16's numbers."""
  is_packed = lambda x: isinstance(x, products.Packed)

  def change(x):
    if not is_packed(x) or not x.kernel:
      return x
    array = x.array
    if x.features:                     # bfloat16 panels have another order
      array = kernels.panels(
          kernels.matrix(array, x.features).astype('float32'))
    return x.replace(array=array.astype('bfloat16').astype('float32'))

  return benchmarks.Loaded(model.lm, jax.tree.map(
      change, model.packed, is_leaf=is_packed))


def lines(verifier: benchmarks.Loaded, drafter: benchmarks.Loaded, *,
          gamma: int, rate: float, tokens: int, runs: int) -> Iterator[str]:
  """Whole decodes of the verifier alone and with drafts, weights held so or so.

  Args:
    verifier: p; its weights are rounded to bfloat16 first, if they are more.
    drafter: q, treated alike.
    gamma: Draft length.
    rate: Forced acceptance.
    tokens: New tokens of a decode.
    runs: Of each program.

  Raises:
    AssertionError: Tokens differ.
  """
  is_packed = lambda x: isinstance(x, products.Packed)
  if not any(is_packed(x) and x.kernel
             for x in jax.tree.leaves(verifier.packed, is_leaf=is_packed)):
    yield ('left out: it is for the kernels in C, and there are none here '
           f'({timing.device()}; a CPU with a C compiler has them)')
    return
  pair, programs = [rounded(model) for model in (verifier, drafter)], {}
  del verifier, drafter
  for way, hold in WAYS.items():
    p, q = (benchmarks.Loaded(model.lm, hold(jax.tree.map(
        lambda x: x, model.packed))) for model in pair)
    shared = dict(gamma=gamma, new_tokens=tokens)
    programs['alone', way] = benchmarks.decode_program(p, None, **shared)
    programs['with drafts', way] = benchmarks.decode_program(
        p, q, rate=rate, **shared)
  found, first = benchmarks.timed(programs, runs), next(iter(WAYS))
  for what in ('alone', 'with drafts'):
    want = programs[what, first]().tokens
    for way in WAYS:
      np.testing.assert_array_equal(programs[what, way]().tokens, want)
      gain = found[what, first].median / found[what, way].median
      yield f'{what:11}  {way:20}  {found[what, way]}  {gain:.2f}x as fast'
  for way in WAYS:
    gain = found['alone', way].median / found['with drafts', way].median
    yield f'drafts gain {gain:.2f}x with {way}'
  yield 'all tokens are the same'
