"""Times of compiled steps by a roofline, and what follows from them."""
from __future__ import annotations

import dataclasses
from typing import Sequence

import jax
import numpy as np

from spec_cascades import theory
from spec_cascades.evaluation import chips
from spec_cascades.evaluation import tpu


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Seconds of steps by a roofline, and what they say about drafting.

  Attributes:
    times: Of calls of the models.
    sampling: A token of the verifier alone, all logits given.
    judging: Sampling and acceptance of a round, for each of its nodes.
  """
  times: theory.StepTimes
  sampling: float = 0.
  judging: float = 0.

  @property
  def cost(self) -> float:
    """c: a drafter step over the verifier's on one token."""
    return self.times.drafter / self.times.block(1)

  def flatness(self, width: int) -> float:
    """A block of `width` tokens over one token."""
    return self.times.block(width) / self.times.block(1)

  def plan(self, rates: Sequence[float], *, uses_q: bool,
           max_gamma: int = 16) -> theory.Plan:
    """The best draft length and its speed-up, prompts left out.

    Args:
      rates: One, i.i.d., or those by position of a round.
      uses_q: Whether the rule reads q at the last node.
      max_gamma: The longest draft to try.
    """
    given = dict(rate=rates[0]) if len(rates) == 1 else dict(
        rates=np.asarray(rates))
    widths = range(2, min(max_gamma + 1, max(self.times.verifier)) + 1)
    blocks = {1: self.times.block(1) + self.sampling} | {
        width: self.times.block(width) + width * self.judging
        for width in widths}
    return theory.plan({'rule': dict(uses_q=uses_q, **given)},
                       dict(verifier=blocks, drafter=self.times.drafter),
                       max_gamma)[0]


def sane(found: tpu.Compiled, chip: chips.Chip, hop: float = chips.HOP,
         before: tpu.Compiled | None = None) -> bool:
  """Whether the compiler's own estimate of a step can be true.

  Nothing is faster than the roofline, nor than a narrower block, `before`.
  """
  least = max(found.work.seconds(chip, hop), before.optimal if before else 0.)
  return found.optimal >= .99 * least


def estimate(drafter: tpu.Compiled, blocks: dict[int, tpu.Compiled],
             chip: chips.Chip, hop: float = chips.HOP, *, sampling: float = 0.,
             judging: float = 0.) -> Estimate:
  """Times of the steps that fit; `sampling` and `judging` as `Estimate` has."""
  return Estimate(theory.StepTimes(
      {width: x.work.seconds(chip, hop) for width, x in blocks.items()},
      drafter.work.seconds(chip, hop)), sampling, judging)


def shares(programs: tpu.Programs) -> dict[str, float]:
  """Of the weights that a verifier's step reads: a decoder layer, the head."""
  decoder = programs.params['decoder']
  # Keys and values of what an encoder reads are there before the first step.
  once = lambda path: 'encoder_decoder_attention' in path and any(
      name in part for part in path for name in ('key', 'value'))
  size = lambda tree: sum(
      x.size for path, x in jax.tree_util.tree_leaves_with_path(tree)
      if not once([str(getattr(k, 'key', k)) for k in path]))
  tied = programs.verifier.config.logits_via_embedding
  head = size(programs.params['token_embedder']['embedding'] if tied
              else decoder['logits_dense'])
  whole = head + sum(size(x) for name, x in decoder.items()
                     if name.startswith('layers_'))
  return dict(layer=size(decoder['layers_0']) / whole, head=head / whole)


def passes(step: tpu.Compiled, chip: chips.Chip) -> float:
  """Seconds of a step that goes over its arrays many times.

  Every pass counts: bytes are the compiler's own count, and so include what
  stays on the chip.
  """
  work = step.work
  return dataclasses.replace(work, nbytes=step.counted).seconds(chip)
