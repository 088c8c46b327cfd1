"""Deterministic splits by group, and how close they are to each other."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
import re

import numpy as np

SPLITS = ('train', 'validation', 'test')
SHINGLE_BYTES = 5
NEAR_DUPLICATE_SIMILARITY = 0.5
_NOT_WORD = re.compile(r'[\W_]+')
_NUMBER = re.compile(r'\d+')

Row = dict[str, object]


def fingerprint(text: str) -> str:
  """Text for comparisons: case folded, words only, every number a '0'.

  >>> fingerprint('Version 2.10: the "GNU" debugger!')
  'version 0 0 the gnu debugger'
  """
  return _NUMBER.sub('0', _NOT_WORD.sub(' ', text.casefold())).strip()


def stable_fraction(name: str) -> float:
  """A number in [0, 1) that depends on the name only (SHA-256)."""
  digest = hashlib.sha256(name.encode('utf-8')).digest()
  return int.from_bytes(digest[:6], 'big') / 2**48


def stable_id(*parts: str) -> str:
  """Twelve hex digits that depend on the parts only (SHA-256)."""
  return hashlib.sha256('\0'.join(parts).encode('utf-8')).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Fractions:
  """Shares of the groups that go to validation and test."""

  validation: float
  test: float

  def __post_init__(self):
    if min(self.validation, self.test) <= 0 or self.validation + self.test >= 1:
      raise ValueError(
          f'Got validation {self.validation} and test {self.test}; both must '
          'be positive and their sum below 1.'
      )

  def split_of(self, group: str) -> str:
    """The split of a group; it does not depend on the other groups."""
    x = stable_fraction(group)
    if x < self.test:
      return 'test'
    return 'validation' if x < self.test + self.validation else 'train'


def divide(
    rows: Iterable[Row], *, source: str, target: str, fractions: Fractions
) -> dict[str, list[Row]]:
  """Divides rows into splits by group and removes exact duplicates.

  A row repeated with the same source and target is kept once. A source text
  (compared by `fingerprint`) is in one split only: one that occurs in a train
  group stays in train and is dropped from validation and test, so that these
  hold unseen sentences; one of validation and test stays in test. Within
  validation and test a source text occurs once.

  Args:
    rows: dicts with the keys 'id' and 'group' and the two text features.
    source: name of the source text feature.
    target: name of the target text feature.
    fractions: shares of validation and test.

  Returns:
    Rows of every split in an order given by the hash of their ids.
  """
  splits = {name: [] for name in SPLITS}
  seen_pairs = set()
  by_split = {name: [] for name in SPLITS}
  for row in rows:
    by_split[fractions.split_of(row['group'])].append(row)
  seen = {name: set() for name in SPLITS}
  for name in ('train', 'test', 'validation'):
    for row in by_split[name]:
      pair, text = (row[source], row[target]), fingerprint(row[source])
      if pair in seen_pairs or any(
          text in seen[x] for x in SPLITS if x != name or name != 'train'
      ):
        continue
      seen_pairs.add(pair)
      seen[name].add(text)
      splits[name].append(row)
  for name in SPLITS:
    splits[name].sort(key=lambda x: (stable_fraction(x['id']), x['id']))
  return splits


def shingles(text: str) -> np.ndarray:
  """Sorted distinct byte 5-grams of the fingerprint, as uint64.

  A shorter text is one shingle.
  """
  data = f' {fingerprint(text)} '.encode('utf-8')
  data = data.ljust(SHINGLE_BYTES, b'\0')
  codes = np.frombuffer(data, np.uint8).astype(np.uint64)
  windows = np.lib.stride_tricks.sliding_window_view(codes, SHINGLE_BYTES)
  powers = np.uint64(256) ** np.arange(SHINGLE_BYTES, dtype=np.uint64)
  return np.unique((windows * powers).sum(axis=-1, dtype=np.uint64))


class ShingleIndex:
  """Inverted index that finds the most similar text, exactly.

  The similarity of two texts is the Jaccard index of their sets of byte
  5-grams: |a & b| / |a | b|, computed against every text that shares one.
  """

  def __init__(self, texts: Sequence[str]):
    sets = [shingles(x) for x in texts]
    self._sizes = np.array([len(x) for x in sets], np.int64)
    grams = np.concatenate(sets) if sets else np.zeros(0, np.uint64)
    owners = np.repeat(np.arange(len(sets), dtype=np.int32), self._sizes)
    order = np.argsort(grams, kind='stable')
    self._owners = owners[order]
    self._grams, self._starts = np.unique(grams[order], return_index=True)
    self._ends = np.append(self._starts[1:], len(grams))

  def nearest(self, text: str) -> tuple[float, int]:
    """Similarity to, and position of, the most similar text of the index.

    Returns:
      `(0.0, -1)` if no text shares a shingle; the first of equals otherwise.
    """
    query = shingles(text)
    places = np.searchsorted(self._grams, query)
    inside = places < len(self._grams)
    places, present = places[inside], query[inside]
    places = places[self._grams[places] == present]
    if not len(places):
      return 0.0, -1
    owners = np.concatenate(
        [self._owners[self._starts[i] : self._ends[i]] for i in places]
    )
    shared = np.bincount(owners, minlength=len(self._sizes))
    jaccard = shared / (self._sizes + len(query) - shared)
    best = int(np.argmax(jaccard))
    return float(jaccard[best]), best


def mark_near_duplicates(
    splits: Mapping[str, Sequence[Row]],
    *,
    source: str,
    threshold: float = NEAR_DUPLICATE_SIMILARITY,
) -> dict[str, list[Row]]:
  """Adds 'similarity' and 'near_duplicate' to every row.

  'similarity' is the largest similarity to the source text of a train row, and
  'near_duplicate' whether it reaches the threshold. Train rows get 0.0 and
  False: they are not compared.
  """
  index = ShingleIndex([x[source] for x in splits['train']])
  marked = {}
  for name, rows in splits.items():
    marked[name] = []
    for row in rows:
      similarity = 0.0
      if name != 'train':
        similarity = round(index.nearest(row[source])[0], 4)
      near = similarity >= threshold
      row = {**row, 'similarity': similarity, 'near_duplicate': near}
      marked[name].append(row)
  return marked


def apart(
    rows: Iterable[Row],
    held_out: Sequence[str],
    *,
    source: str,
    target: str,
    threshold: float = NEAR_DUPLICATE_SIMILARITY,
) -> list[Row]:
  """Rows to train on that are not close to any of the texts held out.

  A row repeated with the same source and target is kept once. Dropped is what
  has the `fingerprint` of a text held out, or a similarity of the threshold.

  Returns:
    The rows in an order given by the hash of their ids.
  """
  index = ShingleIndex(held_out)
  prints = {fingerprint(x) for x in held_out}
  kept = {}
  for row in rows:
    pair, text = (row[source], row[target]), row[source]
    if pair in kept or fingerprint(text) in prints:
      continue
    if index.nearest(text)[0] < threshold:
      kept[pair] = row
  return sorted(
      kept.values(), key=lambda x: (stable_fraction(x['id']), x['id'])
  )
