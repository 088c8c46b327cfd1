"""The decode loop: propose -> score -> fuse -> verify -> commit -> observe."""
from __future__ import annotations

import functools
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from spec_cascades import stats as stats_lib
from spec_cascades import types
from spec_cascades.models import prefill
from spec_cascades.verify import Rejection


@struct.dataclass
class State:
  """What lives from one round to the next; one row per sequence."""
  tokens: Int[Array, 'B L']
  lengths: Int[Array, 'B']
  done: Bool[Array, 'B']
  fault: Int[Array, 'B']      # round + 1 of the first non-finite logits, else 0
  keys: Key[Array, 'B']
  cache: Any
  drafter: Any
  stats: stats_lib.Stats


@struct.dataclass
class GenSpecSample:
  """Draws from pi = T(q, p) with one target call per round.

  Static fields are hashed by `jit`; every number in `drafter` and `verify` is
  a leaf, so a sweep over thresholds compiles once.

  Reference: Narasimhan et al. (2025), Alg. 4, https://arxiv.org/abs/2405.19261
  """
  lm: Any = struct.field(pytree_node=False)
  drafter: Any
  max_length: int = struct.field(pytree_node=False)
  verify: Any = Rejection()
  eos: int = struct.field(pytree_node=False, default=1)

  def init(self, params, draft_params, prompt: types.Prompt, keys) -> State:
    """Keys [B] are the rows' own, e.g. fold_in(seed, example_id)."""
    b, p = prompt.prefix.shape
    if p >= self.max_length:
      raise ValueError(f'A prompt of width {p} leaves no room in '
                       f'max_length={self.max_length}.')
    capacity = self.max_length + self.drafter.num_nodes
    hidden, cache = prefill.prefill(self.lm, params, prompt, capacity)
    drafter = self.drafter.init(draft_params, prompt, hidden, capacity)
    tokens = jnp.zeros((b, self.max_length), jnp.int32).at[:, :p].set(prompt.prefix)
    zero = jnp.zeros(b, jnp.int32)
    return State(tokens, prompt.prefix_lengths, zero > 0, zero, keys, cache,
                 drafter, stats_lib.zeros(b, self.drafter.num_nodes))

  def step(self, params, draft_params, target, warp, state: State):
    """One round. Returns the new state and everything there is to see."""
    propose, verify = round_keys(state.keys, state.stats.rounds)
    ctx = types.Context(state.tokens, state.lengths, state.cache, warp,
                        target.uses_q)
    draft, drafter = self.drafter.propose(draft_params, state.drafter, ctx, propose)
    self._check(draft, target)
    hidden, logits, cache = self._score(params, state.cache, draft, ~state.done)
    p = warp(logits)
    fused = target(draft.prediction, p)
    verdict = jax.vmap(self.verify)(verify, draft, p, fused.pi)
    broken = _broken(draft, logits, fused.pi) & ~state.done
    live = ~state.done & ~broken

    cut, new, over = jax.vmap(_cut, (0, 0, None, 0))(
        verdict, draft.tree.tokens, self.eos, self.max_length - state.lengths)
    emitted = jnp.where(live, cut.count + 1, 0)
    tokens = jax.vmap(_append)(state.tokens, state.lengths, new, emitted)
    feedback = types.Feedback(draft, hidden, logits, cut, live)
    counts = stats_lib.of_round(draft, verdict, fused.deferral, emitted, live)
    return State(
        tokens, state.lengths + emitted, state.done | broken | over,
        jnp.where(broken, state.stats.rounds + 1, state.fault), state.keys,
        cache.accept(draft, cut, live),
        self.drafter.observe(draft_params, drafter, feedback),
        state.stats + counts), feedback

  @functools.partial(jax.jit)
  def __call__(self, params, draft_params, prompt, keys, target, warp) -> State:
    step = lambda s: self.step(params, draft_params, target, warp, s)[0]
    state = self.init(params, draft_params, prompt, keys)
    return jax.lax.while_loop(lambda s: ~s.done.all(), step, state)

  def _score(self, params, cache, draft, live):
    """Scores every node, or the root alone where no live row has a draft."""
    n = draft.tree.tokens.shape[1]

    def score(width, cache):
      hidden, cache = self.lm.extend(params, cache, types.head_of(draft.tree, width))
      pad = lambda x: jnp.pad(x, ((0, 0), (0, n - width)) + ((0, 0),) * (x.ndim - 2))
      return pad(hidden), pad(self.lm.head(params, hidden)), cache

    if draft.full:
      return score(n, cache)
    wide = jnp.any((draft.tree.parents >= 0) & live[:, None])
    return jax.lax.cond(wide, functools.partial(score, n),
                        functools.partial(score, 1), cache)

  def _check(self, draft, target):
    if draft.prediction is None and (target.uses_q or draft.law != 'deterministic'):
      raise ValueError(f'{type(target).__name__} on {draft.law!r} drafts needs q, '
                       f'but {type(self.drafter).__name__} has none.')
    if draft.tree.tokens.shape[1] != self.drafter.num_nodes:
      raise ValueError(f'{type(self.drafter).__name__} proposed '
                       f'{draft.tree.tokens.shape[1]} nodes, but its num_nodes, '
                       f'for which caches have room, is {self.drafter.num_nodes}.')
    self.verify.supports.check(self.verify, draft)


def round_keys(keys: Key[Array, 'B'], rounds: Int[Array, 'B']):
  """A round's keys [B]: one for the drafter, one for the verifier."""
  split = lambda key, i: jax.random.split(jax.random.fold_in(key, i))
  return tuple(jax.vmap(split, out_axes=1)(keys, rounds))


def _broken(draft, logits, pi):
  """Rows with NaN, +inf or nothing but -inf at a node that may be visited."""
  node = jnp.arange(logits.shape[1])[None]
  visited = (draft.tree.parents >= 0) | (node == 0)
  finite = jnp.isfinite(logits.max(-1)) & jnp.isfinite(pi.sum(-1))
  return jnp.any(visited & ~finite, 1)


def _cut(verdict, nodes, eos, room):
  """Ends a verdict at its first EOS, or where `room` is used up.

  Returns the verdict of the tokens kept, all tokens [D], and whether it ended.
  """
  i, count = jnp.arange(len(verdict.path)), verdict.count
  new = jnp.roll(nodes[verdict.path], -1).at[count].set(verdict.next_token)
  end = jnp.min(jnp.where((new == eos) & (i <= count), i, len(i)))
  last = jnp.minimum(jnp.minimum(count, end), room - 1)
  over = (last == end) | (last == room - 1)
  return types.Verdict(verdict.path, last, new[last]), new, over


def _append(tokens, length, new, emitted):
  i = jnp.arange(len(new))
  at = jnp.where(i < emitted, length + i, len(tokens))
  return tokens.at[at].set(new, mode='drop')
