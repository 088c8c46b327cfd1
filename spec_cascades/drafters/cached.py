"""For drafters whose state is the cache of one small model, `lm`."""
from __future__ import annotations

from typing import Any

from spec_cascades import check
from spec_cascades import types
from spec_cascades.models import prefill


class Cached:
  """Reads prompts and keeps what was accepted; `propose` is left to write."""

  def init(self, params: Any, prompt: types.Prompt, hidden: Any,
           capacity: int) -> Any:
    """The small model's cache of the prompt."""
    del hidden
    check.own_params(self, params)
    return prefill.prefill(self.lm, params, prompt, capacity)[1]

  def observe(self, params: Any, state: Any, feedback: types.Feedback) -> Any:
    """Keeps the key/values of the drafts that were accepted."""
    del params
    return state.accept(feedback.draft, feedback.verdict, feedback.live)
