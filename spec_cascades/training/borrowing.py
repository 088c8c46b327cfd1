"""A drafter that reads the states of its verifier's encoder.

A T5 drafter's encoder reads what its verifier's has read already. Without one
of its own it has fewer parameters and a prompt costs it next to nothing; only
its cross-attention has to get used to other states. Keys and values begin as
K' = W K, where W maps the verifier's states onto those of the encoder that the
drafter had, by least squares:

    W = (S^T S + ridge I)^-1 S^T D,   S, D: states of the two encoders.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Float
import numpy as np

from spec_cascades import checkpoints
from spec_cascades.models import reduced
from spec_cascades.models import t5

ROWS = 512                             # of a width whose states are compared
BATCH = 64
RIDGE = 1e-3                           # of the mean square of S
NAMES = ('key', 'value')


def model(lm: t5.T5, verifier: str) -> t5.T5:
  """A T5 with its own decoder and the encoder of another.

  Args:
    lm: The T5, whose own encoder does not matter.
    verifier: A checkpoint of the other, in any format.

  Raises:
    ValueError: One of them is no T5, or the other has no encoder to lend.
  """
  if type(lm) is not t5.T5:
    raise ValueError(f'Got a {type(lm).__name__} that is to read with the '
                     f'encoder of {verifier}; allowed: a t5.T5.')
  theirs = _lent(verifier, checkpoints.source_of(verifier)).config
  return dataclasses.replace(lm, config=dataclasses.replace(
      lm.config, encoder=theirs,
      num_encoder_layers=theirs.num_encoder_layers))


def check(lm: Any, init_from: str | None, encoder_from: str | None) -> None:
  """Refuses settings of a `loop.Run` that don't go together.

  Args:
    lm: The model to train.
    init_from: What it starts from.
    encoder_from: Whose encoder it gets.

  Raises:
    ValueError: It gets an encoder that it can't have, or has to have one and
      gets none.
  """
  if encoder_from is None:
    if still(lm) and init_from is None:
      raise ValueError('Got a model that reads with another\'s encoder and '
                       'init_from=None; give that one\'s checkpoint as '
                       'encoder_from.')
    return
  theirs = _lent(encoder_from, checkpoints.source_of(encoder_from)).config
  if type(lm) is not t5.T5 or lm.config.encoder is None or (
      _sizes(lm.config) != _sizes(theirs)):
    raise ValueError(f'Got encoder_from={encoder_from} and a '
                     f'{type(lm).__name__} whose encoder is another; allowed '
                     'with it: @borrowing.model() of that verifier.')


def params(own: Any, lm: t5.T5, found: checkpoints.Checkpoint,
           corpus: Any) -> dict[str, Any]:
  """Parameters of `lm` made of a drafter and the encoder of a verifier.

  Args:
    own: Parameters of the drafter, in checkpoint layout. If its encoder is of
      its own, keys and values of cross-attention are mapped, see above.
    lm: What `model` makes.
    found: The verifier.
    corpus: A `data.ParallelText`: states of its training inputs are compared.

  Raises:
    ValueError: The drafter has other sizes than `lm`.
  """
  borrowed = {ours: found.params[name] for ours, name in t5.BORROWED.items()}
  if set(borrowed) <= set(own):
    _check(own, lm)
    return dict(own, **borrowed)
  depth = sum(name.startswith('layers_') for name in own.get('encoder', ()))
  old = t5.T5(dataclasses.replace(lm.config, encoder=None,
                                  num_encoder_layers=depth))
  _check(own, old)
  across = _mapped(_states((found.lm, found.params), (old, own), corpus))
  decoder = {name: _fed(layer, across) if name.startswith('layers_') else layer
             for name, layer in own['decoder'].items()}
  return dict(own, decoder=decoder, **borrowed)


def still(lm: Any) -> tuple[str, ...]:
  """Patterns of parameters that are not trained: those of such an encoder."""
  lent = getattr(getattr(reduced.whole(lm), 'config', None), 'encoder', None)
  return tuple(f'(^|/){x}/' for x in t5.BORROWED) if lent else ()


def _sizes(config):
  """What decides the parameters of an encoder, and what they mean."""
  return dataclasses.replace(config.encoding, dtype='float32')


def _check(params, lm):
  shapes = lambda tree: jax.tree.map(np.shape, tree)
  if shapes(params) != shapes(jax.eval_shape(lm.init_params,
                                             jax.random.key(0))):
    raise ValueError('The drafter to start from has other sizes than the model '
                     'to train; allowed: those of borrowing.model.lm.')


def _lent(path, source):
  """A T5 that has an encoder of its own, and nothing around it."""
  lm = source.lm
  if type(lm) is not t5.T5 or lm.config.encoder is not None or not (
      source.tokens is None and source.heads is None):
    raise ValueError(f'{path} is a {type(lm).__name__} that has no encoder to '
                     'lend; allowed: a T5 with its own, and nothing beside it.')
  return lm


def _states(theirs, own, corpus):
  """States of both encoders where there is text, [n, E] and [n, D]."""
  encode = jax.jit(lambda lm, params, inputs: lm.apply(
      params, inputs, method='encode'), static_argnums=0)
  arrays = corpus.bucketed('train')
  for inputs in (arrays[width]['inputs'][:ROWS] for width in arrays):
    for some in np.split(inputs, range(BATCH, len(inputs), BATCH)):
      text = some > 0
      yield [np.asarray(encode(*model, some))[text] for model in (theirs, own)]


def _mapped(states) -> Float[Array, 'E D']:
  """W, see above."""
  s, d = (np.concatenate(x).astype(np.float64) for x in zip(*states))
  square = s.T @ s
  ridge = RIDGE * np.trace(square) / len(square) * np.eye(len(square))
  return np.linalg.solve(square + ridge, s.T @ d).astype(np.float32)


def _fed(layer, across):
  """A decoder layer whose cross-attention reads other states."""
  name = 'encoder_decoder_attention'
  fed = {x: dict(kernel=across @ np.asarray(layer[name][x]['kernel']))
         for x in NAMES}
  return dict(layer, **{name: dict(layer[name], **fed)})
