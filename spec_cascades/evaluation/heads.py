"""What a drafter's steps cost with a head over all words, and over some.

Of a model of published dimensions with random weights; compilation excluded.
"""
from __future__ import annotations

from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp

from spec_cascades import decode
from spec_cascades import types
from spec_cascades import warp
from spec_cascades.drafters import chain
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import text
from spec_cascades.models import presets
from spec_cascades.models import reduced

MODEL = 'gemma3_270m'
WIDTH = 64                             # tokens before the first draft


def measure(lm: Any, sizes: Sequence[int], gamma: int = 5,
            runs: int = 7) -> dict[int, benchmarks.Spread]:
  """Seconds a step, by words of the head; programs take turns.

  Args:
    lm: A decoder-only model.
    sizes: Words of each head; the vocabulary's are the model's own head.
    gamma: Tokens that a proposal drafts, in gamma + 1 steps.
    runs: Of each program.

  Raises:
    ValueError: A head of no words, or of more than there are.
  """
  for size in sizes:
    if not 1 <= size <= lm.vocab_size:
      raise ValueError(f'Got a head of {size} words; allowed: 1 to '
                       f'{lm.vocab_size}.')
  packed = lm.pack(lm.init_params(jax.random.key(0)))
  calls = {str(size): proposal(*narrowed(lm, packed, size), gamma)
           for size in sizes}
  found = benchmarks.timed(calls, runs)
  return {size: found[str(size)].over(gamma + 1) for size in sizes}


def narrowed(lm: Any, packed: Any, size: int) -> tuple[Any, Any]:
  """The model with a head over its first words; other weights are shared."""
  if size == lm.vocab_size:
    return lm, packed
  tokens = jnp.arange(size, dtype=jnp.int32)
  return reduced.Reduced(lm, size), dict(model=lm.narrow(packed, tokens),
                                         tokens=tokens)


def proposal(lm: Any, packed: Any, gamma: int) -> Callable[[], types.Draft]:
  """A program that drafts as a round does, q over all words included."""
  drafter = chain.Chain(lm, gamma)
  prompt = text.prefix_prompt([[1 + i % 97 for i in range(WIDTH)]], WIDTH)
  state = jax.jit(drafter.init, static_argnums=3)(packed, prompt, None,
                                                  WIDTH + gamma + 1)
  ctx = types.Context(prompt.prefix, prompt.prefix_lengths, None,
                      warp.Warp(jnp.float32(1)))
  run = jax.jit(lambda *args: drafter.propose(*args)[0])
  return lambda: run(packed, state, ctx, decode.row_keys(0, [0]))


def lines(words: int, gamma: int, runs: int) -> list[str]:
  """The figures at `MODEL`'s dimensions, beside a head that costs nothing.

  Raises:
    ValueError: `words` is not between one word and all.
  """
  lm = presets.model(MODEL)
  if not 1 < words < lm.vocab_size:
    raise ValueError(f'Got a head of {words} words; allowed: 2 to '
                     f'{lm.vocab_size - 1}.')
  found = measure(lm, (lm.vocab_size, words, 1), gamma, runs)
  whole, some, least = found.values()
  out = [f'{MODEL}, random weights, a step of {gamma + 1} that draft {gamma} '
         f'tokens, medians of {runs}']
  out += [f'  a head of {size:7,} words: {spread}, '
          f'{spread.median / whole.median:.2f}x'
          for size, spread in found.items()]
  gone = (whole.median - some.median) / (whole.median - least.median)
  return [*out, f'  {words:,} words save {100 * gone:.0f} % of what the whole '
          'head costs']
