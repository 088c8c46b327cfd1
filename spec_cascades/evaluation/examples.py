"""Evaluation sets: tab-separated source and reference texts."""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
from typing import Iterator, Sequence

from spec_cascades import hosts
from spec_cascades.data import shares
from spec_cascades.evaluation import text

SOFTWARE_DOCS = (pathlib.Path(__file__).resolve().parents[1] / 'assets'
                 / 'software_docs.en-de.tsv')


@dataclasses.dataclass(frozen=True)
class Example:
  """One text with its references; `index` seeds its random numbers."""
  index: int
  id: str
  source: str
  references: tuple[str, ...]

  @property
  def reference(self) -> str:
    """The first; '' if there is none."""
    return self.references[0] if self.references else ''


def _existing(path: str | os.PathLike, source: str,
              target: str) -> pathlib.Path:
  """Where a table is; ValueError if it is not there."""
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    raise ValueError(f'No evaluation set at {path}; give a tab-separated file '
                     f'with the columns id, {source}, {target}.')
  return path


@contextlib.contextmanager
def _utf8(path: pathlib.Path) -> Iterator[None]:
  """ValueError that names a file which is not UTF-8."""
  try:
    yield
  except UnicodeDecodeError:
    raise ValueError(f'{path} is not UTF-8; save it as such, with tabs between '
                     'columns.') from None


def read(path: str | os.PathLike = SOFTWARE_DOCS, *, source: str = 'en',
         target: str = 'de', limit: int | None = None) -> list[Example]:
  """Reads a table with a header `id`, `source`, `target`.

  Of several processes, which all have to ask, each reads a share of it.

  Args:
    path: UTF-8, tab-separated, one example a line, no quoting.
    source: Column of the input text.
    target: Column of the reference.
    limit: Take the first so many; None takes all.

  Raises:
    ValueError: No file, a column or a text is missing, or limit < 1.
  """
  path = shares.agreed(functools.partial(_existing, path, source, target))
  if limit is not None and limit < 1:
    raise ValueError(f'Got {limit} examples; give at least 1, or None for all.')
  with _utf8(path), path.open(encoding='utf-8-sig') as file:   # Windows' mark
    columns = file.readline().rstrip('\n').split('\t')
  if missing := {'id', source, target} - set(columns):
    raise ValueError(f'{path} has no column {", ".join(sorted(missing))}; '
                     f'its columns are {", ".join(columns)}.')
  def row(line):
    found = dict(zip(columns, line.split('\t')))
    return [found.get(x, '') for x in ('id', source, target)]
  def part():
    with _utf8(path):
      return shares.lines(path, (hosts.index(), hosts.count()))
  own = hosts.together(part)
  rows = list(itertools.chain.from_iterable(hosts.gathered(
      [row(line) for start, line in own if start and line][:limit])))[:limit]
  for i, (id_, *texts) in enumerate(rows):
    if not all(x.strip() for x in texts):
      raise ValueError(f'{path}, example {i + 1} ({id_}): the text is '
                       'empty; remove the line or fill it in.')
  if not rows:
    raise ValueError(f'{path} holds no example; give at least one.')
  return [Example(i, id_, text, (reference,))
          for i, (id_, text, reference) in enumerate(rows)]


def digest(examples: Sequence[Example]) -> str:
  """SHA-256 of the texts, in order."""
  texts = [[x.id, x.source, *x.references] for x in examples]
  return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def encode(vocabulary: text.Vocabulary, source: str, limit: int, *,
           what: str = 'The input', cut: int | None = None) -> list[int]:
  """Tokens of one input, EOS at the end.

  Args:
    vocabulary: Of the model.
    source: The text.
    limit: Most tokens that the model takes.
    what: The input's name, for messages.
    cut: Leave out what is beyond so many tokens, EOS among them, as T5 does.

  Raises:
    ValueError: The text is empty, or longer than `limit` tokens.
  """
  if not source.strip():
    raise ValueError(f'{what} is empty; give at least one word.')
  tokens = vocabulary.encode(source)
  if cut is not None and len(tokens) > cut:
    tokens = tokens[:cut - 1] + tokens[-1:]
  if len(tokens) > limit:
    raise ValueError(f'{what} has {len(tokens)} tokens; the model takes at '
                     f'most {limit}: shorten or split it.')
  return tokens
