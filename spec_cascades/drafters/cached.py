"""For drafters whose state is the cache of one small model, or has caches."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from spec_cascades import check
from spec_cascades import types
from spec_cascades.models import prefill


class Keeping:
  """Keeps what was accepted, in every cache of the state."""

  def observe(self, params: Any, state: Any, feedback: types.Feedback) -> Any:
    """Keeps the key/values of the drafts that were accepted."""
    del params
    return of_caches(lambda cache: cache.accept(
        feedback.draft, feedback.verdict, feedback.live), state)


class Cached(Keeping):
  """Reads prompts with `lm`, too; `propose` is left to write."""

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Any:
    """The small model's cache of the prompt."""
    del hidden
    check.own_params(self, params)
    return prefill.prefill(self.lm, params, prompt, capacity)[1]


class Late:
  """For caches that may lack the last `late` committed tokens, a static field.

  They lack what a drafter behind this one drafts, and are as long as if they
  had it.
  """
  late: int

  def lagging(self, tokens: int):
    """The same for caches that may lack as many more."""
    return self.replace(late=self.late + tokens)


def of_caches(change: Callable[[Any], Any], tree: Any) -> Any:
  """A tree in which every cache has changed; the rest stays as it is."""
  return jax.tree.map(lambda x: change(x) if _is_cache(x) else x, tree,
                      is_leaf=_is_cache)


def caches_of(one: Any, other: Any) -> Any:
  """The tree `other` with the caches of `one`, which is shaped like it."""
  return jax.tree.map(lambda x, y: x if _is_cache(x) else y, one, other,
                      is_leaf=_is_cache)


def _is_cache(x):
  return hasattr(x, 'truncate')
