"""What a run starts from: weights that are there, in any format."""
from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any, Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from spec_cascades import checkpoints
from spec_cascades import sharding
from spec_cascades.checkpoints import beside
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import pairs
from spec_cascades.models import heads
from spec_cascades.models import reduced
from spec_cascades.models import t5
from spec_cascades.training import borrowing
from spec_cascades.training import data
from spec_cascades.training import grow
from spec_cascades.training import saving

SAVES = 'checkpoints'                  # of a run, under its model_dir


def model(path: str, changes: Mapping[str, Any] | None = None,
          encoder: bool | None = None) -> Any:
  """The model of a checkpoint, to train on; reads no weights.

  Args:
    path: Anything that `checkpoints.load` reads.
    changes: Fields of its configuration to change, such as
      `{'dropout_rate': 0.1}` or `{'dtype': 'bfloat16'}`.
    encoder: Whether it has to have one; None takes either.

  Raises:
    ValueError: There is no such model, or no such field.
  """
  source = checkpoints.source_of(path)
  check_family(source.lm if source.tokens is None else None, path)
  if encoder and not isinstance(source.lm, t5.T5):
    raise ValueError(f'{path} is a {type(source.lm).__name__}, which has no '
                     'encoder; allowed here: a T5. For a decoder take '
                     'gin/train/finetune_decoder.gin, whose prompt ends.')
  if encoder is False and isinstance(source.lm, t5.T5):
    raise ValueError(f'{path} is a T5; allowed here: a decoder without an '
                     'encoder. For a T5 take gin/train/finetune.gin.')
  known, changes = vars(source.lm.config), dict(changes or {})
  wrong = sorted(set(changes) - set(known))
  if wrong:
    raise ValueError(
        f'{path} is a {type(source.lm).__name__}, which has no '
        f'{", ".join(wrong)}; allowed: {", ".join(sorted(known))}.')
  config = dataclasses.replace(source.lm.config, **changes)
  return dataclasses.replace(source.lm, config=config)


def vocabulary(path: str) -> Any:
  """The tokenizer of a checkpoint; ValueError if it has none."""
  found = _tokenizer(checkpoints.source_of(path))
  _check_spelt(path, found)
  return found


def params(path: str | None, lm: Any, key: jax.Array,
           corpus: data.ParallelText, part: str | None = None,
           encoder: str | None = None, on: sharding.Layout | None = None, *,
           log: Callable[[str], None] = print) -> Any:
  """Parameters of `lm` with a checkpoint's contents, in checkpoint layout.

  Args:
    path: A checkpoint, or another run's model_dir; None: random parameters.
    lm: The model; it may be deeper than the checkpoint's, see `grow`. If it is
      `Reduced` and the checkpoint is not, it gets the most frequent tokens of
      the corpus's training targets, their end among them. If it is `Beside`
      and the checkpoint is not, what is beside it is that of `part`, or fresh.
    key: Of what the checkpoint has nothing for.
    corpus: What is trained on.
    part: What was exported of a run beside this checkpoint, see `beside`.
    encoder: A checkpoint whose encoder it gets, see `borrowing`.
    on: The mesh whose devices make or read their parts, if there is one.
    log: Receives a line where nothing says what a checkpoint's tokens are.

  Raises:
    ValueError: It does not fit the model, or its tokens are not the corpus's.
  """
  found = None if path is None else _contents(
      path, lm, corpus.vocabulary, on, log)
  if part is not None:
    found = dict(model=found, heads=_part(part, path, lm))
  if encoder is not None:
    lender = checkpoints.load(encoder)
    check_words(encoder, lender, corpus.vocabulary)
    own = lm.init_params(key) if found is None else found
    return borrowing.params(own, lm, lender, corpus)
  if isinstance(lm, heads.Beside):
    return _headed(found, lm, key, path)
  if not isinstance(lm, reduced.Reduced):
    return _random(lm, key, on) if found is None else _fitted(found, lm, key)
  if found is None or 'tokens' not in found:
    return dict(model=_fitted(found, lm.lm, key), tokens=_frequent(corpus, lm))
  if np.shape(found['tokens']) != (lm.size,):
    raise ValueError(f'{path} predicts {len(found["tokens"])} tokens, the '
                     f'model to train {lm.size}; give it that size.')
  return dict(found, model=_fitted(found['model'], lm.lm, key))


def read(source: loading.Source, on: sharding.Layout | None
         ) -> checkpoints.Checkpoint:
  """A checkpoint, in parts on the devices of a layout if there is one."""
  where = on and functools.partial(on.parameter, config=source.lm.config)
  return loading.load(source, sharding=where)


def _contents(path, lm, words, on, log):
  """Parameters of a checkpoint or a run."""
  source = checkpoints.source_of(path)
  own, narrow = reduced.whole(lm), isinstance(lm, reduced.Around)
  run = (pathlib.Path(path).expanduser() / SAVES).is_dir()
  if run and (on is None or narrow):
    found = checkpoints.Checkpoint(source.lm, restore(path)[0],
                                   _tokenizer(source))
  else:
    # What has to grow, or gets a part beside it, is read whole.
    same = loading.expected(source.lm) == loading.expected(own)
    found = read(source, on if same and not isinstance(lm, heads.Beside)
                 else None)
  _check_same_family(reduced.whole(found.lm) if narrow else found.lm, own, path)
  if found.tokenizer is None:
    log(f'{path} holds no tokenizer: that its tokens are those of the corpus '
        'is taken on trust')
  else:
    check_words(path, found, words)
  return found.params


def _tokenizer(source):
  """That of an opened checkpoint, if it has one."""
  return source.tokenizer and source.tokenizer()


def _part(part, path, lm):
  """What was trained beside a checkpoint; ValueError if it was another."""
  if not isinstance(lm, heads.Beside) or path is None:
    raise ValueError(f'Got part={part!r} and init_from={path!r} for a '
                     f'{type(lm).__name__}; allowed: with a model that has '
                     'something beside it, and the verifier to start from.')
  if not beside.recognises(pathlib.Path(part).expanduser()):
    raise ValueError(f'{part} is no part of a verifier; allowed: what '
                     'scripts/export.py --part wrote. Start from a run with '
                     'init_from.')
  found, own = beside.read(part), pairs.digest(path)
  if found.verifier.sha256 != own:
    raise ValueError(f'{part} was trained beside {found.verifier.name} '
                     f'(SHA-256 {found.verifier.sha256[:12]}), not beside '
                     f'{path} ({own[:12]}); give the one that it was.')
  return found.params


def _headed(found, lm, key, path):
  """A verifier's parameters, and what is beside it: found, or fresh."""
  if found is None or 'heads' not in found:
    model = _fitted(found, lm.lm, key)
    return dict(model=model, heads=lm.fresh(model, key))
  model = _fitted(found['model'], lm.lm, key)
  shapes = lambda tree: jax.tree.map(np.shape, tree)
  if shapes(found['heads']) != shapes(jax.eval_shape(lm.fresh, model, key)):
    raise ValueError(f'The heads in {path} are not those of {lm.heads}; give '
                     'the configuration that they were trained with.')
  return dict(model=model, heads=found['heads'])


def _frequent(corpus, lm):
  """Ids that a drafter is to predict, from the training targets."""
  texts = (row[weights > 0] for x in corpus.train.values()
           for row, weights in zip(x['targets'], x['weights']))
  return jnp.asarray(reduced.frequent(texts, lm.size, lm.vocab_size,
                                      keep=(corpus.end,)))


def _random(lm, key, on):
  """Fresh parameters, each made where it is to lie."""
  if on is None:
    return lm.init_params(key)
  where = on.parameters(jax.eval_shape(lm.init_params, key), lm.config)
  return jax.jit(lm.init_params, out_shardings=where)(key)


def _fitted(found, lm, key):
  """Parameters as they are, or grown; random ones for None."""
  if found is None:
    return lm.init_params(key)
  want = jax.eval_shape(lm.init_params, key)
  shapes = lambda tree: jax.tree.map(np.shape, tree)
  if shapes(found) == shapes(want):
    return found
  return grow.stack(found, lm.init_params(key),
                    norm_offset=getattr(lm.config, 'norm_offset', 0.))


def restore(model_dir: str) -> tuple[Any, int]:
  """Parameters of the newest checkpoint of a run, as numpy arrays; its step.

  Whatever devices it was trained on, of one process or of several.

  Raises:
    ValueError: There is no checkpoint, or it can't be read.
  """
  folder = pathlib.Path(model_dir).expanduser().absolute() / SAVES
  if not folder.is_dir():               # a manager would make it
    raise ValueError(f'No checkpoint under {folder}; train the model first.')
  reader = ocp.StandardCheckpointHandler()
  with ocp.CheckpointManager(folder, item_handlers=reader) as saves:
    newest = saves.latest_step()
    if newest is None:
      raise ValueError(f'No checkpoint under {folder}; train the model first.')
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with saving.explained(
        f"The checkpoint of step {newest} in {folder} can't be read",
        'if it is damaged, delete it; the same command reads the one before '
        'it'):
      like = jax.tree.map(
          lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
          saves.item_metadata(newest).tree)
      state = saves.restore(newest, args=ocp.args.StandardRestore(like))
  return jax.tree.map(np.asarray, state['params']), newest


def teacher(path: str, lm: Any, words: Any,
            on: sharding.Layout | None = None) -> tuple[Any, Any]:
  """A teacher of `lm` and its parameters.

  Args:
    path: A checkpoint of any format.
    lm: The student.
    words: The student's vocabulary.
    on: The mesh whose devices read their parts of it, if there is one.

  Raises:
    ValueError: They are not of one family or of one vocabulary.
  """
  source = checkpoints.source_of(path)
  _check_same_family(source.lm, reduced.whole(lm), path)
  found = read(source, on)
  _check_same_family(found.lm, reduced.whole(lm), path)
  check_words(path, found, words)
  if found.lm.vocab_size != lm.vocab_size:
    raise ValueError(f'{path} has {found.lm.vocab_size} embeddings, its '
                     f'student {lm.vocab_size}; give both the same vocab_size.')
  return found.lm, found.params


def check(lm: Any, corpus: data.ParallelText, max_length: int) -> None:
  """Refuses texts that do not go with a model; compiles nothing.

  Args:
    lm: The model.
    corpus: Its texts.
    max_length: See `quality.translate`.

  Raises:
    ValueError: The vocabulary does not fit the model, or texts are longer than
      it takes, or would be cut where they must not be.
  """
  check_family(reduced.whole(lm), f'A {type(lm).__name__}')
  words, rows = corpus.vocabulary, lm.vocab_size
  if not loading.fits(words.size, rows, words.specials):
    raise ValueError(f'The vocabulary has {words.size} pieces, the model '
                     f'{rows} embeddings; allowed: as many or a few more. Give '
                     'it the vocabulary of its weights, or set vocab_size.')
  if type(reduced.whole(lm)) is t5.T5:
    return
  if corpus.cut is not None:
    raise ValueError(
        f'Got cut={corpus.cut} for a decoder-only model, whose prompt would '
        'lose its end; allowed: None. Buckets leave long inputs out.')
  room = max(corpus.room, max(corpus.buckets) + max_length)
  if words.context is not None and room > words.context:
    raise ValueError(
        f'An input and its output may have {room} tokens, but the model takes '
        f'at most {words.context}; give smaller buckets, target_width or '
        'max_length.')


def check_words(path: str, found: checkpoints.Checkpoint, words: Any) -> None:
  """Refuses a checkpoint whose tokens are not those of a vocabulary."""
  _check_spelt(path, found.tokenizer)
  if not _alike(found, words):
    raise ValueError(f'The vocabularies of {path} and of the corpus differ; '
                     'give the corpus that of the checkpoint, '
                     '@start.vocabulary().')


def check_vocabulary(path: str, words: Any) -> None:
  """As `check_words`, of a path; reads no weights."""
  source = checkpoints.source_of(path)
  check_words(path, dataclasses.replace(
      source, tokenizer=_tokenizer(source)), words)


def check_same_words(model_dir: str, words: Any) -> None:
  """Refuses to go on with a run whose tokens are not those of a vocabulary.

  Where what says so is missing there or damaged, it is written anew.
  """
  try:
    source = checkpoints.source_of(model_dir)
    found = dataclasses.replace(source, tokenizer=_tokenizer(source))
  except ValueError:
    return
  if found.tokenizer is not None and not _alike(found, words):
    raise ValueError(f'The run in {model_dir} was trained on another '
                     "vocabulary than the corpus's; give the corpus that one, "
                     'or another model_dir.')


def _check_spelt(path, tokenizer):
  if tokenizer is None:
    raise ValueError(f'{path} holds no tokenizer; put its tokenizer.json or '
                     'sentencepiece.model beside the weights.')


def _alike(found, words):
  """Whether the tokens of a checkpoint are spelt as those of a vocabulary."""
  spelt = lambda tokens: pairs.pieces_digest(tokens, found.lm.vocab_size)
  return spelt(found.tokenizer) == spelt(words)


def check_family(lm: Any, what: Any) -> None:
  """Refuses what is no whole model of a known family."""
  names = {family.lm.__name__: family.lm for family in native.FAMILIES.values()}
  if type(lm) not in names.values():
    raise ValueError(f'{what} is no model that can be trained; allowed: '
                     f'{", ".join(names)}, with all their tokens.')


def _check_same_family(found, lm, path):
  if type(found) is not type(lm):
    raise ValueError(
        f'{path} holds a {type(found).__name__}, but the model to train is a '
        f'{type(lm).__name__}; give two of one family.')
