"""Sequence-level distillation: a corpus whose targets a verifier wrote.

Reference: Kim & Rush (2016), Sequence-Level Knowledge Distillation,
https://arxiv.org/abs/1606.07947; greedy instead of beam search, as drafts are
compared with the verifier's own decoding.
"""
from __future__ import annotations

import hashlib
import itertools
import json
import pathlib
import shutil
import time
from typing import Callable

import numpy as np

from spec_cascades import checkpoints
from spec_cascades.data import files
from spec_cascades.evaluation import pairs
from spec_cascades.training import data
from spec_cascades.training import quality
from spec_cascades.training import start


def distill(corpus: data.ParallelText, verifier: str, output: str, *,
            sentences: int | None = None, chunk: int = 1024, batch: int = 128,
            seed: int = 0, log: Callable[[str], None] = print) -> None:
  """Writes train.jsonl with the verifier's translations beside the old splits.

  Finished chunks are kept: the same call goes on after an interruption.

  Args:
    corpus: What to translate. Pairs longer than its widest bucket are left
      out, as they are in training.
    verifier: A checkpoint of any format.
    output: The new corpus; its validation and test splits are the old ones.
    sentences: Training sentences to translate, chosen at random; None is all.
    chunk: Sentences between writes.
    batch: Rows of a decoding call.
    seed: Of the choice.
    log: Receives lines of progress.

  Raises:
    ValueError: The vocabularies differ, or `output` was begun by another call.
  """
  if sentences is not None and sentences < 1:
    raise ValueError(f'Got {sentences} sentences; allowed: 1 or more, or None '
                     'for all.')
  found = checkpoints.load(verifier)
  lm, params, _ = found
  start.check(lm, corpus, _room(corpus, max(corpus.buckets)))
  start.check_words(verifier, found, corpus.vocabulary)
  folder = pathlib.Path(output).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  lines = _chosen(corpus, sentences, seed)
  texts = json.dumps(lines, sort_keys=True).encode()
  call = dict(verifier=pairs.digest(verifier), chunk=chunk,
              lines=hashlib.sha256(texts).hexdigest())
  _claim(folder / 'call.json', call)
  for split in ('validation', 'test'):
    shutil.copy(pathlib.Path(corpus.directory).expanduser() / f'{split}.jsonl',
                folder / f'{split}.jsonl')
  parts, began = range(0, len(lines), chunk), time.time()
  todo = [i for i in parts if not _part(folder, i).is_file()]
  for done, first in enumerate(todo, 1):
    files.write_atomically(_part(folder, first), _translated(
        lm, params, corpus, lines[first:first + chunk], batch))
    left = (len(todo) - done) * (time.time() - began) / done
    log(f'{min(first + chunk, len(lines))}/{len(lines)} sentences  '
        f'left {left / 60:.0f} min')
  files.write_atomically(folder / 'train.jsonl', ''.join(
      _part(folder, i).read_text(encoding='utf-8') for i in parts))


def _chosen(corpus, sentences, seed):
  """Training lines in random order, the fitting ones."""
  encode, widest = corpus.encode, max(corpus.buckets)
  lines = corpus.lines('train')
  order = np.random.default_rng(seed).permutation(len(lines))
  fits = (lines[i] for i in order
          if len(encode(lines[i][corpus.source])) <= widest)
  return list(itertools.islice(fits, sentences))


def _translated(lm, params, corpus, lines, batch):
  """JSON lines with the targets replaced; sentences of a width go together."""
  encode, out = corpus.encode, {}
  for low, width in zip((0, *corpus.buckets), corpus.buckets):
    rows = [i for i, line in enumerate(lines)
            if low < len(encode(line[corpus.source])) <= width]
    found = quality.translate(
        lm, params, corpus, [lines[i][corpus.source] for i in rows],
        width=width, max_length=_room(corpus, width), batch=batch)
    out |= dict(zip(rows, found))
  return ''.join(
      json.dumps({**line, corpus.target: out[i]}, ensure_ascii=False) + '\n'
      for i, line in enumerate(lines))


def _room(corpus, width):
  """Tokens of a translation at most."""
  return min(2 * width, max(corpus.buckets) + 8)


def _claim(path, call):
  """Notes what makes this output; refuses another call's."""
  if path.is_file() and json.loads(path.read_text()) != call:
    raise ValueError(f'{path} is of another call; give another output.')
  files.write_atomically(path, json.dumps(call) + '\n')


def _part(folder, start):
  return folder / f'train-{start:07d}.part.jsonl'
