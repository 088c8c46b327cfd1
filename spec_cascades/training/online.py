"""Training while decoding: a drafter learns where its drafts were rejected.

Requests are decoded losslessly, some at a time. Their texts go to a replay
buffer with a weight where a draft was rejected, and every few requests the
drafter is updated on a batch of it: both models read the texts again, so p and
q there are what they are now. What is decoded has the verifier's law whatever
becomes of the drafter, whose parameters are an argument of the compiled loop.

Reference: Liu et al. (2023), Online Speculative Decoding,
https://arxiv.org/abs/2310.07177
"""
from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import theory
from spec_cascades import warp as warp_lib
from spec_cascades.drafters import chain
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import text
from spec_cascades.training import bought
from spec_cascades.training import data
from spec_cascades.training import replay
from spec_cascades.training import train_step


AGAIN = 16            # requests that an evaluation serves once more


@dataclasses.dataclass(frozen=True)
class Online:
  """How requests are decoded, and how the drafter learns from them.

  Requests are the inputs of a corpus, in random order; a training step decodes
  `every` of them and is one update.

  Attributes:
    every: Requests between updates.
    batch: Requests that are decoded at once.
    size: Texts that the replay buffer holds; the oldest leave it.
    rows: Texts of an update, drawn from the buffer.
    accepted: Weight of a text's other tokens, in [0, 1]; 0 trains on rejected
      positions alone.
    gamma: Draft length.
    temperature: Of both models while they decode; 0 is greedy.
    window: Requests over which acceptance is measured.
    only: What a request's line must hold: `{'origin': 'gimp_help'}`, say.
    split: Of the corpus.
    seed: Of the order of requests, of what is drawn, and of batches.
  """
  every: int = 8
  batch: int = 1
  size: int = 256
  rows: int = 16
  accepted: float = 0.0
  gamma: int = 5
  temperature: float = 0.0
  window: int = 50
  only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  split: str = 'train'
  seed: int = 0

  def __post_init__(self):
    for name in ('every', 'batch', 'size', 'rows', 'window'):
      check.interval(f'{name} of Online', getattr(self, name), 1, 10**6,
                     whole=True)
    check.interval('accepted of Online', self.accepted, 0, 1)
    check.gamma(self.gamma)
    if not isinstance(self.only, Mapping):
      raise ValueError(f'Got only={self.only!r}; allowed: a dictionary of what '
                       "a request's line must hold, such as "
                       "{'origin': 'gimp_help'}.")
    check.scalars(targets.Lossless(), warp_lib.Warp(self.temperature))

  def requests(self, corpus: data.ParallelText, count: int) -> list[list[int]]:
    """Tokens of the first `count` requests; inputs that no bucket holds are
    left out.

    Raises:
      ValueError: There are fewer.
    """
    lines = [line for line in corpus.lines(self.split)
             if all(line.get(key) == x for key, x in self.only.items())]
    found, widest = [], max(corpus.buckets)
    for i in np.random.default_rng(self.seed).permutation(len(lines)):
      if len(found) == count:
        break
      row = corpus.encode(lines[i][corpus.source])
      if len(row) <= widest:
        found.append(row)
    if len(found) < count:
      which = f' with {dict(self.only)}' if self.only else ''
      raise ValueError(f'{count} requests are wanted, {self.split}{which} has '
                       f'{len(found)} of up to {widest} tokens; give fewer '
                       'steps or requests a step, or more text.')
    return found


@dataclasses.dataclass(frozen=True)
class Served:
  """A request that was decoded.

  Attributes:
    tokens: Its answer, the end among them.
    rejected: Of each token, whether it replaced a draft.
    calls: Of the verifier.
    drafted: Drafts accepted, and drafts judged.
  """
  tokens: list[int]
  rejected: list[bool]
  calls: int
  drafted: tuple[int, int]


class Session:
  """Serves the requests of a run; what a run is trained on, see `loop`.

  Args:
    online: How.
    update: Who is trained, and its teacher: the drafter and the verifier.
    guide: The verifier's parameters in checkpoint layout.
    corpus: Where requests come from, and how they are put to the models.
    steps: Updates in all.
    max_length: Tokens of an answer at most, with the one that it begins with
      or follows.

  Raises:
    ValueError: There are too few requests.
  """

  def __init__(self, online: Online, update: train_step.Update, guide: Any,
               corpus: data.ParallelText, *, steps: int, max_length: int):
    self.online, self.update, self.corpus = online, update, corpus
    self.length = max_length - 1
    self.requests = online.requests(corpus, steps * online.every)
    self._verifier = update.teacher.pack(guide)
    # On the device: a temperature is no reason to compile again.
    self._warp = warp_lib.Warp(jnp.float32(online.temperature))

  def fresh(self) -> replay.Memory:
    """Nothing served yet."""
    return replay.empty(
        self.online.size, max(self.corpus.buckets), self.length,
        end=self.corpus.end, window=self.online.window)

  def decodes(self, step: int) -> bool:
    """Whether the batch of a step takes the parameters to be made: each does.
    """
    del step
    return True

  def batch(self, step: int, params: Any, memory: replay.Memory
            ) -> tuple[dict[str, np.ndarray], replay.Memory]:
    """Serves the requests of a step with a drafter, and draws from the buffer.

    Args:
      step: From 0.
      params: The drafter's, in checkpoint layout.
      memory: What is left of earlier steps.

    Returns:
      A batch of `online.rows` texts, and the memory with the new ones.
    """
    first = step * self.online.every
    draft_params = self.update.lm.pack(params)
    for start in range(first, first + self.online.every, self.online.batch):
      end = min(start + self.online.batch, first + self.online.every)
      for i, served in zip(range(start, end),
                           self.serve(draft_params, range(start, end))):
        memory = memory.counted(
            len(served.tokens), served.calls, *served.drafted)
        memory = memory.kept(self.requests[i], served.tokens[:self.length],
                             self._weights(served))
    return memory.drawn(self.online.rows, (self.online.seed, step)), memory

  def _weights(self, served):
    weights = np.where(served.rejected, 1, self.online.accepted)
    return weights[:self.length].astype(np.float32)

  def serve(self, draft_params: Any, ids: Sequence[int]) -> list[Served]:
    """Decodes requests at once.

    Args:
      draft_params: The drafter's parameters in decode layout.
      ids: Of the requests, at most `online.batch`; the law of each is fixed by
        its own id.

    Raises:
      ValueError: Logits are not finite.
    """
    lm, online = self.update.teacher, self.online
    rows = [self.requests[i] for i in ids]
    width = next(w for w in self.corpus.buckets if max(map(len, rows)) <= w)
    rows += [[self.corpus.end]] * (online.batch - len(rows))
    prompt = text.capped(pairs.prompt_of(lm)(rows, width), self.length)
    spec = decode.GenSpecSample(
        lm, chain.Chain(self.update.lm, online.gamma),
        prompt.prefix.shape[1] + self.length, eos=self.corpus.end)
    keys = decode.row_keys(online.seed, [*ids, *[0] * (len(rows) - len(ids))])
    tokens, rejected = ([[] for _ in rows] for _ in range(2))
    for done in decode.stream(spec, self._verifier, draft_params, prompt, keys,
                              targets.Lossless(), self._warp):
      for row in range(len(ids)):
        tokens[row] += done.tokens[row].tolist()
        rejected[row] += [x == 'corrected' for x in done.origins[row]]
      state = done.state
    if faults := check.faults(state):
      raise ValueError(f'Requests {ids[0]} to {ids[-1]}: {" ".join(faults)}')
    stats = jax.device_get(state.stats)
    return [Served(tokens[i], rejected[i], int(stats.verifier_calls[i]),
                   (int(stats.accepted[i]),
                    int(stats.accepted[i] + stats.corrected[i])))
            for i in range(len(ids))]

  def where(self, step: int) -> str:
    """The batch of a step, in words."""
    return f'texts of up to {(step + 1) * self.online.every} requests'

  def score(self, params: Any, teacher: Any, memory: replay.Memory
            ) -> tuple[dict[str, float], list[str]]:
    """Figures over the last requests, and a line that compares the first.

    Some of the last are served once more, with the drafter as it is now: its
    tokens per call, and what one teacher-forced pass predicts of them.
    """
    first, last = memory.first(), memory.last()
    now = self._bought(params, teacher, min(int(memory.served),
                                            len(self.requests)))
    figures = dict(
        requests=int(memory.served), tokens_per_call=last.tokens_per_call,
        accepted=last.accepted, first_tokens_per_call=first.tokens_per_call,
        first_accepted=first.accepted, **now.figures)
    lines = [f'{first}; {last}', f'now {now}']
    if now.warning is not None:
      drawn = ', by chance perhaps: they are drawn' * (
          self.online.temperature > 0)
      lines.append(f'{now.warning} ({min(AGAIN, figures["requests"])} texts'
                   f'{drawn})')
    return figures, lines

  def _bought(self, params, teacher, served):
    """What the drafter buys on the last requests."""
    online, draft_params = self.online, self.update.lm.pack(params)
    ids, found = range(max(0, served - AGAIN), served), []
    for start in ids[::online.batch]:
      found += self.serve(draft_params, range(
          start, min(start + online.batch, served)))
    texts = [x.tokens for x in found]
    rates = forced.acceptance(
        bought.pair_of(self.update, params, teacher, self.corpus),
        [self.requests[i] for i in ids], texts, targets.Lossless(),
        warp_lib.Warp(online.temperature))
    return bought.Bought(
        online.temperature, online.gamma,
        theory.tokens_per_call(rates, online.gamma),
        sum(map(len, texts)) / sum(x.calls for x in found))
