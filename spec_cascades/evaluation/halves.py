"""What decoding on a CPU gains where weights are held as bfloat16.

Products are the same float32 ones, to the bit (`models/kernels`); what differs
is how many bytes they read.
"""
from __future__ import annotations

from typing import Iterator

import jax
import numpy as np

from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import timing
from spec_cascades.models import kernels
from spec_cascades.models import products

DTYPES = ('float32', 'bfloat16')


def held(model: benchmarks.Loaded, dtype: str) -> benchmarks.Loaded:
  """A model whose kernels' matrices are rounded, and held as a dtype."""
  is_packed = lambda x: isinstance(x, products.Packed)

  def rounded(x):
    if not is_packed(x) or not x.kernel:
      return x
    array = x.array
    if x.features:                     # bfloat16 panels have another order
      array = kernels.panels(kernels.matrix(array, x.features).astype(
          'bfloat16').astype('float32'))
    return x.replace(array=array.astype('bfloat16').astype('float32'))

  packed = jax.tree.map(rounded, model.packed, is_leaf=is_packed)
  return benchmarks.Loaded(model.lm, products.compacted(
      packed, halves=dtype == 'bfloat16'))


def possible(model: benchmarks.Loaded) -> bool:
  """Whether our kernels multiply with any of its matrices."""
  is_packed = lambda x: isinstance(x, products.Packed)
  return any(is_packed(x) and x.kernel
             for x in jax.tree.leaves(model.packed, is_leaf=is_packed))


def lines(verifier: benchmarks.Loaded, drafter: benchmarks.Loaded, *,
          gamma: int, rate: float, tokens: int, runs: int) -> Iterator[str]:
  """Whole decodes of the verifier alone and with drafts, in both dtypes.

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
  if not possible(verifier):
    yield ('left out: it is for the kernels in C, and there are none here '
           f'({timing.device()}; a CPU with a C compiler has them)')
    return
  programs = {}
  for dtype in DTYPES:
    p, q = (held(model, dtype) for model in (verifier, drafter))
    shared = dict(gamma=gamma, new_tokens=tokens)
    programs['alone', dtype] = benchmarks.decode_program(p, None, **shared)
    programs['with drafts', dtype] = benchmarks.decode_program(
        p, q, rate=rate, **shared)
  found = benchmarks.timed(programs, runs)
  for what in ('alone', 'with drafts'):
    wide, half = (programs[what, dtype]() for dtype in DTYPES)
    np.testing.assert_array_equal(wide.tokens, half.tokens)
    wide, half = (found[what, dtype] for dtype in DTYPES)
    yield (f'{what:11} float32 {wide}, bfloat16 {half}: '
           f'{wide.median / half.median:.2f}x as fast, the same tokens')
  for dtype in DTYPES:
    gain = found['alone', dtype].median / found['with drafts', dtype].median
    yield f'drafts gain {gain:.2f}x with weights held as {dtype}'
