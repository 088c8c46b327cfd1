"""GGUF files: Llama, Qwen 2 and 3, Gemma 1-3, quantised or not, tokenizer too.

Llama's query and key rows are permuted in the file; Gemma's norms hold
1 + scale.
"""
from __future__ import annotations

import functools
import importlib
import os
import pathlib
from typing import Iterator

import numpy as np

from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import gguf_config
from spec_cascades.checkpoints import gguf_header
from spec_cascades.checkpoints import loading
from spec_cascades.data import gguf_tokenizers
from spec_cascades.models import gemma


def recognises(path: pathlib.Path) -> bool:
  """Whether it is a file that begins as GGUF files do."""
  try:
    with path.open('rb') as file:
      return file.read(4) == gguf_header.MAGIC
  except OSError:
    return False


def source(path: str | os.PathLike) -> loading.Source:
  """Reads the header: the model, its tensors, its tokenizer.

  Raises:
    ValueError: The file is damaged, or says something that is not known here
      or that contradicts its tensors; or the gguf package is missing.
  """
  path = pathlib.Path(path).expanduser()
  header = gguf_header.read(path)
  says = gguf_config.Says(header)
  if says.architecture not in gguf_config.FAMILIES:
    raise ValueError(f'{path} has architecture {says.architecture!r}; allowed: '
                     f'{", ".join(gguf_config.FAMILIES)}.')
  family = gguf_config.FAMILIES[says.architecture]
  says.check_keys()
  config = gguf_config.read(says, family)
  _check_library(header)
  names = dict(_names(config, family))
  leaves = {ours: _leaf(header.tensors[theirs], ours, config, family)
            for ours, theirs in names.items() if theirs in header.tensors}
  read = {*names.values(), 'rope_freqs.weight'}
  tokenizer = None
  if 'tokenizer.ggml.tokens' in header.metadata:
    says.check_words(config.vocab_size)
    tokenizer = functools.partial(
        gguf_tokenizers.tokenizer, header.metadata, str(path),
        says.whole('context_length', 0) or None)
  return loading.Source(path, gemma.Gemma(config), leaves,
                        sorted(set(header.tensors) - read), tokenizer)


def _names(config: gemma.GemmaConfig,
           family: gguf_config.Family) -> Iterator[tuple[str, str]]:
  """Our names and theirs."""
  yield 'token_embedder/embedding', 'token_embd.weight'
  yield 'decoder/decoder_norm/scale', 'output_norm.weight'
  if not config.logits_via_embedding:
    yield 'decoder/logits_dense/kernel', 'output.weight'
  parts = {'pre_attention_norm/scale': 'attn_norm',
           'pre_mlp_norm/scale': 'ffn_norm', 'mlp/wi_0/kernel': 'ffn_gate',
           'mlp/wi_1/kernel': 'ffn_up', 'mlp/wo/kernel': 'ffn_down',
           'self_attention/out/kernel': 'attn_output'}
  if family.post_norms:
    parts |= {'post_attention_norm/scale': 'post_attention_norm',
              'post_mlp_norm/scale': 'post_ffw_norm'}
  for name in ('query', 'key', 'value'):
    ours, theirs = f'self_attention/{name}', f'attn_{name[0]}'
    parts[f'{ours}/kernel'] = theirs
    if family.qk_norm and name != 'value':
      parts[f'{ours}_norm/scale'] = f'{theirs}_norm'
  for i in range(config.num_layers):
    for ours, theirs in parts.items():
      yield f'decoder/layers_{i}/{ours}', f'blk.{i}.{theirs}.weight'
    for name in ('query', 'key', 'value') if family.qkv_bias else ():
      yield (f'decoder/layers_{i}/self_attention/{name}_bias',
             f'blk.{i}.attn_{name[0]}.bias')


def _check_library(header: gguf_header.Header) -> None:
  """Raises ValueError if the gguf package is needed and missing."""
  if any(t.kind.name not in gguf_header.PLAIN for t in header.tensors.values()):
    try:
      importlib.import_module('gguf')
    except ImportError:
      raise ValueError(
          f'{header.path} is quantised, which the gguf package reads; run '
          'pip install --no-deps -r requirements-weights.txt.') from None


def _leaf(tensor: gguf_header.Tensor, ours: str, config: gemma.GemmaConfig,
          family: gguf_config.Family) -> loading.Leaf:
  """One array of ours; nothing is read yet."""
  kernel, heads = ours.endswith('kernel'), 0
  if family.permuted and 'query' in ours:
    heads = config.num_heads
  if family.permuted and 'key' in ours:
    heads = config.num_kv_heads

  def read() -> np.ndarray | buffers.Rows:
    if ours.endswith('scale'):
      return np.asarray(gguf_header.rows(tensor)) - np.float32(
          config.norm_offset)
    order = None
    if heads:
      order = np.arange(tensor.shape[0]).reshape(heads, -1, 2)
      order = order.swapaxes(1, 2).reshape(-1)
    array = gguf_header.rows(tensor, order)
    return array.T if kernel else array

  shape = tensor.shape[::-1] if kernel else tensor.shape
  return loading.Leaf(shape, tensor.data.nbytes, read, tensor.name)
