"""What a configuration says besides the model: ids, and what is beside it."""
from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any, Mapping

import numpy as np

from spec_cascades.models import features
from spec_cascades.models import reduced

TOKENS, HEADS, VERIFIER = 'draft_vocabulary', 'heads', 'verifier'
LENDER = 'encoder_of'
SHA256 = re.compile('[0-9a-f]{64}')


@dataclasses.dataclass(frozen=True)
class Lender:
  """Whose encoder a model reads with.

  Attributes:
    name: Of a directory that is beside the model's.
    sha256: What `native.digest` says of it.
  """
  name: str
  sha256: str


def lender_of(path: pathlib.Path, config: Mapping[str, Any]) -> Lender | None:
  """Whose encoder a model reads with, if its weights have none.

  Args:
    path: Of the configuration, for messages.
    config: Its contents.

  Raises:
    ValueError: It is none that there can be.
  """
  found = config.get(LENDER)
  if found is None:
    return None
  try:
    made = Lender(**found)
    if _plain(made.name) and SHA256.fullmatch(made.sha256):
      return made
  except TypeError:
    pass
  raise ValueError(f'{path}, {LENDER}: got {str(found)[:100]}; allowed: the '
                   'name of a directory beside it, and its sha256. Export the '
                   'model again.')


def tokens_of(path: pathlib.Path, config: Mapping[str, Any],
              lm: Any) -> np.ndarray | None:
  """Ids of the tokens that a drafter predicts, if not all.

  Args:
    path: Of the configuration, for messages.
    config: Its contents.
    lm: The model.

  Raises:
    ValueError: They are no ascending ids of the vocabulary.
  """
  found = config.get(TOKENS)
  if found is None:
    return None
  whole = isinstance(found, list) and all(
      type(t) is int and abs(t) < 2**31 for t in found)
  tokens = np.asarray(found if whole else [-1], np.int64)
  try:
    reduced.check_tokens(tokens, lm.vocab_size)
  except ValueError as error:
    raise ValueError(f'{path}, {TOKENS}: {error}') from None
  return tokens.astype(np.int32)


def _plain(name):
  """Whether it names a directory, and is no path."""
  return name not in ('', '.', '..') and name == pathlib.PurePath(name).name


def beside_of(config: Any) -> dict[str, Any]:
  """A configuration of what is beside a model; `heads_of` reads it."""
  return dict(kind=config.kind, **dataclasses.asdict(config))


def heads_of(path: pathlib.Path, config: Mapping[str, Any]) -> Any:
  """The configuration of what is beside the model, if anything is.

  Args:
    path: Of the configuration, for messages.
    config: Its contents.

  Raises:
    ValueError: It is none that there can be.
  """
  found = config.get(HEADS)
  if found is None:
    return None
  kinds = {kind.kind: kind for kind in features.KINDS}
  try:
    made = dict(found)
    return kinds[made.pop('kind')](**made)
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{path}, {HEADS}: {error} Save the model again.'
                     ) from None
