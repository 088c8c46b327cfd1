"""Batches of parallel text: a pure function of the seed and the step.

A batch depends on nothing but (seed, step), so a run that resumes at a step
sees what it would have seen. It is the same for every family of models: inputs,
and targets that end. What a model makes of it is its own `teacher_forced`: an
encoder reads the inputs, or they are the prefix that the targets go on from.

Of several processes each reads a part of the texts to train on, and gives its
tokens to the others: an epoch's order is drawn over all of them.
"""
from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys
from typing import Any, Sequence

import numpy as np

from spec_cascades import check
from spec_cascades import hosts
from spec_cascades.data import shares
from spec_cascades.evaluation import asking as asking_lib
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import text
from spec_cascades.training import epochs
from spec_cascades.training import packing
from spec_cascades.training import trajectories

TARGET = '{target}'
ALL = shares.ALL                  # the part of a split that is all of it
SPLITS = ('train', 'validation', 'test')
LARGEST = 2**63 - 1                # of a number here
SPACE = '\u2581'                   # SentencePiece's
UNENDED = 'unended'                # key of a line whose target was cut


@dataclasses.dataclass(frozen=True)
class ParallelText:
  """Token pairs from JSON lines, grouped by length.

  Attributes:
    directory: Holds train.jsonl, validation.jsonl and test.jsonl, as
      scripts/build_corpus.py writes them; where a line has no
      `near_duplicate`, it is none; a target that is `unended` is trained on
      without an end. None with a `reader`.
    vocabulary: Tokens of both languages: a `text.Vocabulary`, or a
      checkpoint's tokenizer.
    source: Key of the input text.
    target: Key of the output text.
    asking: How an input is put to the model, and what ends an answer.
    answer: Text of an answer; `{target}` stands for the output. Where a prompt
      of words ends without a space, it begins with one.
    buckets: Widths of batches; a pair goes to the first that holds both sides.
      Longer pairs are left out.
    cut: Inputs are cut there, in tokens with EOS, which an encoder's have;
      None leaves long ones out.
    target_width: Of targets, where inputs are much longer: then buckets are of
      inputs alone. Longer targets are left out.
    tokens_per_batch: Target slots of a batch, whatever its width.
    seed: Of the order, and of which pairs share a row.
    packed: Rows are as wide as the widest bucket and hold several pairs while
      training, see `packing`; those of an epoch that fill no batch are used,
      too.
    more: Directories of further text, of which train.jsonl is trained on too.
    guesses: Where lines have Jacobi trajectories, see `trajectories`: guesses
      of a state. Their tokens are the targets, and there are arrays of their
      states. 0: trajectories are not read.
    reader: Reads splits in place of a directory, such as
      `seqio_lines.SeqioLines`: called as `numbered` is it gives the same, and
      it has `splits`; and may have `said`, a line for when a run begins, and
      `mixing`, the rates of `epochs.mixed`.
  """
  directory: str | None
  vocabulary: Any
  source: str = 'en'
  target: str = 'de'
  asking: asking_lib.Asking = asking_lib.Asking()
  answer: str = TARGET
  buckets: tuple[int, ...] = (12, 16, 24, 32, 48, 64)
  cut: int | None = None
  target_width: int | None = None
  tokens_per_batch: int = 2048
  seed: int = 0
  packed: bool = False
  more: tuple[str, ...] = ()
  guesses: int = 0
  reader: Any = None

  def __post_init__(self):
    if (self.directory is None) == (self.reader is None):
      raise ValueError(f'Got directory={self.directory!r} and '
                       f'reader={self.reader!r}; give one of the two.')
    _check_widths(self.buckets)
    for name, low, none in (
        ('cut', 1, True), ('target_width', 1, True),
        ('tokens_per_batch', 1, False), ('seed', 0, False)):
      value = getattr(self, name)
      if not (none and value is None):
        check.interval(
            f'{name} of ParallelText', value, low, LARGEST, whole=True,
            hint='None is allowed, too.' if none else '')
    if isinstance(self.more, str):
      raise ValueError(f'Got more={self.more!r}; allowed: a tuple of '
                       f'directories, such as ({self.more!r},).')
    if not isinstance(self.answer, str) or self.answer.count(TARGET) != 1:
      raise ValueError(f'Got the answer {self.answer!r}; it has to hold '
                       f'{TARGET} once, which stands for the output.')
    if self.guesses and self.packed:
      raise ValueError(f'Got guesses={self.guesses} and packed texts; allowed: '
                       'one text a row where there are trajectories.')

  def lines(self, split: str) -> list[dict]:
    """The examples of a split in order; see `numbered`."""
    return [line for _, line in sorted(self.numbered(split),
                                       key=lambda x: x[0])]

  def numbered(self, split: str, part: tuple[int, int] = ALL
               ) -> list[tuple[int, dict]]:
    """Examples of a split as they are in its file, by numbers that order them.

    Args:
      split: Its name.
      part: (i, n): the i-th of n parts, which share no example and together
        are the split, whatever n is.

    Raises:
      ValueError: There is no such file, or a text is missing in it.
    """
    if self.reader is not None:
      return self.reader(split, part)
    found, before = [], 0
    for path in self._paths(split):
      found += [(before + start, self._line(line, shares.Place(path, start)))
                for start, line in self._raw(path, part)]
      before += path.stat().st_size
    return found

  def _paths(self, split):
    more = self.more if split == 'train' else ()
    return [_path(directory, split) for directory in (self.directory, *more)]

  def _place(self, split, number):
    """What to call the example of a number."""
    if self.reader is not None:
      return f'{split}, example {number + 1}'
    for path in self._paths(split):
      if number < (size := path.stat().st_size):
        return shares.Place(path, number)
      number -= size

  def _raw(self, path: pathlib.Path, part) -> list[tuple[int, str]]:
    if not path.is_file():
      raise ValueError(f'No corpus at {path}; make it with '
                       'scripts/build_corpus.py, or write one JSON object '
                       f'a line with {self.source} and {self.target}.')
    try:
      return shares.lines(path, part)
    except (OSError, UnicodeDecodeError) as error:
      raise ValueError(f"{path} can't be read ({error}); it has to be UTF-8 "
                       'that you may read.') from None

  def _line(self, raw: str, where: Any) -> dict:
    line = _parsed(raw, where)
    if not all(isinstance(line.get(key), str)
               for key in (self.source, self.target)):
      raise ValueError(f'{where} has no text {self.source} or no text '
                       f'{self.target}; its keys are {", ".join(line)}.')
    return line

  @property
  def splits(self) -> tuple[str, ...]:
    """Those of train, validation and test that are there."""
    if self.reader is not None:
      return self.reader.splits
    return tuple(x for x in SPLITS if _path(self.directory, x).is_file())

  @functools.cached_property
  def train(self) -> dict[int, dict[str, np.ndarray]]:
    """The training split, see `bucketed`; `packing.packed` if it is to be.

    Where there are several processes, all have to ask: each reads its part.
    """
    return self._read[0]

  @functools.cached_property
  def _read(self):
    """`train`, and the numbers of its examples by bucket."""
    part, widest = (hosts.index(), hosts.count()), max(self.buckets)
    groups = self._grouped(sum(hosts.exchanged(hosts.together(
        lambda: self._encoded('train', part))), []))
    found = self._arrays(groups)
    if self.guesses and found and not any(
        (x['places'] >= 0).any() for x in found.values()):
      raise ValueError(f'Got guesses={self.guesses}, but no line to train on '
                       f'has a {trajectories.KEY}; write the corpus with '
                       "scripts/distill.py and its guesses, or set 0.")
    if self.packed and found:
      widths = widest, self._target_width(widest)
      found = {widest: packing.packed(found, widths, seed=self.seed)}
    return found, {width: np.array([number for number, *_ in rows])
                   for width, rows in groups.items()}

  def bucketed(self, split: str) -> dict[int, dict[str, np.ndarray]]:
    """Per bucket width W all pairs of a split, padded on the right.

    Returns:
      `inputs` [n, W] and `targets` [n, T] with 0 as padding, `input_lengths`
      [n], and `weights` [n, T], 1 where a target is; with `guesses` what
      `trajectories.padded` gives.
    """
    return self._arrays(self._grouped(self._encoded(split)))

  def _encoded(self, split, part=ALL):
    """Number, input, target and states of the examples that are not long."""
    found, widest = [], max(self.buckets)
    for number, line in self.numbered(split, part):
      where, own = self._place(split, number), None
      if self.guesses:
        own = trajectories.read(line, self.guesses, where)
      target, states = own or (self._answered(line[self.target]), [])
      if line.get(UNENDED) is True and not own:
        target = target[:-1]
      source = self.encode(line[self.source], where)
      if (len(source) <= widest
          and len(target) <= self._target_width(widest)):
        found.append((number, source, target, states))
    return found

  def _grouped(self, pairs):
    """Examples by bucket, in the order of their numbers."""
    groups = {width: [] for width in self.buckets}
    for number, source, target, states in sorted(pairs, key=lambda x: x[0]):
      longest = len(source)
      if not self.target_width:
        longest = max(longest, len(target))
      width = next(w for w in self.buckets if longest <= w)
      groups[width].append((number, source, target, states))
    return {width: rows for width, rows in groups.items() if rows}

  def _arrays(self, groups):
    found = {}
    for width, rows in groups.items():
      _, *pairs, states = zip(*rows)
      found[width] = _padded(*pairs, width, self._target_width(width))
      if self.guesses:
        found[width] |= trajectories.padded(states, self.guesses)
    return found

  def _target_width(self, width: int) -> int:
    return self.target_width or width

  def encode(self, source: str, what: Any = 'The input') -> list[int]:
    """Tokens of an input as the model is given them.

    Raises:
      ValueError: There are none, or there is no chat template.
    """
    asked = self.asking(self.vocabulary, source)
    tokens = examples.encode(self.vocabulary, asked, limit=sys.maxsize,
                             what=what, cut=self.cut)
    if not tokens:
      raise ValueError(f'{what} has no tokens; leave it out.')
    return tokens

  def _answered(self, target: str) -> list[int]:
    """Tokens of an answer, its end among them."""
    words = self.answer.replace(TARGET, target)
    if words.startswith(' ') and self._spaced:
      words = words[1:]
    return [*self.vocabulary.bare(words), self.end]

  @functools.cached_property
  def _spaced(self) -> bool:
    """Whether the vocabulary puts a space before a text by itself."""
    first, *_ = self.vocabulary.bare('a')
    return self.vocabulary.piece(first).startswith(SPACE)

  @functools.cached_property
  def end(self) -> int:
    """The token that ends an answer."""
    return self.asking.end_token(self.vocabulary)

  def decode(self, tokens: Sequence[int]) -> str:
    """The output in an answer's tokens: `answer` without what is around it."""
    before, behind = self.answer.split(TARGET)
    found = self.asking.answer(self.vocabulary, tokens)
    return found.removeprefix(before).removesuffix(behind)

  def rows(self, width: int) -> int:
    """Examples in a batch of this width."""
    return max(1, self.tokens_per_batch // self._target_width(width))

  @property
  def widest_target(self) -> int:
    """Most tokens of a target, its end among them."""
    return self._target_width(max(self.buckets))

  @property
  def unused(self) -> dict[int, int]:
    """Pairs for training, by bucket, of those that fill no batch."""
    return {width: len(x['inputs']) for width, x in self.train.items()
            if not self._epochs.batches(width)}

  @property
  def room(self) -> int:
    """Most tokens of an input and its target together."""
    return max(self.buckets) + self.widest_target

  @functools.cached_property
  def steps_per_epoch(self) -> int:
    """Batches of the training split; ValueError if there is none."""
    if not (found := sum(map(self._epochs.batches, self.train))):
      sizes = ', '.join(f'{len(x["inputs"])} of {width}'
                        for width, x in self.train.items()) or 'none'
      raise ValueError(
          f'No batch of {self.tokens_per_batch} target tokens can be filled: '
          f'pairs that fit, by bucket: {sizes}. Give wider buckets, fewer '
          'tokens_per_batch, or more text.')
    return found

  @functools.cached_property
  def _epochs(self) -> epochs.Epochs:
    """The batches of each epoch."""
    found, numbers = self._read
    rates = getattr(self.reader, 'mixing', ())
    # Of packed rows the last holds nothing: it fills up a batch.
    return epochs.Epochs(
        {width: len(x['inputs']) - self.packed for width, x in found.items()},
        {width: self.rows(width) for width in found}, seed=self.seed,
        filled=self.packed,
        parts=epochs.mixed(numbers, rates) if rates else None)

  def batch(self, step: int) -> dict[str, np.ndarray]:
    """Some rows of a bucket, see `train`: those of a step."""
    epoch, i = divmod(step, self.steps_per_epoch)
    width, rows = self._epochs(epoch)[i]
    return {name: x[rows] for name, x in self.train[width].items()}

  def where(self, step: int) -> str:
    """The batch of a step, in words."""
    epoch, i = divmod(step, self.steps_per_epoch)
    width, rows = self._epochs(epoch)[i]
    arrays, first = self.train[width], rows[0]
    what, length = 'rows of pairs' if self.packed else 'pairs', (
        (arrays['input_segments'][first] == 1).sum() if self.packed
        else arrays['input_lengths'][first])
    text = self.vocabulary.decode(arrays['inputs'][first, :length].tolist())
    return (f'batch {i} of epoch {epoch}, {len(rows)} {what} of up to {width} '
            f'tokens, the first {text[:60]!r}')


def _check_widths(buckets: Any) -> None:
  """Refuses what are no widths of batches."""
  if np.ndim(buckets) != 1 or not len(buckets):
    raise ValueError(f'Got buckets={buckets!r}; allowed: one width or more, '
                     'such as (24, 48).')
  check.interval('buckets of ParallelText', buckets, 1, LARGEST, whole=True)
  if any(np.diff(buckets) <= 0):
    raise ValueError(f'Got buckets={buckets!r}; allowed: ascending widths. '
                     f'Give {tuple(sorted(set(buckets)))}.')


def _path(directory: str, split: str) -> pathlib.Path:
  return pathlib.Path(directory).expanduser() / f'{split}.jsonl'


def chunks(arrays: dict[str, np.ndarray], rows: int,
           limit: int) -> list[dict[str, np.ndarray]]:
  """The first pairs in order, `rows` at a time; what fills up has no weight."""
  count, out = min(limit, len(arrays['inputs'])), []
  for start in range(0, count, rows):
    kept = np.arange(start, start + rows) < count
    chosen = np.minimum(np.arange(start, start + rows), count - 1)
    part = {name: x[chosen] for name, x in arrays.items()}
    part['weights'] *= kept[:, None].astype(np.float32)
    out.append(part)
  return out


def _parsed(line: str, where: Any) -> dict:
  try:
    found = json.loads(line)
  except ValueError as error:
    raise ValueError(f'{where} is not JSON ({error}).') from None
  if not isinstance(found, dict):
    raise ValueError(f'{where} is no JSON object; give one a line.')
  return found


def _padded(inputs, targets, width, target_width) -> dict[str, np.ndarray]:
  lengths = np.array([len(row) for row in targets])
  weights = np.arange(target_width)[None] < lengths[:, None]
  return dict(
      inputs=text.pad(inputs, width),
      input_lengths=np.array([len(row) for row in inputs], np.int32),
      targets=text.pad(targets, target_width),
      weights=weights.astype(np.float32))
