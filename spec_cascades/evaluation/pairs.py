"""A verifier and a drafter that belong together, ready to decode."""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
from typing import Any

from spec_cascades.checkpoints import native
from spec_cascades.evaluation import text

ASSETS = pathlib.Path(__file__).resolve().parents[1] / 'assets'
SHIPPED = ASSETS / 'debian_ende'


@dataclasses.dataclass(frozen=True)
class Model:
  """A language model, its parameters and where they come from."""
  name: str
  lm: Any
  checkpoint: Any = dataclasses.field(repr=False)
  sha256: str
  max_input_length: int

  @functools.cached_property
  def params(self) -> Any:
    """The parameters in decode layout."""
    return self.lm.pack(self.checkpoint)


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
  models, vocabulary = [], None
  for path in (verifier, drafter):
    lm, params, vocabulary = native.load(path)
    config = native.read_config(path)
    # A name to show: debian_ende/verifier, say.
    name = '/'.join(pathlib.Path(path).expanduser().resolve().parts[-2:])
    models.append(Model(name, lm, params, native.digest(path),
                        config['max_input_length']))
  sizes = [model.lm.vocab_size for model in models]
  if sizes[0] != sizes[1]:
    raise ValueError(f'{verifier} has {sizes[0]} embeddings and {drafter} '
                     f'{sizes[1]}; give both the same vocab_size.')
  return Pair(*models, vocabulary, digests[0])


def vocabulary_digest(directory: str) -> str:
  """SHA-256 of a model directory's SentencePiece file."""
  path = pathlib.Path(directory).expanduser() / native.VOCABULARY
  native.read_config(directory)
  if not path.is_file():
    raise ValueError(f'No {native.VOCABULARY} in {directory}; a model '
                     'directory holds the vocabulary that it was trained with.')
  return hashlib.sha256(path.read_bytes()).hexdigest()
