"""States that Jacobi decoding passes on its way to a text, kept beside it.

A line of a corpus has them as `trajectory`: the text's `tokens`, and `states`,
a pair for each round: how many tokens were settled, and the guesses of those to
come. scripts/distill.py writes them, with its `guesses`.

    {"tokens": [7, 8, 9, 1], "states": [[0, [0, 0]], [1, [8, 8]], [3, [1, 1]]]}

Reference: Kou et al. (2024), https://arxiv.org/abs/2403.00835
"""
from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import jacobi
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import text

KEY = 'trajectory'


def write(lm: Any, params: Any, rows: Sequence[Sequence[int]], *, width: int,
          length: int, batch: int, end: int, guesses: int
          ) -> tuple[list[dict[str, Any]], int]:
  """Greedy answers by Jacobi decoding, with the states of every round.

  Args:
    lm: A `LanguageModel`.
    params: Its parameters in decode layout.
    rows: Tokens of the inputs.
    width: Of the inputs, at least the longest.
    length: See `writing.write`.
    batch: Rows of a call.
    end: Token that ends an answer.
    guesses: Of a state.

  Returns:
    A trajectory a row, and the calls of `lm` in all.

  Raises:
    ValueError: Logits are not finite.
  """
  make, found, calls = pairs.prompt_of(lm), [], 0
  batch += -batch % meshes.groups(lm)
  for first in range(0, len(rows), batch):
    part = list(rows[first:first + batch])
    prompt = text.capped(make(part + [[end]] * (batch - len(part)), width),
                         length)
    spec = decode.GenSpecSample(
        lm, jacobi.Jacobi(guesses), prompt.prefix.shape[1] + length, eos=end)
    starts = np.asarray(prompt.prefix_lengths)[:len(part)]
    settled, states = np.zeros(len(part), int), [[] for _ in part]
    prompt, keys = meshes.rows(lm, (prompt, decode.row_keys(0, range(batch))))
    rounds = decode.stream(spec, params, None, prompt, keys, targets.Lossless(),
                           warp.Warp(0.))
    for seen in rounds:
      nodes, live = map(np.asarray, (seen.feedback.draft.tree.tokens,
                                     seen.feedback.live))
      for row in np.flatnonzero(live[:len(part)]):
        states[row].append([int(settled[row]), nodes[row, 1:].tolist()])
        settled[row] += len(seen.tokens[row])
      calls += int(live[:len(part)].sum())
      state = seen.state
    check.finite(state.fault[:len(part)], first)
    texts = programs.outputs_of(state, starts.tolist())
    found += [dict(tokens=list(map(int, tokens)), states=own)
              for (tokens, *_), own in zip(texts, states)]
  return found, calls


def cut(found: Mapping[str, Any], length: int) -> dict[str, Any]:
  """A trajectory of at most so many tokens; later states are left out."""
  return dict(tokens=found['tokens'][:length],
              states=[x for x in found['states'] if x[0] < length])


def read(line: Mapping[str, Any], guesses: int, where: Any
         ) -> tuple[list[int], list] | None:
  """Tokens and states of a line; None if it has no trajectory.

  Raises:
    ValueError: It is none, or its states have another number of guesses.
  """
  found = line.get(KEY)
  if found is None:
    return None
  try:
    tokens = list(map(int, found['tokens']))
    states = [(int(at), list(map(int, own))) for at, own in found['states']]
  except (KeyError, TypeError, ValueError):
    raise ValueError(f'{where}: {KEY} is not what scripts/distill.py writes '
                     'with guesses; write the corpus again.') from None
  wrong = {len(own) for _, own in states} - {guesses}
  if wrong:
    raise ValueError(f'{where}: states have {wrong.pop()} guesses, but got '
                     f'guesses={guesses}; give as many as were written.')
  return tokens, states


def padded(states: Sequence[Sequence[Any]], guesses: int
           ) -> dict[str, np.ndarray]:
  """Arrays of the states of some texts.

  Args:
    states: Of each text.
    guesses: K, of each state.

  Returns:
    `guesses` [n, R, K], and `places` [n, R]: how many tokens were settled, -1
    where there is no state.
  """
  most = max(1, *map(len, states))
  places = np.full((len(states), most), -1, np.int32)
  tokens = np.zeros((len(states), most, guesses), np.int32)
  for i, own in enumerate(states):
    for j, (at, guessed) in enumerate(own):
      places[i, j], tokens[i, j] = at, guessed
  return dict(places=places, guesses=tokens)
