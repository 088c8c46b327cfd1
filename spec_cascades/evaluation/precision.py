"""Where greedy texts part when the computation is narrowed, and how narrowly.

A text is a chain of argmaxes: where the two best logits are nearly equal, other
rounding picks the other token, and what follows is another text.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Sequence

import jax
import numpy as np

from spec_cascades import types
from spec_cascades.evaluation import lossless
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import text

QUANTILES = (1, 5, 25, 50)


@dataclasses.dataclass(frozen=True)
class Divergence:
  """Where two texts first differ, seen by the float32 verifier.

  Attributes:
    example: Index of the text.
    position: Of the first token that differs, from 0.
    gap: Best minus second best logit there.
    runner_up: Whether the two texts took the two best tokens.
  """
  example: int
  position: int
  gap: float
  runner_up: bool


def top_two(model: pairs.Model, inputs: Sequence[Sequence[int]],
            outputs: Sequence[Sequence[int]]) -> list[tuple[np.ndarray, ...]]:
  """Per text: gaps [T] of the two best logits, and those tokens [T, 2].

  Teacher-forced in the model's own dtype; EOS is a token.
  """
  width, length = (max(map(len, x)) for x in (inputs, outputs))
  found = []
  for row, tokens in zip(inputs, outputs, strict=True):
    prompt = text.encoder_prompt([row], width)
    before = text.pad([[text.PAD, *tokens[:-1]]], length)
    values, ids = jax.device_get(
        _top_two(model.lm, model.params, prompt, before))
    n = len(tokens)
    found.append((values[0, :n, 0] - values[0, :n, 1], ids[0, :n]))
  return found


@jax.jit(static_argnums=0)
def _top_two(lm: Any, params: Any, prompt: types.Prompt, before: jax.Array):
  cache = lm.init(params, prompt, before.shape[1])
  hidden, _ = lm.extend(params, cache, types.chain(before))
  return jax.lax.top_k(lm.head(params, hidden), 2)


def divergences(texts: Sequence[Sequence[int]],
                others: Sequence[Sequence[int]],
                best: Sequence[tuple[np.ndarray, ...]]) -> list[Divergence]:
  """The first difference of each text with its other, where there is one.

  Args:
    texts: Tokens.
    others: Tokens of as many texts.
    best: `top_two` of `texts`, which agree with `others` before they part.
  """
  found = []
  for i, (one, other) in enumerate(zip(texts, others, strict=True)):
    if list(one) == list(other):
      continue
    at = next(j for j, (a, b) in enumerate(zip(one, other)) if a != b)
    gaps, ids = best[i]
    found.append(Divergence(i, at, float(gaps[at]),
                            {one[at], other[at]} == set(ids[at].tolist())))
  return found


@dataclasses.dataclass(frozen=True)
class Report:
  """Greedy texts of the verifier, in float32 and narrowed.

  Attributes:
    texts: How many.
    gaps: Of every token of the float32 texts, for comparison.
    alone: Narrowed against float32, both by the verifier alone.
    speculative: Narrowed with drafts against float32.
    drafted: Narrowed with drafts against narrowed alone; gaps are float32's.
  """
  texts: int
  gaps: np.ndarray
  alone: list[Divergence]
  speculative: list[Divergence]
  drafted: list[Divergence]


def compare(gamma: int, *, load: Callable[..., pairs.Pair] = pairs.load,
            limit: int | None = None, dtype: str = 'bfloat16') -> Report:
  """Decodes the embedded sentences in float32 and in `dtype`.

  Args:
    gamma: Draft length.
    load: Makes the models, in a `dtype`; the shipped ones if not given.
    limit: Take the first so many sentences; None takes all.
    dtype: Of the narrow computation.
  """
  pair = load()
  inputs = lossless.sentences(pair, limit)
  wide = lossless.measured(gamma, 1, pair=pair, limit=limit)
  narrow = lossless.measured(gamma, 1, pair=load(dtype=dtype),
                             limit=limit)
  ours = top_two(pair.verifier, inputs, wide.alone)
  theirs = top_two(pair.verifier, inputs, narrow.alone)
  return Report(len(inputs), np.concatenate([gaps for gaps, _ in ours]),
                divergences(wide.alone, narrow.alone, ours),
                divergences(wide.alone, narrow.speculative, ours),
                divergences(narrow.alone, narrow.speculative, theirs))


def lines(gamma: int) -> list[str]:
  """The figures of the shipped pair, in words; see `compare`."""
  found = compare(gamma)
  small = ', '.join(f'{level:g} % {x:.3f}' for level, x in zip(
      QUANTILES, np.percentile(found.gaps, QUANTILES)))
  out = [f'gap of the two best float32 logits over {len(found.gaps)} tokens: '
         f'{small}']
  for what, parted in (
      ('bfloat16 alone against float32 alone', found.alone),
      (f'bfloat16, gamma {gamma}, against float32', found.speculative),
      (f'bfloat16, gamma {gamma}, against bfloat16 alone', found.drafted)):
    out.append(f'{what}: {found.texts - len(parted)} of {found.texts} '
               'identical')
    if parted:
      gaps = [x.gap for x in parted]
      spread = ', '.join(f'{x:.3f}' for x in np.percentile(
          gaps, (0, 25, 50, 75, 100)))
      below = 100 * (found.gaps < max(gaps)).mean()
      out.append('  float32 gap where they part (min, quartiles, max): '
                 f'{spread}; {below:.1f} % of all tokens have less than the '
                 'largest')
      out.append(f'  {sum(x.runner_up for x in parted)} of {len(parted)} took '
                 'the two best tokens')
      out += [f'  sentence {x.example + 1}, token {x.position + 1}: '
              f'{x.gap:.4f}' for x in parted]
  return out
