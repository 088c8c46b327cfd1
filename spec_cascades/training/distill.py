"""Sequence-level distillation: a corpus whose targets a verifier wrote.

Reference: Kim & Rush (2016), Sequence-Level Knowledge Distillation,
https://arxiv.org/abs/1606.07947; greedy instead of beam search, as drafts are
compared with the verifier's own decoding.
"""
from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import pathlib
import time
from typing import Callable

import jax
import numpy as np

from spec_cascades import check
from spec_cascades import checkpoints
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.data import files
from spec_cascades.drafters import chain
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.models import products
from spec_cascades.training import data
from spec_cascades.training import settings
from spec_cascades.training import start
from spec_cascades.training import trajectories
from spec_cascades.training import writing

# Of a corpus: how its lines are put to the verifier, and read from its answers.
ASKED = ('source', 'target', 'asking', 'answer', 'buckets', 'cut',
         'target_width')


@dataclasses.dataclass(frozen=True)
class Shard:
  """Chunk i of a corpus is that of the process with index i modulo count."""
  index: int = 0
  count: int = 1

  def __post_init__(self):
    check.interval('count of Shard', self.count, 1, 10**6, whole=True)
    check.interval('index of Shard', self.index, 0, self.count - 1, whole=True)


def distill(corpus: data.ParallelText, verifier: str, output: str, *,
            drafter: str | None = None, gamma: int = 5,
            temperature: float = 0.0, sentences: int | None = None,
            chunk: int = 1024, batch: int = 128, seed: int = 0,
            guesses: int = 0, shard: Shard = Shard(),
            mesh: meshes.Mesh = meshes.Mesh(),
            log: Callable[[str], None] = print) -> None:
  """Writes train.jsonl with the verifier's translations beside the old splits.

  Finished chunks are kept: the same call goes on after an interruption. Several
  processes may share an output, each with a `shard` of its own; the one that
  finds all chunks there joins them.

  Args:
    corpus: What to translate. Pairs longer than its widest bucket are left
      out, as they are in training.
    verifier: A checkpoint of any format.
    output: The new corpus; its validation and test splits are the old ones.
    drafter: Another, that drafts for it: the translations are still the
      verifier's own, sooner.
    gamma: Length of its drafts.
    temperature: Of what is drawn; 0 is greedy.
    sentences: Training sentences to translate, chosen at random; None is all.
    chunk: Sentences between writes.
    batch: Rows of a decoding call.
    seed: Of the choice, and of what is drawn.
    guesses: Of Jacobi decoding, whose states are kept in each line, see
      `trajectories`; greedy, without a drafter. 0 keeps none.
    shard: Which chunks to write.
    mesh: Devices that decode together, as in a sweep.
    log: Receives lines of progress.

  Raises:
    ValueError: The vocabularies differ, a number is out of its domain, no
      sentence fits, or `output` was begun by another call.
  """
  for name, number in (('chunk', chunk), ('batch', batch)):
    check.interval(name, number, 1, 10**9, whole=True)
  if sentences is not None:
    check.interval('sentences', sentences, 1, 10**9, whole=True,
                   hint='None is all.')
  check.interval('seed', seed, 0, 2**32 - 1, whole=True)
  if guesses and (drafter is not None or temperature):
    raise ValueError(f'Got guesses={guesses} with a drafter or a temperature; '
                     'allowed: neither, for greedy Jacobi trajectories.')
  folder = pathlib.Path(output).expanduser()
  if corpus.directory and folder.resolve() == pathlib.Path(
      corpus.directory).expanduser().resolve():
    raise ValueError(f'{output} is the corpus itself, whose train.jsonl would '
                     'be replaced; give another output.')
  writer = _Writer(corpus, verifier, drafter, gamma, temperature, batch, seed,
                   guesses, mesh.layouts() or (None, None))
  lines = _chosen(corpus, sentences, seed)
  folder.mkdir(parents=True, exist_ok=True)
  drawn = dict(temperature=temperature, seed=seed) if temperature else {}
  kept = dict(guesses=guesses) if guesses else {}
  files.claim(folder / 'call.json', dict(
      verifier=pairs.digest(verifier), chunk=chunk, lines=_digest(lines),
      **_asked(corpus), **drawn, **kept))
  for split in corpus.splits:
    if split != 'train':
      files.write_atomically(folder / f'{split}.jsonl',
                             _jsonl(corpus.lines(split)))
  parts = range(0, len(lines), chunk)
  _write(folder, writer, lines, parts, shard, log)
  _join(folder, parts, log)


def _write(folder, writer, lines, parts, shard, log):
  """The parts of a shard that are not there yet."""
  began = time.time()
  todo = [i for i in parts[shard.index::shard.count]
          if not _part(folder, i).is_file()]
  for done, first in enumerate(todo, 1):
    last = min(first + parts.step, len(lines))
    files.write_atomically(_part(folder, first),
                           writer(lines[first:last], first))
    left = (len(todo) - done) * (time.time() - began) / done
    log(f'{last}/{len(lines)} sentences  '
        f'{writer.tokens / writer.calls:.2f} tokens a call  '
        f'left {left / 60:.0f} min'
        + f'  {writer.cut} cut before their end' * bool(writer.cut))


def _join(folder, parts, log):
  """All parts as train.jsonl, if they are there."""
  missing = [i for i in parts if not _part(folder, i).is_file()]
  if missing:
    log(f'{len(missing)} of {len(parts)} chunks are still to come from other '
        'processes; the last one joins them.')
    return
  files.write_atomically(folder / 'train.jsonl', ''.join(
      _part(folder, i).read_text(encoding='utf-8') for i in parts))


def _chosen(corpus, sentences, seed):
  """Training lines in random order, the fitting ones; ValueError if none."""
  encode, widest = corpus.encode, max(corpus.buckets)
  lines = corpus.lines('train')
  order = np.random.default_rng(seed).permutation(len(lines))
  fits = (lines[i] for i in order
          if len(encode(lines[i][corpus.source])) <= widest)
  found = list(itertools.islice(fits, sentences))
  if not found:
    raise ValueError(f'None of {len(lines)} training sentences has up to '
                     f'{widest} tokens; give wider buckets, or more text.')
  return found


class _Writer:
  """Loads the models once; turns lines into lines with other targets."""

  def __init__(self, corpus, verifier, drafter, gamma, temperature, batch,
               seed, guesses, layouts):
    check.interval('guesses', guesses, 0, 1000, whole=True)
    check.scalars(targets.Lossless(), warp.Warp(temperature))
    large, small = layouts
    found = start.read(checkpoints.source_of(verifier), large)
    start.check(found.lm, corpus, _room(corpus, max(corpus.buckets)))
    start.check_words(verifier, found, corpus.vocabulary)
    self._drafter = dict()
    if drafter is not None:
      lm, params = start.teacher(drafter, found.lm, corpus.vocabulary, small)
      lm = meshes.placed(lm, small)
      self._drafter = dict(drafter=chain.Chain(lm, gamma),
                           draft_params=lm.pack(params))
    self._lm = meshes.placed(found.lm, large)
    self._params = products.compacted(self._lm.pack(found.params))
    self._corpus, self._batch = corpus, batch
    self._temperature, self._seed = temperature, seed
    self._guesses = guesses
    self.tokens = self.calls = self.cut = 0

  def __call__(self, lines, first) -> str:
    """JSON lines from number `first` on; those of a width go together."""
    corpus, out = self._corpus, {}
    encoded = [corpus.encode(line[corpus.source]) for line in lines]
    for low, width in zip((0, *corpus.buckets), corpus.buckets):
      rows = [i for i, row in enumerate(encoded) if low < len(row) <= width]
      key = jax.random.fold_in(jax.random.key(self._seed), first)
      length = _room(corpus, width) - 1
      texts, calls = self._texts(
          [encoded[i] for i in rows], jax.random.fold_in(key, width),
          width=width, length=length, batch=self._batch, end=corpus.end)
      self.tokens, self.calls = (
          self.tokens + sum(len(text['tokens']) for text in texts),
          self.calls + calls)
      # A short input may leave room for more than a long one does.
      out |= {i: trajectories.cut(text, length) for i, text in zip(rows, texts)}
    self.cut += sum(not self._ended(text) for text in out.values())
    return _jsonl({**line, corpus.target: corpus.decode(out[i]['tokens']),
                   **self._beside(out[i])} for i, line in enumerate(lines))

  def _ended(self, text):
    return text['tokens'][-1:] == [self._corpus.end]

  def _beside(self, text):
    """What a line has besides texts."""
    kept = {trajectories.KEY: text} if self._guesses else {}
    return kept if self._ended(text) else {**kept, data.UNENDED: True}

  def _texts(self, rows, key, **sizes):
    """Trajectories, which have no states if there are to be no guesses."""
    if self._guesses:
      return trajectories.write(self._lm, self._params, rows,
                                guesses=self._guesses, **sizes)
    texts, calls = writing.write(
        self._lm, self._params, rows, temperature=self._temperature, seed=key,
        **self._drafter, **sizes)
    return [dict(tokens=text, states=[]) for text in texts], calls


def _digest(lines):
  texts = json.dumps(lines, sort_keys=True).encode()
  return hashlib.sha256(texts).hexdigest()


def _jsonl(lines):
  return ''.join(json.dumps(line, ensure_ascii=False) + '\n' for line in lines)


def _room(corpus, width):
  """Tokens of a translation at most, and one that begins it."""
  return (corpus.target_width + 1 if corpus.target_width else
          min(2 * width, max(corpus.buckets) + 8))


def _asked(corpus):
  """By name, what of a corpus decides a text besides its lines."""
  found = {}
  for name in ASKED:
    value = getattr(corpus, name)
    found |= settings.flat(tuple(value) if name == 'buckets' else value,
                           f'corpus.{name}')
  return found


def _part(folder, start):
  return folder / f'train-{start:07d}.part.jsonl'
