"""Checkpoints of any format as the project's own, or as Hugging Face's."""
from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import shutil
from typing import Any, Callable

import jax.numpy as jnp
import numpy as np

from spec_cascades import checkpoints
from spec_cascades.checkpoints import hub_writing
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.data import files
from spec_cascades.data import tokenizers
from spec_cascades.data import words as words_lib
from spec_cascades.evaluation import text
from spec_cascades.models import reduced
from spec_cascades.models import t5

FORMATS = ('native', 'huggingface')
# Files that belong to a tokenizer; the first that is there is its vocabulary.
WORDS = (tokenizers.JSON, *tokenizers.SENTENCEPIECE, 'tokenizer_config.json',
         'special_tokens_map.json', 'added_tokens.json',
         'generation_config.json', tokenizers.TEMPLATE)
# What transformers calls the SentencePiece model of a T5, and of others.
SPIECE, MODEL = 'spiece.model', 'tokenizer.model'
HEADERS = 2**20                        # bytes on disk beside the weights


@dataclasses.dataclass(frozen=True)
class Draft:
  """The tokens that a drafter is to predict: the most frequent in some texts.

  Attributes:
    size: How many.
    texts: A file of texts, one a line, of the kind that it will draft.
  """
  size: int
  texts: str | os.PathLike


def convert(path: str | os.PathLike, output: str | os.PathLike, *,
            to: str = 'native', dtype: str | None = None,
            shard_bytes: int = hub_writing.SHARD_BYTES,
            vocabulary: str | os.PathLike | None = None,
            draft: Draft | None = None,
            progress: Callable[..., Any] | None = None) -> str:
  """Writes a checkpoint in another format; memory holds one array at a time.

  Args:
    path: A checkpoint of any format that `checkpoints.load` reads.
    output: A directory that does not exist or is empty; it appears whole.
    to: One of `FORMATS`.
    dtype: Of the weights written; None keeps bfloat16 and makes anything else
      float32.
    shard_bytes: Weights of one file.
    vocabulary: A SentencePiece model to use in place of the checkpoint's.
    draft: Makes a drafter that predicts some tokens only; native alone.
    progress: `tqdm` or something called like it; counts bytes written.

  Returns:
    The dtype of the weights.

  Raises:
    ValueError: Nothing can be read there, or written here.
  """
  output = pathlib.Path(output).expanduser()
  if to not in FORMATS:
    raise ValueError(f'Got {to!r}; allowed: {", ".join(FORMATS)}.')
  if shard_bytes < 1:
    raise ValueError(f'Got files of {shard_bytes} bytes; allowed: 1 or more.')
  _check_free(output)
  source = checkpoints.source_of(path)
  native.family_of(source.lm)
  loading.fit(source)
  _check_heads(path, source, to, draft)
  dtype = dtype or ('bfloat16' if {leaf.dtype for leaf in source.leaves.values()
                                   } == {'bfloat16'} else 'float32')
  if dtype not in native.DTYPES:
    raise ValueError(f'Got dtype {dtype!r}; allowed: '
                     f'{", ".join(native.DTYPES)}.')
  tokenizer = (source.tokenizer and source.tokenizer() if vocabulary is None
               else _given(vocabulary, source.lm))
  words = _words(source, tokenizer, to, kept=vocabulary is None)
  if draft is not None:
    source = dataclasses.replace(
        source, tokens=_frequent(source, tokenizer, draft))
  if to != 'native' and source.tokens is not None:
    raise ValueError(f'{path} predicts {len(source.tokens)} tokens only, which '
                     f'{to} has no place for; convert it to native.')
  if to == 'huggingface':
    hub_writing.describe(source.lm.config)
  total = jnp.dtype(dtype).itemsize * sum(
      math.prod(leaf.shape) for leaf in source.leaves.values())
  _check_space(output, total + HEADERS + sum(map(len, words.values())))
  with (progress or loading.Silent)(total=total, unit='B', unit_scale=True,
                                    desc=f'writing {output.name}') as bar:
    output.parent.mkdir(parents=True, exist_ok=True)
    with files.appearing(output) as partial:
      partial.mkdir()
      if to == 'native':
        native.write(
            partial, source, dtype, words=words, tick=bar.update,
            shard_bytes=shard_bytes, max_input_length=source.max_input_length
            or loading.max_input_length(source, tokenizer))
      else:
        hub_writing.write(partial, source, dtype, shard_bytes=shard_bytes,
                          tick=bar.update)
        for name, content in words.items():
          files.write_atomically(partial / name, content)
  return dtype


def _check_heads(path: str | os.PathLike, source: loading.Source, to: str,
                 draft: Draft | None) -> None:
  """Refuses what would lose the heads, or anything else, beside a model."""
  if source.heads is None:
    return
  what = f'{path} has {source.heads.kind} beside the model, which '
  if to != 'native':
    raise ValueError(f'{what}{to} has no place for; convert it to native.')
  if draft is not None:
    raise ValueError(f'{what}go with the whole vocabulary; convert it without '
                     'a draft vocabulary.')


def _frequent(source: loading.Source, tokenizer: Any,
              draft: Draft) -> np.ndarray:
  """The tokens that a drafter is to predict."""
  if tokenizer is None:
    raise ValueError(f'{source.path} has no tokenizer to count tokens with.')
  path = pathlib.Path(draft.texts).expanduser()
  if not path.is_file():
    raise ValueError(f'No texts at {path}; give a file of texts, one a line.')
  try:
    with path.open(encoding='utf-8') as file:
      counted = (tokenizer.encode(line.rstrip('\n')) for line in file)
      return reduced.frequent(counted, draft.size, source.lm.vocab_size,
                              keep=tokenizer.ends)
  except UnicodeDecodeError:
    raise ValueError(f'{path} is not UTF-8; give a file of texts, one a line.'
                     ) from None


def _given(vocabulary: str | os.PathLike, lm: Any) -> Any:
  """The tokenizer of a SentencePiece model; refuses what would not load."""
  path = pathlib.Path(vocabulary).expanduser()
  if not path.is_file():
    raise ValueError(f'No vocabulary at {path}; give a SentencePiece model.')
  if isinstance(lm, t5.T5):
    return native.vocabulary_of(path, lm.vocab_size)
  tokenizer = tokenizers.of_model(path)
  loading.check_words(path, tokenizer.size, lm.vocab_size)
  return tokenizer


def _words(source: loading.Source, tokenizer: Any, to: str, *,
           kept: bool) -> dict[str, bytes]:
  """The tokenizer's files, its vocabulary first.

  Args:
    source: The checkpoint.
    tokenizer: Its own or another, which has been found to fit; None if there
      is none.
    to: One of `FORMATS`.
    kept: Whether it is the checkpoint's, whose files are then kept.
  """
  target = native.VOCABULARY if to == 'native' else SPIECE
  if isinstance(tokenizer, text.Vocabulary):
    return {target: pathlib.Path(tokenizer.path).read_bytes()}
  place = source.path if source.path.is_dir() else source.path.parent
  own = kept and tokenizer and _comes_from(tokenizer, place)
  found = {name: (place / name).read_bytes() for name in WORDS
           if (place / name).is_file()} if own else {}
  models = [name for name in tokenizers.SENTENCEPIECE if name in found]
  if isinstance(source.lm, t5.T5) and models and tokenizer.ends == (text.EOS,):
    native.vocabulary_of(place / models[0], source.lm.vocab_size)
    return {target: found.pop(models[0]), **{
        name: x for name, x in found.items() if name not in models}}
  if not models and tokenizers.JSON not in found:
    return files_of(tokenizer)
  # What is called `native.VOCABULARY` is read with T5's ids.
  return {MODEL if name == native.VOCABULARY else name: x
          for name, x in found.items() if name not in models[1:]}


def _comes_from(tokenizer: tokenizers.Tokenizer, place: pathlib.Path) -> bool:
  """Whether a tokenizer is what the files in a folder make.

  A GGUF brings its own; what is beside it may be another model's.
  """
  try:
    found = tokenizers.of_directory(place)
  except ValueError:
    return False
  return found == dataclasses.replace(tokenizer, rows=None)


def files_of(tokenizer: Any) -> dict[str, bytes]:
  """A tokenizer in files of its own, its vocabulary first; {} for None.

  `tokenizers.of_directory` makes the same of them.
  """
  if isinstance(tokenizer, text.Vocabulary):
    return {native.VOCABULARY:
            pathlib.Path(tokenizer.path).expanduser().read_bytes()}
  if not isinstance(tokenizer, tokenizers.Tokenizer):
    return {}
  words = tokenizer.words
  vocabulary = ({tokenizers.JSON: _surrounding(tokenizer).encode()}
                if isinstance(words, words_lib.Json) else
                {MODEL: words.blob})
  added = () if isinstance(words, words_lib.Json) else words.added
  first = words.size - len(added)
  ends = [t for t in (tokenizer.eos, tokenizer.turn_end, *tokenizer.other_ends)
          if t is not None]
  spelt = {f'{kind}_token': tokenizer.piece(token)
           for kind in ('bos', 'eos', 'pad')
           if (token := getattr(tokenizer, kind)) is not None}
  settings = dict(
      **spelt, add_bos_token=bool(tokenizer.before),
      add_eos_token=bool(tokenizer.behind), chat_template=tokenizer.template,
      model_max_length=tokenizer.context, added_tokens_decoder={
          str(first + i): dict(content=x) for i, x in enumerate(added)} or None)
  dump = lambda x: json.dumps({k: v for k, v in x.items() if v is not None},
                              indent=2).encode()
  return {**vocabulary, 'tokenizer_config.json': dump(settings),
          'generation_config.json': dump(dict(
              eos_token_id=ends, bos_token_id=tokenizer.bos,
              pad_token_id=tokenizer.pad))}


def _surrounding(tokenizer: tokenizers.Tokenizer) -> str:
  """A tokenizer.json that puts `before` and `behind` around texts itself."""
  words, sides = tokenizer.words, (tokenizer.before, tokenizer.behind)
  if tokenizers.around(words) == sides:
    return words.blob
  names = {t: tokenizer.piece(t) for side in sides for t in side}
  before, behind = ([dict(SpecialToken=dict(id=names[t], type_id=0))
                     for t in side] for side in sides)
  one, other = (dict(Sequence=dict(id=x, type_id=0)) for x in 'AB')
  found = json.loads(words.blob)
  found['post_processor'] = dict(
      type='TemplateProcessing', single=[*before, one, *behind],
      pair=[*before, one, *behind, other], special_tokens={
          name: dict(id=name, ids=[t], tokens=[name])
          for t, name in names.items()})
  return json.dumps(found)


def _check_free(output: pathlib.Path) -> None:
  """Refuses to write over anything."""
  if output.is_dir() and not any(output.iterdir()):
    return
  if output.exists() or output.is_symlink():
    raise ValueError(f'{output} exists and is not an empty directory; give '
                     'another one, or remove it.')


def _check_space(output: pathlib.Path, wanted: int) -> None:
  """Refuses before an hour of writing what would fail at its end."""
  there = next(x for x in (output, *output.absolute().parents) if x.exists())
  free = shutil.disk_usage(there).free
  if free < wanted:
    raise ValueError(f'{output} needs {wanted / 1e9:.1f} GB, but {there} has '
                     f'{free / 1e9:.1f} GB left.')
