"""Orbax checkpoints: runs that `training.loop` wrote, and published Gemmas.

Arrays are read from their Zarr stores one at a time, and only those that the
model has: an optimiser's stay where they are. From the files come names, sizes
and floats, nothing that runs.

A run has model.json and its tokenizer, which `describe` writes, beside its
checkpoints. A Gemma has no configuration at all: its arrays show the sizes, and
the published model of these sizes says the rest (windows, soft caps, rotary
bases), or a config.json beside it with a 'preset' or fields of `GemmaConfig`.
Its names and einsum layouts are those of google-deepmind/gemma,
gemma/gm/nn/_modules.py, flat or nested as in gemma/gm/ckpts/_checkpoint.py.
"""
from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import pathlib
import re
from typing import Any, Callable, Iterator, Mapping

import jax
import numpy as np

from spec_cascades.checkpoints import extras
from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.checkpoints import stores
from spec_cascades.data import files
from spec_cascades.models import gemma
from spec_cascades.models import heads as heads_lib
from spec_cascades.models import presets
from spec_cascades.models import reduced

FORMAT = 1
MODEL, OVERRIDE = 'model.json', 'config.json'
BESIDE = 'params/heads/'
ITEMS = ('', 'default', 'state', 'params')
STEP = re.compile(r'(?:[a-z]+_)?(\d+)')
# Gemma: sizes that arrays show, and prefixes of parts that are no text model.
SIZES = ('emb_dim', 'num_layers', 'num_heads', 'num_kv_heads', 'head_dim',
         'mlp_dim', 'post_norms', 'qk_norm')
IGNORED = ('vision_encoder/', 'audio_encoder/', 'SigLiPFromPatches_0/',
           'embedder/mm_', 'embedder/audio_')
STACKED = 'stacked_layers/'

log = logging.getLogger(__name__)


def describe(directory: pathlib.Path, lm: Any, words: Mapping[str, bytes],
             params: Any = None) -> None:
  """Writes what makes a run's checkpoints a model, beside them.

  Args:
    directory: Of the run.
    lm: Its model.
    words: Files of its tokenizer by name, the vocabulary first.
    params: Its parameters, with the ids that it predicts if it is `Reduced`.
  """
  whole, kept = reduced.whole(lm), {}
  if isinstance(lm, reduced.Reduced):
    kept = {extras.TOKENS: np.asarray(params['tokens']).tolist()}
  if isinstance(lm, heads_lib.Beside):
    kept = {extras.HEADS: extras.beside_of(lm.heads)}
  family = next((n for n, f in native.FAMILIES.items() if type(whole) is f.lm),
                None)
  config = dict(format=FORMAT, family=family, vocabulary=next(iter(words)),
                config=dataclasses.asdict(whole.config), **kept)
  for name, content in words.items():
    files.write_atomically(directory / name, content)
  files.write_atomically(directory / MODEL, json.dumps(config, indent=2) + '\n')


def recognises(path: pathlib.Path) -> bool:
  """Whether Orbax may have written it: a tree, a step, steps or a run."""
  return path.is_dir() and _item(path) is not None


def source(path: str | os.PathLike) -> loading.Source:
  """What `load` reads, with the weights still in their files.

  Of several steps it is the newest that is complete.

  Raises:
    ValueError: A file is missing or damaged, or the model is not known.
  """
  item = _item(pathlib.Path(path).expanduser().absolute())
  names = stores.tree(item)
  if f'{_inside(names)}token_embedder/embedding' in names:
    return _run(item, names)
  if any(name.endswith('embedder/input_embedding') for name in names):
    return _gemma(item, names)
  raise ValueError(f'{item} is neither a run of training.loop nor a Gemma; it '
                   f'holds {loading.some(sorted(names))}.')


def _item(path: pathlib.Path) -> pathlib.Path | None:
  """The tree meant by a path: itself, a step's, or that of the newest step."""
  def of_step(step):
    return next((step / x for x in ITEMS if stores.is_tree(step / x)), None)

  found = of_step(path)
  for folder in (path, path / 'checkpoints'):
    if found is None and folder.is_dir():
      steps = {int(match[1]): child for child in folder.iterdir()
               if (match := STEP.fullmatch(child.name))}
      newest = (of_step(steps[step]) for step in sorted(steps, reverse=True))
      found = next((item for item in newest if item), None)
  return found


def _inside(names: Mapping[str, Any]) -> str:
  """Where a run's model is: it may have ids or heads beside it."""
  beside = 'params/tokens' in names or any(
      name.startswith(BESIDE) for name in names)
  return 'params/model/' if beside else 'params/'


def _run(item: pathlib.Path, names: Mapping[str, Any]) -> loading.Source:
  """The newest parameters of a run and the model that model.json describes."""
  found = next((x for x in item.parents[:3] if (x / MODEL).is_file()), None)
  if found is None:
    raise ValueError(
        f'No {MODEL} beside {item}, so nothing says what the model is; train '
        'on with the same command, which writes it, or use scripts/export.py.')
  path = found / MODEL
  config = stores.read_json(path)
  if config.get('format') != FORMAT or config.get('family') not in (
      native.FAMILIES):
    raise ValueError(f'{path} is of format {config.get("format")!r}, family '
                     f'{config.get("family")!r}; allowed: {FORMAT}, '
                     f'{", ".join(native.FAMILIES)}.')
  family = native.FAMILIES[config['family']]
  lm = family.lm(stores.configured(family.config, config.get('config'), path))
  start = _inside(names)
  parts = {name.removeprefix(start): x for name, x in names.items()
           if name.startswith(start)}
  parts |= {name.removeprefix('params/'): x for name, x in names.items()
            if name.startswith(BESIDE)}
  found = stores.arrays(item, parts)
  leaves = {name: stores.leaf(x, name) for name, x in found.items()}
  return loading.Source(
      item, lm, stores.largest_first(leaves),
      tokens=extras.tokens_of(path, config, lm),
      heads=extras.heads_of(path, config),
      tokenizer=_words(path, config.get('vocabulary', native.VOCABULARY),
                       lm.vocab_size))


def _words(path: pathlib.Path, name: Any, rows: int) -> Callable[[], Any]:
  """Makes a run's tokenizer; its model.json, at `path`, names the first file.

  Raises:
    ValueError: It is missing, damaged, or not of `rows` embeddings.
  """
  if name != native.VOCABULARY:
    if not isinstance(name, str) or not (path.parent / name).is_file():
      raise ValueError(f'No tokenizer {str(name)[:60]} beside {path}; train on '
                       'with the same command, which writes it.')
    return hub.tokenizer_of(path.parent, rows)
  words = native.vocabulary_of(path.parent / name, rows)
  return lambda: words


def _gemma(item: pathlib.Path, names: Mapping[str, Any]) -> loading.Source:
  """A Gemma of which only the text model is read."""
  start = 'params/' if any(x.startswith('params/') for x in names) else ''
  plain = {_plain(name.removeprefix(start)): x for name, x in names.items()
           if name.startswith(start)}
  if any(name.startswith(STACKED) for name in plain):
    raise ValueError(f'{item} stacks its layers, which is not supported; save '
                     'the nested tree, as gemma.gm.ckpts.save_params does.')
  found = stores.arrays(item, {
      name: x for name, x in plain.items() if not name.startswith(IGNORED)})
  config = _gemma_config(item, found)
  leaves, used = {}, set()
  for ours, theirs, part, turn in _pairs(config):
    used.add(theirs)
    if theirs in found:
      leaves[ours] = _turned(item, theirs, found[theirs], part, turn)
  return loading.Source(
      item, gemma.Gemma(config), stores.largest_first(leaves),
      sorted(set(found) - used),
      stores.tokenizer((item, item.parent), config.vocab_size))


def _plain(name: str) -> str:
  """A nested name without the prefixes and suffixes of other layouts.

  transformer/layer_0/mlp/linear/w -> layer_0/mlp/linear
  """
  name = name.removeprefix('transformer/')
  return name.removesuffix('/w') if '/mlp/' in name else name


def _gemma_config(item, found) -> gemma.GemmaConfig:
  """Sizes from arrays, the rest from a published model or config.json."""
  sizes = _sizes(item, found)
  rows = sizes.pop('vocab_size')
  gemmas = presets.GEMMA
  same = [name for name, c in gemmas.items()
          if all(getattr(c, k) == x for k, x in sizes.items())]
  base = gemmas[same[0]] if same else None
  folders = [x for x in (item, item.parent) if (x / OVERRIDE).is_file()]
  if folders:
    path = folders[0] / OVERRIDE
    fields = stores.read_json(path)
    name = fields.pop('preset', None)
    if name is not None and name not in gemmas:
      raise ValueError(f'{path} names the preset {name!r}; allowed: '
                       f'{", ".join(gemmas)}.')
    base = gemmas[name] if name else base or gemma.GemmaConfig(**sizes)
    config = stores.configured(
        gemma.GemmaConfig, {'vocab_size': rows, **fields}, path, base)
  elif base is not None:
    config = dataclasses.replace(base, vocab_size=rows)
  elif not sizes['post_norms']:      # Gemma 1 has nothing that is not shown
    config = gemma.GemmaConfig(rows, **sizes)
  else:
    raise ValueError(
        f'{item}: no published model has {sizes}; windows, soft caps and '
        f'rotary bases are unknown. Write them into {OVERRIDE} beside it.')
  log.info('%s is read as %s.', item, same[0] if same and not folders
           else config)
  return config


def _sizes(item, found) -> dict[str, Any]:
  """Fields of a configuration that the arrays of a Gemma show."""
  layers = [int(match[1]) for name in found
            if (match := re.match(r'layer_(\d+)/', name))]
  start = 'layer_0/attn/'
  try:
    rows, width = found['embedder/input_embedding'].shape
    if start + 'qkv_einsum/w' in found:
      _, heads, _, head_dim = found[start + 'qkv_einsum/w'].shape
      kv_heads = heads
    else:
      heads, _, head_dim = found[start + 'q_einsum/w'].shape
      _, kv_heads, _, _ = found[start + 'kv_einsum/w'].shape
    inner, _ = found['layer_0/mlp/linear'].shape
  except (KeyError, ValueError) as error:
    raise ValueError(f'{item} is no Gemma: {error} is wrong or not there.'
                     ) from None
  return dict(
      vocab_size=rows, emb_dim=width, num_layers=1 + max(layers),
      num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, mlp_dim=inner,
      post_norms='layer_0/post_ffw_norm/scale' in found,
      qk_norm=start + '_query_norm/scale' in found)


def _pairs(config: gemma.GemmaConfig) -> Iterator[tuple]:
  """Our name, theirs, the part of their array or None, and what turns it."""
  yield 'token_embedder/embedding', 'embedder/input_embedding', None, _same
  yield 'decoder/decoder_norm/scale', 'final_norm/scale', None, _same
  norms = {'pre_attention_norm': 'pre_attention_norm',
           'pre_mlp_norm': 'pre_ffw_norm'}
  if config.post_norms:
    norms |= {'post_attention_norm': 'post_attention_norm',
              'post_mlp_norm': 'post_ffw_norm'}
  if config.qk_norm:
    norms |= {'self_attention/query_norm': 'attn/_query_norm',
              'self_attention/key_norm': 'attn/_key_norm'}
  split = (dict(query=('q', None), key=('kv', (0, 2)), value=('kv', (1, 2)))
           if config.num_heads != config.num_kv_heads else
           {name: ('qkv', (j, 3))
            for j, name in enumerate(('query', 'key', 'value'))})
  for i in range(config.num_layers):
    us, them = f'decoder/layers_{i}', f'layer_{i}'
    for a, b in norms.items():
      yield f'{us}/{a}/scale', f'{them}/{b}/scale', None, _same
    for a, (b, part) in split.items():
      yield (f'{us}/self_attention/{a}/kernel', f'{them}/attn/{b}_einsum/w',
             part, _inward)
    yield (f'{us}/self_attention/out/kernel',
           f'{them}/attn/attn_vec_einsum/w', None, _outward)
    for j in (0, 1):
      yield (f'{us}/mlp/wi_{j}/kernel', f'{them}/mlp/gating_einsum', (j, 2),
             functools.partial(_gate, config))
    yield f'{us}/mlp/wo/kernel', f'{them}/mlp/linear', None, _same


def _same(x):
  return x


def _inward(x):
  """[heads, in, head_dim] -> [in, heads * head_dim]."""
  heads, width, size = x.shape
  return x.swapaxes(0, 1).reshape(width, heads * size)


def _outward(x):
  """[heads, head_dim, out] -> [heads * head_dim, out]."""
  heads, size, width = x.shape
  return x.reshape(heads * size, width)


def _gate(config, x):
  """[in, out], which later models store the other way round."""
  if config.emb_dim == config.mlp_dim:
    raise ValueError('a square gate may be either way round')
  return x.T if x.shape == (config.mlp_dim, config.emb_dim) else x


def _turned(item, name, array, part, turn: Callable) -> loading.Leaf:
  """A leaf of which an array of theirs, or a part of it, is the contents."""
  index, count = (None, 1) if part is None else part
  whole = array.shape if part is None else array.shape[1:]
  try:
    if part is not None and array.shape[0] != count:
      raise ValueError(f'not {count} parts')
    shape = jax.eval_shape(turn, jax.ShapeDtypeStruct(whole, np.float32)).shape
  except (ValueError, IndexError) as error:
    raise ValueError(f'{item}: {name} has shape {array.shape}, which no Gemma '
                     f'has: {error}.') from None

  def read():
    opened = array.open() if isinstance(array, stores.Stored) else array
    if part is None and turn is _same:
      return opened
    return turn(np.asarray(opened) if part is None else opened[index])
  return loading.Leaf(shape, array.nbytes // count, read, name,
                      array.dtype.name)
