"""Whose texts a student is trained on: the corpus's, or what it writes itself.

A teacher's texts are a corpus of their own, see `distill`; it may be mixed with
the student's here.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from spec_cascades import check
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.evaluation import text
from spec_cascades.training import writing

WRITTEN = 'written'        # of a batch: of each row, whether the student did


@dataclasses.dataclass(frozen=True)
class OnPolicy:
  """A share of the batches has targets that the student has just written.

  Attributes:
    share: Of the batches, in [0, 1]; 0 is the corpus alone.
    temperature: Of the student while it writes; 0 is greedy.
    seed: Of the choice of batches and of what is drawn.

  Reference: Zhou et al. (2024), DistillSpec, https://arxiv.org/abs/2310.08461
  """
  share: float = 0.0
  temperature: float = 1.0
  seed: int = 0

  def __post_init__(self):
    check.interval('share of OnPolicy', self.share, 0, 1)
    check.scalars(targets.Lossless(), warp.Warp(self.temperature))

  def chosen(self, step: int) -> bool:
    """Whether the batch of a step is rewritten: a function of the seed."""
    rng = np.random.default_rng((self.seed, step))
    return bool(rng.random() < self.share)

  def __call__(self, batch: dict[str, np.ndarray], lm: Any, params: Any,
               step: int, *, end: int) -> dict[str, np.ndarray]:
    """The batch of a step, with the student's own targets if it is chosen.

    Args:
      batch: One of `data.ParallelText`.
      lm: The student; if it lies on a mesh, it writes there.
      params: Its parameters in checkpoint layout.
      step: The training step, of which noise is a function.
      end: Token that ends a target.
    """
    if not self.share:
      return batch
    chosen = self.chosen(step)
    batch = dict(batch, **{WRITTEN: np.full(len(batch['targets']), chosen)})
    if not chosen:
      return batch
    (rows, width), length = batch['inputs'].shape, batch['targets'].shape[1]
    inputs = [row[:n].tolist() for row, n in zip(
        batch['inputs'], batch['input_lengths'])]
    texts, _ = writing.write(
        lm, lm.pack(params), inputs, width=width, length=length, batch=rows,
        end=end, temperature=self.temperature,
        seed=jax.random.fold_in(jax.random.key(self.seed), step))
    lengths = np.array([len(tokens) for tokens in texts])
    weights = (np.arange(length) < lengths[:, None]).astype(np.float32)
    # Pairs that only fill up a batch stay without weight.
    weights *= batch['weights'].max(1, keepdims=True)
    return dict(batch, targets=text.pad(texts, length), weights=weights)
