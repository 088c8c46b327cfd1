"""Text in, text out: SentencePiece tokens, padded prompts, decoded strings."""
from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from spec_cascades import types

PAD, EOS = 0, 1


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """A SentencePiece model with T5's ids: 0 pads, 1 ends a text."""
  path: str

  @functools.cached_property
  def model(self):
    import sentencepiece  # pylint: disable=g-import-not-at-top
    path = pathlib.Path(self.path).expanduser()
    if not path.is_file():
      raise ValueError(f'No vocabulary at {path}; train one with '
                       'scripts/train_vocabulary.py.')
    return sentencepiece.SentencePieceProcessor(model_file=str(path))

  @property
  def size(self) -> int:
    return self.model.get_piece_size()

  def encode(self, text: str) -> list[int]:
    """Tokens of a text, EOS at the end."""
    return [*self.model.encode(text), EOS]

  def bare(self, text: str) -> list[int]:
    """Tokens of a text, nothing before or behind them."""
    return self.model.encode(text)

  def decode(self, tokens: Sequence[int]) -> str:
    """The text of tokens up to the first EOS.

    Padding has none, nor has a token behind the vocabulary: a model may have
    spare embeddings.
    """
    ids, size = [int(t) for t in tokens], self.size
    if EOS in ids:
      ids = ids[:ids.index(EOS)]
    return self.model.decode([t for t in ids if PAD < t < size])

  @property
  def ends(self) -> tuple[int, ...]:
    """Tokens that end a text."""
    return (EOS,)

  @property
  def specials(self) -> frozenset[int]:
    """Tokens without text that may lack an embedding: none."""
    return frozenset()

  @property
  def context(self) -> None:
    """A vocabulary does not say how long texts may be."""

  def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
    """Raises ValueError: a vocabulary has no chat template."""
    raise ValueError(f'{self.path} has no chat template; give the prompt as '
                     'plain text.')

  def piece(self, token: int) -> str:
    """A token as the vocabulary spells it."""
    return self.model.id_to_piece(token) if 0 <= token < self.size else ''

  def raw(self, token: int) -> bytes | None:
    """The byte that a token stands for, if it does for one.

    Padding and what is behind the vocabulary have none, and characters go on
    behind them.
    """
    if not PAD < token < self.size:
      return b''
    if not self.model.is_byte(token):
      return None
    return bytes([int(self.model.id_to_piece(token)[3:5], 16)])


def pad(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
  """Rows of tokens as one array [B, width], 0 at the right."""
  out = np.zeros((len(rows), width), np.int32)
  for i, row in enumerate(rows):
    if len(row) > width:
      raise ValueError(f'A text has {len(row)} tokens; at most {width} are '
                       'allowed: shorten it, or make the prompts wider.')
    out[i, :len(row)] = row
  return out


def prefix_prompt(rows: Sequence[Sequence[int]], width: int) -> types.Prompt:
  """What a decoder-only model continues."""
  return types.Prompt(jnp.asarray(pad(rows, width)),
                      jnp.asarray([len(row) for row in rows], jnp.int32))


def capped(prompt: types.Prompt, new: int) -> types.Prompt:
  """The same for at most `new` tokens in each row."""
  return prompt.replace(limits=prompt.prefix_lengths + new)


def encoder_prompt(rows: Sequence[Sequence[int]], width: int) -> types.Prompt:
  """What a T5 decodes from: the inputs, and 0 as the first decoder token."""
  b = len(rows)
  return types.Prompt(jnp.zeros((b, 1), jnp.int32), jnp.ones(b, jnp.int32),
                      jnp.asarray(pad(rows, width)))


def check_context(what: str, length: int, new: int, vocabulary: Any) -> None:
  """Refuses a prompt of a decoder, if with `new` tokens it would be too long.
  """
  most = vocabulary.context
  if most is not None and length + new > most:
    raise ValueError(f'{what} has {length} tokens, its answer up to {new}; the '
                     f'model takes {most} in all. Give a shorter text, or a '
                     'smaller max_length.')
