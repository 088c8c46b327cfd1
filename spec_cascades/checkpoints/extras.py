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
class Owner:
  """The model that something else belongs to.

  Attributes:
    name: What it is called: of one whose encoder is lent, its directory's name.
    sha256: What `evaluation.pairs.digest` says of its checkpoint.
  """
  name: str
  sha256: str


def owner_of(path: pathlib.Path, key: str, found: Any, allowed: str) -> Owner:
  """Reads an owner from a configuration.

  Args:
    path: Of the configuration, for messages.
    key: Where it is there.
    found: What is there.
    allowed: What may be, for messages, and what to do.

  Raises:
    ValueError: It is none that there can be.
  """
  try:
    made = Owner(**found)
    if SHA256.fullmatch(made.sha256) and isinstance(made.name, str):
      return made
  except TypeError:
    pass
  raise ValueError(f'{path}, {key}: got {str(found)[:100]}; allowed: {allowed}')


def lender_of(path: pathlib.Path, config: Mapping[str, Any]) -> Owner | None:
  """Whose encoder a model reads with, if its weights have none.

  Args:
    path: Of the configuration, for messages.
    config: Its contents.

  Raises:
    ValueError: It is none that there can be.
  """
  if config.get(LENDER) is None:
    return None
  allowed = ('the name of a directory beside it, and its sha256. Export the '
             'model again.')
  made = owner_of(path, LENDER, config[LENDER], allowed)
  if made.name in ('', '.', '..') or made.name != pathlib.PurePath(
      made.name).name:                                  # it is a path
    raise ValueError(f'{path}, {LENDER}: got the name {made.name[:100]!r}; '
                     f'allowed: {allowed}')
  return made


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
