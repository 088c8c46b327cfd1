"""Tokenizers from the metadata of GGUF files.

Such a file lists pieces, their scores or merges, and their types. From these
the SentencePiece model, or the tokenizer.json, is built again.
"""
from __future__ import annotations

import dataclasses
import json
from typing import Any, Mapping

import numpy as np

from spec_cascades.data import tokenizers
from spec_cascades.data import words

# Types of tokens; SentencePiece's protobuf numbers them alike.
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
PREFIX = 'tokenizer.ggml.'
# Contractions, words, digits, signs and spaces, as Llama 3 and Qwen 2 part
# them: the longest run of digits differs.
_MODERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


@dataclasses.dataclass(frozen=True)
class Split:
  """How a byte-level vocabulary parts text before it merges bytes.

  Attributes:
    pattern: A regular expression; GPT-2's own if None.
    digits: Whether every digit stands alone, before the pattern is applied.
    composed: Whether text is normalised to NFC.
    whole: Whether a part that is a piece is taken as it is.
    bos: Whether texts begin with BOS if the file does not say.
  """
  pattern: str | None = None
  digits: bool = False
  composed: bool = False
  whole: bool = False
  bos: bool = False


# Spellings of what ends a turn in chats of Gemma, Qwen and SmolLM2, Llama 3.
TURN_ENDS = '<end_of_turn>', '<|im_end|>', '<|eot_id|>'
SPLITS = {'gpt-2': Split(), 'default': Split(), 'smollm': Split(digits=True),
          'llama-bpe': Split(_MODERN % 3, whole=True, bos=True),
          'qwen2': Split(_MODERN % 1, composed=True)}


def tokenizer(metadata: Mapping[str, Any], name: str,
              context: int | None = None) -> tokenizers.Tokenizer:
  """The tokenizer that a file's metadata describe.

  Args:
    metadata: All of the file's.
    name: What to call the file in messages.
    context: The longest text that the model takes.

  Raises:
    ValueError: They contradict each other, or are of an unknown kind.
  """
  says = _Says(metadata, name)
  kind = says.get('model')
  if kind not in ('llama', 'gpt2'):
    raise ValueError(f'{name}: tokenizers of kind {str(kind)[:60]!r} are not '
                     'supported; allowed: llama, gpt2.')
  split = None
  if kind == 'llama':
    made = words.SentencePiece(_sentencepiece(says), name=name)
    made.find('')                    # it is one, or is refused
  else:
    split = says.split()
    made = words.Json(_byte_level(says, split), name)
    made.find('')                    # it can be read, or is refused
  bos, eos = says.token('bos'), says.token('eos')
  if eos is None:
    raise says.wrong('eos_token_id', 'is missing')
  pad = says.token('padding')
  before = says.flag('add_bos_token', split is None or split.bos)
  template = metadata.get('tokenizer.chat_template')
  template = template if isinstance(template, str) else None
  turn_end = says.token('eot')
  if turn_end is None:                 # converters leave it out
    turn_end = tokenizers.turn_ending(template, eos, [
        t for x in TURN_ENDS if (t := made.find(x)) not in (None, eos)],
                                      made.piece)
  return tokenizers.Tokenizer(
      made, eos, bos, eos if pad is None else pad,
      (bos,) if before and bos is not None else (),
      (eos,) if says.flag('add_eos_token', False) else (), turn_end,
      template, context)


class _Says:
  """The metadata of a tokenizer, each checked for its type."""

  def __init__(self, metadata: Mapping[str, Any], name: str):
    self.metadata, self.name = metadata, name
    self.tokens = self.strings('tokens')

  def get(self, key: str, default: Any = None) -> Any:
    return self.metadata.get(PREFIX + key, default)

  def wrong(self, key: str, why: str) -> ValueError:
    return ValueError(f'{self.name}: {PREFIX}{key} {why}; get the file again.')

  def strings(self, key: str) -> list[str]:
    found = self.get(key)
    if not isinstance(found, list) or not found:
      raise self.wrong(key, 'is not a list of strings')
    return found

  def numbers(self, key: str) -> list[float]:
    """One number per token."""
    found = self.get(key)
    if not isinstance(found, np.ndarray) or len(found) != len(self.tokens):
      raise self.wrong(key, f'is not a list of {len(self.tokens)} numbers')
    return found.tolist()

  def flag(self, key: str, default: bool) -> bool:
    found = self.get(key, default)
    if not isinstance(found, bool):
      raise self.wrong(key, 'is neither true nor false')
    return found

  def token(self, kind: str) -> int | None:
    found = self.get(f'{kind}_token_id')
    if found is None:
      return None
    if type(found) is not int or not 0 <= found < len(self.tokens):
      raise self.wrong(f'{kind}_token_id', f'is {str(found)[:60]}')
    return found

  def split(self) -> Split:
    name = self.get('pre', 'default')
    if not isinstance(name, str) or name not in SPLITS:
      raise ValueError(f'{self.name}: {PREFIX}pre is {str(name)[:60]}, which '
                       f'is not supported; allowed: {", ".join(SPLITS)}.')
    return SPLITS[name]


def _sentencepiece(says: _Says) -> bytes:
  """A SentencePiece model (BPE by score), serialised."""
  from sentencepiece import sentencepiece_model_pb2 as pb  # pylint: disable=g-import-not-at-top
  model, kinds = pb.ModelProto(), says.numbers('token_type')
  unknown = says.token('unknown')
  for i, (piece, score, kind) in enumerate(zip(
      says.tokens, says.numbers('scores'), kinds)):
    if kind == USER_DEFINED:
      # The writers of such files put real spaces there.
      piece = piece.replace(' ', words.SPACE)
    if unknown is not None:
      kind = UNKNOWN if i == unknown else CONTROL if kind == UNKNOWN else kind
    if kind not in pb.ModelProto.SentencePiece.Type.values():
      raise says.wrong('token_type', f'has a type {kind}')
    model.pieces.add(piece=piece, score=score, type=int(kind))
  spec = model.trainer_spec
  spec.model_type, spec.byte_fallback = pb.TrainerSpec.BPE, BYTE in kinds
  spec.vocab_size = len(says.tokens)
  norm = model.normalizer_spec
  norm.name = 'identity'
  norm.add_dummy_prefix = says.flag('add_space_prefix', True)
  norm.remove_extra_whitespaces = False
  return model.SerializeToString()


def _byte_level(says: _Says, split: Split) -> str:
  """A tokenizer.json of a byte-level BPE."""
  tokens = {piece: i for i, piece in enumerate(says.tokens)}
  if len(tokens) < len(says.tokens):
    raise says.wrong('tokens', 'has a token twice')
  merges = [tuple(pair.split(' ')) for pair in says.strings('merges')]
  for pair in merges:
    if len(pair) != 2 or not {*pair, ''.join(pair)} <= tokens.keys():
      raise says.wrong('merges', f'has {str(pair)[:60]}, which makes no token')
  added = [dict(id=i, content=piece, single_word=False, lstrip=False,
                rstrip=False, normalized=False, special=kind == CONTROL)
           for i, (piece, kind) in enumerate(zip(
               says.tokens, says.numbers('token_type')))
           if kind in (CONTROL, USER_DEFINED) and piece]
  level = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True,
               use_regex=split.pattern is None)
  parts = [level]
  if split.pattern:
    parts.insert(0, dict(type='Split', pattern=dict(Regex=split.pattern),
                         behavior='Isolated', invert=False))
  if split.digits:
    parts.insert(0, dict(type='Digits', individual_digits=True))
  return json.dumps(dict(
      version='1.0', truncation=None, padding=None, added_tokens=added,
      normalizer=dict(type='NFC') if split.composed else None,
      pre_tokenizer=dict(type='Sequence', pretokenizers=parts),
      post_processor=None, decoder=level,
      model=dict(type='BPE', dropout=None, unk_token=None,
                 continuing_subword_prefix='', end_of_word_suffix='',
                 fuse_unk=False, byte_fallback=False,
                 ignore_merges=split.whole, vocab=tokens, merges=merges)))
