"""Batches of parallel text: a pure function of the seed and the step.

A batch depends on nothing but (seed, step), so a run that resumes at a step
sees what it would have seen.
"""
from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys

import numpy as np

from spec_cascades.evaluation import examples
from spec_cascades.evaluation import text


@dataclasses.dataclass(frozen=True)
class ParallelText:
  """Token pairs from JSON lines, grouped by length.

  Attributes:
    directory: Holds train.jsonl, validation.jsonl and test.jsonl, as
      scripts/build_corpus.py writes them.
    vocabulary: Tokens of both languages.
    source: Key of the input text.
    target: Key of the output text.
    buckets: Widths of batches; a pair goes to the first that holds both sides.
      Longer pairs are left out.
    cut: Inputs are cut there, in tokens with EOS; None leaves long ones out.
    target_width: Of targets, where inputs are much longer: then buckets are of
      inputs alone. Longer targets are left out.
    tokens_per_batch: Target slots of a batch, whatever its width.
    seed: Of the order.
  """
  directory: str
  vocabulary: text.Vocabulary
  source: str = 'en'
  target: str = 'de'
  buckets: tuple[int, ...] = (12, 16, 24, 32, 48, 64)
  cut: int | None = None
  target_width: int | None = None
  tokens_per_batch: int = 2048
  seed: int = 0

  def lines(self, split: str) -> list[dict]:
    """The examples of a split as they are in its file."""
    path = pathlib.Path(self.directory).expanduser() / f'{split}.jsonl'
    if not path.is_file():
      raise ValueError(f'No corpus at {path}; make it with '
                       'scripts/build_corpus.py.')
    with path.open(encoding='utf-8') as file:
      return [json.loads(line) for line in file]

  @functools.cached_property
  def train(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Per bucket, padded sources and targets of the training split."""
    return self.bucketed('train')

  def bucketed(self, split: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Per bucket width, sources [n, width] and targets [n, width]."""
    encode = self.vocabulary.model.encode
    lines = self.lines(split)
    sources, targets = (encode([line[key] for line in lines])
                        for key in (self.source, self.target))
    groups = {width: [] for width in self.buckets}
    for source, target in zip(sources, targets):
      pair = source[:self.cut and self.cut - 1], target
      longest = max(map(len, pair[:1] if self.target_width else pair)) + 1
      width = next((w for w in self.buckets if longest <= w), None)
      if width is not None and len(target) < self._target_width(width):
        groups[width].append([[*side, text.EOS] for side in pair])
    return {width: (text.pad([x for x, _ in pairs], width),
                    text.pad([y for _, y in pairs], self._target_width(width)))
            for width, pairs in groups.items() if pairs}

  def _target_width(self, width: int) -> int:
    return self.target_width or width

  def encode(self, source: str) -> list[int]:
    """Tokens of an input as the model is given them."""
    return examples.encode(self.vocabulary, source, limit=sys.maxsize,
                           cut=self.cut)

  def rows(self, width: int) -> int:
    """Examples in a batch of this width."""
    return max(1, self.tokens_per_batch // self._target_width(width))

  @property
  def steps_per_epoch(self) -> int:
    return sum(len(s) // self.rows(w) for w, (s, _) in self.train.items())

  @functools.lru_cache(maxsize=2)
  def _plan(self, epoch: int) -> list[tuple[int, np.ndarray]]:
    """The batches of an epoch: widths and rows."""
    rng = np.random.default_rng((self.seed, epoch))
    plan = []
    for width, (sources, _) in self.train.items():
      order, rows = rng.permutation(len(sources)), self.rows(width)
      whole = len(order) // rows * rows
      plan += [(width, part) for part in order[:whole].reshape(-1, rows)]
    return [plan[i] for i in rng.permutation(len(plan))]

  def batch(self, step: int) -> dict[str, np.ndarray]:
    """Arrays `inputs`, `shifted`, `targets` [rows, width], of a step."""
    epoch, i = divmod(step, self.steps_per_epoch)
    width, rows = self._plan(epoch)[i]
    sources, targets = self.train[width]
    return as_batch(sources[rows], targets[rows])


def as_batch(sources: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
  """What a T5 is trained on: targets, and the same moved right by one."""
  shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
  return dict(inputs=sources, shifted=shifted, targets=targets)
