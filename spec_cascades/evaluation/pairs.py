"""A verifier and a drafter that belong together, ready to decode."""
from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import Any

from spec_cascades.checkpoints import native
from spec_cascades.evaluation import text

ASSETS = pathlib.Path(__file__).resolve().parents[1] / 'assets'
SHIPPED = ASSETS / 'debian_ende'


@dataclasses.dataclass(frozen=True)
class Model:
  """A language model, its packed parameters and where they come from."""
  name: str
  lm: Any
  params: Any = dataclasses.field(repr=False)
  sha256: str
  max_input_length: int


@dataclasses.dataclass(frozen=True)
class Pair:
  """Both models read and write the same vocabulary."""
  verifier: Model
  drafter: Model
  vocabulary: text.Vocabulary
  vocabulary_sha256: str

  @property
  def max_input_length(self) -> int:
    """The longest input, in tokens, that both models take."""
    return min(self.verifier.max_input_length, self.drafter.max_input_length)


def load(verifier: str = str(SHIPPED / 'verifier'),
         drafter: str = str(SHIPPED / 'drafter')) -> Pair:
  """Reads two model directories; the defaults are the pair that we ship.

  Raises:
    ValueError: A directory does not hold a model, or the vocabularies differ.
  """
  digests = [vocabulary_digest(path) for path in (verifier, drafter)]
  if digests[0] != digests[1]:
    raise ValueError(f'The vocabularies of {verifier} and {drafter} differ; a '
                     'drafter must be trained with the vocabulary of its '
                     'verifier.')
  models, vocabularies, rows = [], [], []
  for path in (verifier, drafter):
    lm, params, vocabulary = native.load(path)
    config = native.read_config(path)
    name = config['info'].get('name') or pathlib.Path(path).name
    models.append((name, lm, params, native.digest(path),
                   config['max_input_length']))
    vocabularies.append(vocabulary)
    rows.append(lm.vocab_size)
  if rows[0] != rows[1]:
    raise ValueError(f'{verifier} has {rows[0]} embeddings and {drafter} '
                     f'{rows[1]}; give both the same vocab_size.')
  packed = [Model(name, lm, lm.pack(params), *rest)
            for name, lm, params, *rest in models]
  return Pair(*packed, vocabularies[0], digests[0])


def vocabulary_digest(directory: str) -> str:
  """SHA-256 of a model directory's SentencePiece file."""
  path = pathlib.Path(directory).expanduser() / native.VOCABULARY
  native.read_config(directory)
  if not path.is_file():
    raise ValueError(f'No {native.VOCABULARY} in {directory}; a model directory '
                     'holds the vocabulary that it was trained with.')
  return hashlib.sha256(path.read_bytes()).hexdigest()
