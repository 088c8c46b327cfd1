"""Where a sweep's texts come from: anything with these four members.

  name: What tables call the data.
  cut: Tokens of an input, EOS among them, beyond which it is cut; None: an
    input that is too long is refused.
  read(limit): The first so many examples, all if None. Several processes all
    ask, and get what others have read; of all but `Pages` each reads a share.
  clean(text): The answer in a text that a model has written.

In gin: `sweep.Sweep.data = @sources.Corpus()`, or just the path of a table.
`Public` is also what `evaluate.Evaluation.task` takes; see `seqio_tasks`.
"""
from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import pathlib
from typing import Any, ClassVar, Mapping

import numpy as np

from spec_cascades import check
from spec_cascades import hosts
from spec_cascades.data import shares
from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import host_tensorflow
from spec_cascades.evaluation import public_examples
from spec_cascades.evaluation import seqio_tasks


@dataclasses.dataclass(frozen=True)
class Table:
  """A tab-separated file with a header; see `examples.read`.

  Attributes:
    path: Of the file.
    source: Column of the input text.
    target: Column of the reference.
  """
  cut: ClassVar[None] = None
  path: str = str(examples_lib.SOFTWARE_DOCS)
  source: str = 'en'
  target: str = 'de'

  @property
  def name(self) -> str:
    return pathlib.Path(self.path).name

  def read(self, limit: int | None) -> list[examples_lib.Example]:
    """ValueError if the file can't be read as such a table."""
    return examples_lib.read(self.path, source=self.source, target=self.target,
                             limit=limit)

  def clean(self, text: str) -> str:
    return text


def _file(directory: str, split: str) -> pathlib.Path:
  """Of a split that scripts/build_corpus.py has written."""
  path = pathlib.Path(directory).expanduser() / f'{split}.jsonl'
  if not path.is_file():
    raise ValueError(f'No corpus at {path}; make it with '
                     'scripts/build_corpus.py.')
  return path


@dataclasses.dataclass(frozen=True)
class Corpus:
  """A split of a corpus that scripts/build_corpus.py has written.

  Attributes:
    directory: Holds a file of JSON lines a split.
    split: 'train', 'validation' or 'test'.
    source: Key of the input text.
    target: Key of the reference.
    distinct: Leave out what has a near-duplicate in train.
    characters: Leave out inputs of more characters.
    cut: Tokens of an input beyond which it is cut.
    seed: Of the order, in which the first so many are taken.
  """
  directory: str = '~/.cache/spec_cascades/corpora/debian_ende'
  split: str = 'test'
  source: str = 'en'
  target: str = 'de'
  distinct: bool = True
  characters: int | None = None
  cut: int | None = None
  seed: int = 0

  def __post_init__(self):
    if type(self.distinct) is not bool:
      raise ValueError(f'Got distinct={self.distinct!r}; allowed: True or '
                       'False.')
    for name, least in (('characters', 0), ('cut', 1)):
      if getattr(self, name) is not None:
        check.interval(name, getattr(self, name), least, 2**31 - 1, whole=True,
                       hint='None is without a limit.')

  @property
  def name(self) -> str:
    return f'{pathlib.Path(self.directory).name}, {self.split}'

  def read(self, limit: int | None) -> list[examples_lib.Example]:
    """ValueError if there is no such split, or nothing is left of it."""
    path = shares.agreed(lambda: _file(self.directory, self.split))
    own = hosts.together(lambda: self._own(path))
    counts = hosts.gathered(len(own))
    if not sum(counts):
      raise ValueError(f'No example of {path} is left; allow more '
                       'characters, or distinct=False.')
    order = np.random.default_rng(self.seed).permutation(sum(counts))[:limit]
    first = sum(counts[:hosts.index()])
    chosen = [(k, *own[k - first]) for k in order.tolist()
              if first <= k < first + len(own)]
    texts = {k: found for part in hosts.gathered(chosen) for k, *found in part}
    return [examples_lib.Example(i, id_, source, (target,))
            for i, (id_, source, target) in enumerate(map(texts.get, order))]

  def _own(self, path) -> list[tuple[str, str, str]]:
    """Id, input and reference of what is kept of this process's share."""
    found = []
    for _, raw in shares.lines(path, (hosts.index(), hosts.count())):
      line = json.loads(raw)
      needed = {'id', self.source, self.target} | (
          {'near_duplicate'} if self.distinct else set())
      if lacking := sorted(needed - set(line)):
        raise ValueError(f'{path} has no {", ".join(lacking)}; its keys are '
                         f'{", ".join(line)}.')
      if not (self.distinct and line['near_duplicate']) and (
          self.characters is None or len(line[self.source]) <= self.characters):
        found.append((line['id'], line[self.source], line[self.target]))
    return found

  def clean(self, text: str) -> str:
    return text


@dataclasses.dataclass(frozen=True)
class Pages:
  """Long texts to be gone on with: lines of one page of a manual, joined.

  In the order that the corpus has them in, which is none: what they share is a
  subject and its words. The first process reads for all.

  Attributes:
    directory: As of a `Corpus`, whose lines have an `origin` and a `group`.
    split: The same.
    source: Key of the text.
    origin: Of the lines to take; their groups are pages.
    characters: Of a text, at least: up to the end of a line. Pages with fewer
      are left out.
  """
  cut: ClassVar[None] = None
  directory: str = '~/.cache/spec_cascades/corpora/debian_ende'
  split: str = 'train'
  source: str = 'en'
  origin: str = 'libreoffice_help'
  characters: int = 8000

  def __post_init__(self):
    check.interval('characters', self.characters, 1, 2**31 - 1, whole=True)

  @property
  def name(self) -> str:
    return (f'pages of {pathlib.Path(self.directory).name}, {self.split}, '
            f'{self.characters} characters')

  def read(self, limit: int | None) -> list[examples_lib.Example]:
    """By page; ValueError if there is no such split, or no long page."""
    path = shares.agreed(lambda: _file(self.directory, self.split))
    found = hosts.said(lambda: self._begun(path)[:limit])
    if not found:
      raise ValueError(f'No page of {path} has {self.characters} characters '
                       f'of {self.source} from {self.origin}, and a line; '
                       'allow fewer, or give another key or origin.')
    return [examples_lib.Example(i, group, begun, (line,))
            for i, (group, begun, line) in enumerate(found)]

  def _begun(self, path) -> list[tuple[str, str, str]]:
    """Of each page its name, the text, and the next line."""
    groups = collections.defaultdict(list)
    for _, raw in shares.lines(path):
      line = json.loads(raw)
      if self.source in line and line.get('origin') == self.origin:
        groups[line['group']].append(line[self.source])
    found = []
    for group, texts in sorted(groups.items()):
      ends = itertools.accumulate(len(text) + 1 for text in texts)
      count = 1 + next((i for i, end in enumerate(ends)
                        if end > self.characters), len(texts))
      if count < len(texts):
        found.append((group, '\n'.join(texts[:count]) + '\n', texts[count]))
    return found

  def clean(self, text: str) -> str:
    return text


@dataclasses.dataclass(frozen=True)
class Public:
  """One of the paper's data sets; see `data.public_datasets`.

  Attributes:
    dataset: Its name there.
    style: 't5', or 'few_shot' for decoder-only models.
    split: None: the one whose scores are published.
    shots: Solved records in a prompt; None takes the data set's number.
    seed: Of the draw of solved records.
    data_dir: Where TFDS has it; None: the default of TFDS.
  """
  dataset: str
  style: str = 't5'
  split: str | None = None
  shots: int | None = None
  seed: int = 0
  data_dir: str | None = None

  @property
  def name(self) -> str:
    return f'{self.dataset}, {self.style}'

  @property
  def cut(self) -> int | None:
    """The data set's length for T5; prompts of solved records are not cut."""
    return public_examples.cut(self.dataset, self.style)

  def read(self, limit: int | None) -> list[examples_lib.Example]:
    """ValueError if it is not there; the message has the command for that."""
    host_tensorflow.load()
    return public_examples.examples(
        self.dataset, style=self.style, split=self.split, limit=limit,
        shots=self.shots, seed=self.seed, tfds_data_dir=self.data_dir)

  def clean(self, text: str) -> str:
    """What goes on after the answer is left out."""
    return public_examples.answer(self.dataset, self.style, text)

  @property
  def lengths(self) -> Mapping[str, int]:
    """Most tokens of a prompt and of an answer; T5's prompts are cut there."""
    from spec_cascades.data import public_datasets  # It loads TensorFlow.
    return public_datasets.find(self.dataset).lengths(self.style)

  def whole(self, vocabulary: Any) -> Any:
    """Registers the seqio Task of a vocabulary."""
    (task,), _ = self.tasks(vocabulary)
    return task

  def tasks(self, vocabulary: Any) -> tuple[list[Any], str]:
    """Registers the seqio Task of a vocabulary; gives it and the split."""
    from spec_cascades.data import public  # It loads TensorFlow.
    from spec_cascades.data import public_datasets
    split = self.split or public_datasets.find(self.dataset).evaluated
    public.require(self.dataset, split=split, tfds_data_dir=self.data_dir)
    name = f'{self.dataset}_{self.style}'
    public.seqio.TaskRegistry.remove(name)
    return [public.register(
        self.dataset, seqio_tasks.same_tokens(vocabulary), style=self.style,
        shots=self.shots, seed=self.seed, tfds_data_dir=self.data_dir,
        metric_fns=public_examples.metric_fns(self.dataset),
        task_name=name)], split
