"""TensorFlow for data and event files only: it leaves accelerators to JAX."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator


def load() -> Any:
  """TensorFlow without GPUs, whose memory it would take; call before others."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  try:
    tf.config.set_visible_devices([], 'GPU')
  except RuntimeError:
    pass                     # It runs already: what it takes it has.
  return tf


@contextlib.contextmanager
def readable(what: str, hint: str) -> Iterator[None]:
  """Raises ValueError where TensorFlow can't read; names what, and what to do.
  """
  errors = load().errors
  try:
    yield
  except errors.OpError as error:
    short = ' '.join(str(error.message).split())[:200]
    raise ValueError(f"{what} can't be read ({type(error).__name__}: {short}); "
                     f'{hint}') from None
