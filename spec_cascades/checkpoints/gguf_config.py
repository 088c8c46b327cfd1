"""The model that the metadata of a GGUF file describe.

A family is a line in `FAMILIES`. The file leaves out what it takes to be known:
which of Gemma's layers have a window, their rotary base, how queries and
embeddings are scaled.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from spec_cascades.checkpoints import gguf_header
from spec_cascades.models import gemma
from spec_cascades.models import positions

MAX_SPARE_ROWS = 128
# Metadata of the architecture that are read, or do not matter.
KNOWN = frozenset('''
  context_length embedding_length block_count feed_forward_length vocab_size
  attention.head_count attention.head_count_kv attention.key_length
  attention.value_length attention.layer_norm_rms_epsilon
  attention.sliding_window attention.sliding_window_pattern
  attn_logit_softcapping final_logit_softcapping
  rope.freq_base rope.freq_base_swa rope.dimension_count rope.scaling.type
  rope.scaling.factor rope.scaling.original_context_length
  rope.scaling.finetuned tensor_data_layout'''.split())
# Llama 3.1 and later: slow and fast limits, and the length trained at.
LLAMA3 = dict(trained_length=8192, slow=1., fast=4.)


@dataclasses.dataclass(frozen=True)
class Family:
  """What an architecture's name stands for; `period` layers, one global."""
  is_gemma: bool = False
  post_norms: bool = False
  qk_norm: bool = False
  qkv_bias: bool = False
  permuted: bool = False
  period: int = 1
  window: int = 0                 # if the file does not say
  base: float = 10_000.           # of rotary positions, likewise
  odd_depth: int = 0              # with so many layers, queries are scaled by
                                  # emb_dim / num_heads, not by head_dim


FAMILIES = dict(
    llama=Family(permuted=True), qwen2=Family(qkv_bias=True),
    qwen3=Family(qk_norm=True), gemma=Family(True),
    gemma2=Family(True, True, period=2, window=4096, odd_depth=46),
    gemma3=Family(True, True, True, period=6, base=1e6, odd_depth=62))


class Says:
  """The metadata of the architecture, each checked for its type."""

  def __init__(self, header: gguf_header.Header):
    self.header, self.path = header, header.path
    self.architecture = str(header.metadata.get('general.architecture'))[:60]

  def get(self, name: str, default: Any = None) -> Any:
    """As it is in the file."""
    return self.header.metadata.get(f'{self.architecture}.{name}', default)

  def refuse(self, name: str, why: str) -> None:
    """Raises ValueError about one value."""
    value = str(self.get(name))[:60]
    raise ValueError(f'{self.path}: {self.architecture}.{name} is {value}; '
                     f'{why}.')

  def whole(self, name: str, default: int | None = None) -> int:
    """A whole number, positive unless it may be missing."""
    value = self.get(name, default)
    if type(value) is not int or not (default is None) <= value < 2**31:
      self.refuse(name, 'a whole number is needed')
    return value

  def real(self, name: str, default: float | None) -> float | None:
    """A positive number, or the default."""
    value = self.get(name, default)
    if value is not default and not (
        type(value) in (int, float) and 0 < value < 1e30):
      self.refuse(name, 'a positive number is needed')
    # The shortest decimal fraction that is this number in float32.
    return value if value is None else float(str(np.float32(value)))

  def rows(self, name: str) -> tuple[int, int]:
    """Shape of a matrix."""
    tensor = self.header.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
      raise ValueError(f'{self.path} has no matrix {name}; get the file again.')
    return tensor.shape

  def agree(self, name: str, said: int, found: int) -> None:
    """Refuses metadata that contradict a tensor."""
    if said != found:
      self.refuse(name, f'the tensors say {found}')

  def check_keys(self) -> None:
    """Refuses what may change the model and is not known."""
    prefix = f'{self.architecture}.'
    for key, value in self.header.metadata.items():
      name = key.removeprefix(prefix)
      matters = value.any() if isinstance(value, np.ndarray) else value
      if key.startswith(prefix) and name not in KNOWN and matters:
        self.refuse(name, 'nothing is known of this key, and the model may '
                    'depend on it')

  def check_words(self, rows: int) -> None:
    """Refuses a tokenizer with more or far fewer tokens than embeddings."""
    words = self.header.metadata['tokenizer.ggml.tokens']
    count = len(words) if isinstance(words, list) else 0
    if not 0 <= rows - count < MAX_SPARE_ROWS or not count:
      raise ValueError(f'{self.path} has {count} tokens and {rows} '
                       'embeddings; get the file again.')


def read(says: Says, family: Family) -> gemma.GemmaConfig:
  """The model that the metadata describe and the tensors confirm."""
  layers, width = says.whole('block_count'), says.whole('embedding_length')
  if f'blk.{layers - 1}.attn_q.weight' not in says.header.tensors:
    says.refuse('block_count', 'there are fewer layers in the file')
  heads = says.whole('attention.head_count')
  kv_heads = says.whole('attention.head_count_kv', heads) or heads
  head_dim = says.whole('attention.key_length', 0) or width // heads
  mlp = says.whole('feed_forward_length')
  vocab, found = says.rows('token_embd.weight')
  says.agree('embedding_length', width, found)
  says.agree('vocab_size', says.whole('vocab_size', 0) or vocab, vocab)
  says.agree('feed_forward_length', mlp, says.rows('blk.0.ffn_gate.weight')[0])
  for name, count in dict(q=heads, k=kv_heads, v=kv_heads).items():
    key = 'attention.head_count' + ('' if name == 'q' else '_kv')
    rows = says.rows(f'blk.0.attn_{name}.weight')[0]
    if head_dim < 2 or head_dim % 2 or rows != head_dim * count:
      says.refuse(key, f'with heads of {head_dim}, attn_{name} has {rows} rows')
  for name in ('attention.value_length', 'rope.dimension_count'):
    says.agree(name, says.whole(name, 0) or head_dim, head_dim)
  if heads % kv_heads:
    says.refuse('attention.head_count_kv', f'{heads} is not a multiple')
  odd = layers == family.odd_depth
  return gemma.GemmaConfig(
      vocab_size=vocab, emb_dim=width, num_layers=layers, num_heads=heads,
      num_kv_heads=kv_heads, head_dim=head_dim, mlp_dim=mlp,
      mlp_activation='gelu' if family.is_gemma else 'silu',
      norm_epsilon=says.real('attention.layer_norm_rms_epsilon', 1e-6),
      norm_offset=float(family.is_gemma), post_norms=family.post_norms,
      qk_norm=family.qk_norm, qkv_bias=family.qkv_bias,
      scale_embedding=family.is_gemma,
      query_scale=(width / heads)**-0.5 if odd else None,
      attention_soft_cap=says.real(
          'attn_logit_softcapping', 50. if family.period == 2 else None),
      logit_soft_cap=says.real(
          'final_logit_softcapping', 30. if family.period == 2 else None),
      windows=_windows(says, family, layers), rope=_rope(says, family),
      local_rope=positions.Rope(says.real('rope.freq_base_swa', 10_000.)),
      logits_via_embedding='output.weight' not in says.header.tensors)


def _windows(says: Says, family: Family, layers: int) -> tuple[int, ...]:
  """The window of every layer; the last of each period has none."""
  window = says.whole('attention.sliding_window', family.window)
  pattern = says.get('attention.sliding_window_pattern', family.period)
  if family.period == 1:
    if window:
      says.refuse('attention.sliding_window', 'windows are not supported for '
                  'this architecture')
    return (0,)
  if isinstance(pattern, np.ndarray):
    if len(pattern) != layers:
      says.refuse('attention.sliding_window_pattern', f'{layers} are needed')
    return tuple(window if local else 0 for local in pattern)
  period = says.whole('attention.sliding_window_pattern', family.period)
  if not 0 < period <= 64 or not window:
    says.refuse('attention.sliding_window', 'there must be windows')
  return (window,) * (period - 1) + (0,)


def _rope(says: Says, family: Family) -> positions.Rope:
  """Rotary frequencies of layers without a window."""
  base = says.real('rope.freq_base', family.base)
  kind = says.get('rope.scaling.type', 'linear')       # as llama.cpp has it
  if str(kind) not in ('none', 'linear'):
    says.refuse('rope.scaling.type', 'allowed: none, linear')
  factor = says.real('rope.scaling.factor', 1.) if kind == 'linear' else 1.
  table = says.header.tensors.get('rope_freqs.weight')
  if table is None:
    return positions.Rope(base, factor)
  divided = np.asarray(gguf_header.rows(table)).ravel()
  rope = positions.Rope(base, float(divided.max()), **LLAMA3)
  width = 2 * len(divided)
  with np.errstate(all='ignore'):
    want = positions.Rope(base).frequencies(width) / rope.frequencies(width)
  if not np.allclose(divided, want, rtol=1e-4) or factor != 1:
    raise ValueError(f'{says.path}: rope_freqs.weight is not the scaling of '
                     'Llama 3.1, the only one that is supported.')
  return rope
