"""Why nothing reads a path: what it lacks, or how to convert it."""
from __future__ import annotations

import json
import pathlib
import shlex
from typing import Any, Mapping

from spec_cascades.checkpoints import hub
from spec_cascades.checkpoints import hub_config
from spec_cascades.checkpoints import hub_writing
from spec_cascades.checkpoints import loading
from spec_cascades.data import tokenizers

PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl')
SAFETENSORS = '.safetensors'
# The names by which transformers finds pickled weights.
PICKLED = ('pytorch_model.bin', 'pytorch_model.bin.index.json')
# Classes of transformers that keep the head which predicts tokens; the rest
# (T5Model) would drop it.
HEADED = (*hub_writing.CLASSES.values(), 'MT5ForConditionalGeneration',
          'Gemma3ForConditionalGeneration')
# Files that transformers makes a tokenizer of, beside those that we read.
OTHER_WORDS = ('vocab.json', 'tokenizer_config.json')


def explain(path: pathlib.Path) -> str | None:
  """One line about weights that are there; None if there are none."""
  place = path if path.is_dir() else path.parent
  found = sorted(path.iterdir()) if path.is_dir() else [path]
  weights = [x.name for x in found if x.suffix == SAFETENSORS]
  pickles = [x.name for x in found if x.suffix in PICKLES]
  has_config = (place / hub.CONFIG).is_file()
  if weights and not has_config:
    return (f'{place} holds {loading.some(weights)}, but no {hub.CONFIG}, '
            'which says what model it is; put it there.')
  if weights and not path.is_dir():
    return f'{path} is one file of a checkpoint; give its directory, {place}.'
  if weights:
    return (f'{path} holds {loading.some(weights)}, but neither {hub.WEIGHTS} '
            f'nor {hub.INDEX}; get the missing file.')
  if pickles:
    return (f'{path} holds {loading.some(pickles)}, a pickle, and unpickling '
            f'runs whatever the file says; it is not read. {_way(place)}')
  if has_config and path.is_dir():
    return (f'{path} holds {hub.CONFIG}, but no {hub.WEIGHTS}; get the missing '
            'file.')
  return None


def _way(place: pathlib.Path) -> str:
  """How the pickled weights of a directory can be made readable."""
  if not (place / hub.CONFIG).is_file():
    return (f'It cannot be converted either: {place} has no {hub.CONFIG}, '
            'which says what model it is; put it there.')
  if not any((place / name).is_file() for name in PICKLED):
    return ('It cannot be converted either: transformers reads '
            f'{PICKLED[0]} only; get the weights in that form.')
  config = hub.read_json(place / hub.CONFIG)
  try:
    hub_config.model(config)
  except ValueError as error:
    return f'It cannot be converted either: {place / hub.CONFIG}: {error}'
  kind = class_of(config)
  names, calls = [f'{kind} as Model'], [_saved('Model', place)]
  if any((place / name).is_file() for name in (
      tokenizers.JSON, *tokenizers.SENTENCEPIECE, *OTHER_WORDS)):
    names, calls = ['AutoTokenizer', *names], [
        *calls, _saved('AutoTokenizer', place)]
  code = f'from transformers import {", ".join(names)}; {"; ".join(calls)}'
  return ('Convert it where you trust it, and load converted: python -c '
          f'{shlex.quote(code)}')


def class_of(config: Mapping[str, Any]) -> str:
  """The class of transformers that loads a model with its head."""
  named = config.get('architectures')
  first = named[0] if isinstance(named, list) and named else None
  if first in HEADED:
    return first
  return ('AutoModelForSeq2SeqLM' if config.get('model_type') in
          hub_config.T5_FAMILIES else 'AutoModelForCausalLM')


def _saved(kind: str, place: pathlib.Path) -> str:
  """Python that writes what is in `place` to the directory converted."""
  where = json.dumps(str(place.absolute()), ensure_ascii=False)
  return f'{kind}.from_pretrained({where}).save_pretrained("converted")'
