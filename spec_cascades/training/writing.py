"""Texts that a model writes while another, or itself, is trained."""
from __future__ import annotations

from typing import Any, Sequence

import jax
from jaxtyping import Array, Key
import numpy as np

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import fetching
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import null
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import text


def write(lm: Any, params: Any, rows: Sequence[Sequence[int]], *, width: int,
          length: int, batch: int, end: int, drafter: Any = null.Null(),
          draft_params: Any = None, temperature: float = 0.0,
          seed: int | Key[Array, ''] = 0) -> tuple[list[list[int]], int]:
  """What a model answers, `batch` rows at a time through one program.

  On a mesh of several processes all of them have to ask, and all get it.

  Args:
    lm: A `LanguageModel`; if it lies on a mesh, rows are dealt out there.
    params: Its parameters in decode layout.
    rows: Tokens of the inputs.
    width: Of the inputs, at least the longest.
    length: New tokens of a row, at most.
    batch: Rows of a call.
    end: Token that ends an answer.
    drafter: Who drafts; the law of the answers is the model's own whoever does.
    draft_params: The drafter's parameters.
    temperature: Of the model, and of the drafter.
    seed: Of what is drawn.

  Returns:
    New tokens of each row, the end among them, and the calls of `lm` in all.

  Raises:
    ValueError: A row is longer than `width`, or logits are not finite.
  """
  make, texts, calls = pairs.prompt_of(lm), [], 0
  batch += -batch % meshes.groups(lm)
  for first in range(0, len(rows), batch):
    part = list(rows[first:first + batch])
    prompt = text.capped(make(part + [[end]] * (batch - len(part)), width),
                         length)
    spec = decode.GenSpecSample(
        lm, drafter, prompt.prefix.shape[1] + length, eos=end)
    starts = np.asarray(prompt.prefix_lengths)[:len(part)].tolist()
    prompt, keys = meshes.rows(lm, (
        prompt, decode.row_keys(seed, range(first, first + batch))))
    state = fetching.whole(spec(
        params, draft_params, prompt, keys, targets.Lossless(),
        warp.Warp(temperature)).replace(cache=None, drafter=None))
    check.finite(state.fault[:len(part)], first)
    texts += [tokens for tokens, *_ in programs.outputs_of(state, starts)]
    calls += int(jax.device_get(state.stats.rounds)[:len(part)].sum())
  return texts, calls
