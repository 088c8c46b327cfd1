"""What drafters yield from every place of a text, each time from the start.

    ahead = afresh.emitted(pair, drafter, params, inputs, texts)
    afresh.rounds(ahead)                   # verifier calls of each text

A greedy round depends on nothing but the text before it, where a drafter
carries nothing else from round to round. So one round from each place, begun
with a prefill of its own, predicts what a decode takes, for drafters of any
kind: trees, heads, and layers that follow the verifier's states.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import verify
from spec_cascades import warp
from spec_cascades.evaluation import asking
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import programs
from spec_cascades.evaluation import text

ROWS = 16                    # of a call
GREEDY = targets.Lossless(), warp.Warp(0.)


def decoded(pair: pairs.Pair, drafter: Any, params: Any,
            inputs: Sequence[Sequence[int]], length: int,
            judge: Any = verify.Rejection()
            ) -> tuple[list[list[int]], np.ndarray]:
  """Greedy texts of at most `length` tokens, and the calls that each took.

  Args:
    pair: Of which the verifier writes.
    drafter: Made for it, see `drafting.make`.
    params: The drafter's parameters.
    inputs: Tokens that each text answers to.
    length: New tokens of a text, at most.
    judge: A verifier in the sense of `verify`.

  Raises:
    ValueError: Logits are not finite.
  """
  texts, calls, wide = [], [], max(map(len, inputs))
  for at in range(0, len(inputs), ROWS):
    part = list(inputs[at:at + ROWS])
    asked = part + part[:1] * (ROWS - len(part))
    prompt = text.capped(pair.prompt(asked, wide), length)
    spec = _spec(pair, drafter, prompt.prefix.shape[1] + length, judge)
    state = _whole(spec, pair.verifier.params, params, prompt)
    check.finite(state.fault[:len(part)], at)
    starts = np.asarray(prompt.prefix_lengths)[:len(part)].tolist()
    for tokens, _, counters in programs.outputs_of(state, starts):
      texts.append(tokens)
      calls.append(counters['rounds'])
  return texts, np.array(calls)


def emitted(pair: pairs.Pair, drafter: Any, params: Any,
            inputs: Sequence[Sequence[int]], texts: Sequence[Sequence[int]],
            judge: Any = verify.Rejection(),
            progress: Callable[..., Any] = functools.partial(
                tqdm.tqdm, disable=True)) -> list[np.ndarray]:
  """Tokens that a greedy round from each place of each text would emit.

  Args:
    pair: Of which the verifier judges.
    drafter: Made for it.
    params: The drafter's parameters.
    inputs: Tokens that each text answers to.
    texts: What the verifier answered, greedily.
    judge: A verifier in the sense of `verify`.
    progress: `tqdm` or something called like it.
  """
  wide, longest = max(map(len, inputs)), max(map(len, texts))
  places = [(i, t) for i, new in enumerate(texts) for t in range(len(new))]
  out, spec = [np.zeros(len(new), int) for new in texts], None
  with progress(total=len(places), unit='place', desc='rounds') as bar:
    for at in range(0, len(places), ROWS):
      part = places[at:at + ROWS]
      rows = part + part[:1] * (ROWS - len(part))
      prompt = pair.prompt([inputs[i] for i, _ in rows], wide)
      starts = np.asarray(prompt.prefix_lengths)
      known = np.asarray(prompt.prefix).tolist()
      before = [[*prefix[:start], *texts[i][:t]]
                for (i, t), start, prefix in zip(rows, starts, known)]
      width = prompt.prefix.shape[1] + longest
      prompt = prompt.replace(
          prefix=jnp.asarray(text.pad(before, width)),
          prefix_lengths=jnp.asarray(starts + [t for _, t in rows]))
      spec = spec or _spec(pair, drafter, width + drafter.num_nodes, judge)
      found = np.asarray(_round(spec, pair.verifier.params, params, prompt))
      for (i, t), count in zip(part, found.tolist()):
        out[i][t] = min(count, len(texts[i]) - t)
      bar.update(len(part))
  return out


def rounds(ahead: Sequence[np.ndarray]) -> np.ndarray:
  """Verifier calls of each text, by what a round from each place emits."""
  def of(counts):
    at = calls = 0
    while at < len(counts):
      at, calls = at + int(counts[at]), calls + 1
    return calls
  return np.array([of(counts) for counts in ahead])


def check_name(name: str, gamma: int) -> None:
  """Raises ValueError for a drafter that does not exist, or that remembers."""
  drafting.check_name(name, targets.Lossless, gamma)
  if drafting.split(name)[0].remembers:
    without = ', '.join(
        x for x, kind in drafting.KINDS.items() if not kind.remembers)
    raise ValueError(f'{name} drafts by what earlier rounds have left, so that '
                     'no place of a text says what a round from there yields; '
                     f'allowed: {without}.')


def _spec(pair, drafter, length, judge):
  return decode.GenSpecSample(
      drafting.verifier(pair, drafter), drafter, length, judge,
      eos=asking.Asking().ends(pair.vocabulary))


def _keys(prompt):
  """Of rows in which nothing is drawn."""
  return decode.row_keys(0, range(len(prompt.prefix)))


@jax.jit
def _whole(spec, params, draft_params, prompt):
  """A decode, without its caches."""
  state = decode.run(spec, params, draft_params, prompt, _keys(prompt), *GREEDY)
  return state.replace(cache=None, drafter=None)


@jax.jit
def _round(spec, params, draft_params, prompt):
  """Tokens of a first round, [B]."""
  state = spec.init(params, draft_params, prompt, _keys(prompt))
  after, _ = spec.step(params, draft_params, *GREEDY, state)
  return after.lengths - state.lengths
