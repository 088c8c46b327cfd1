"""The decode loop: propose -> score -> fuse -> verify -> commit -> observe."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key
import numpy as np

from spec_cascades import check
from spec_cascades import fetching
from spec_cascades import stats as stats_lib
from spec_cascades import struct
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
  limits: Int[Array, 'B']     # where a row ends
  cache: Any
  drafter: Any
  stats: stats_lib.Stats


@struct.dataclass
class GenSpecSample:
  """Draws from pi = T(q, p) with one target call per round.

  Static fields are hashed by `jit`; every number in `drafter` and `verify` is
  a leaf, so a sweep over thresholds compiles once.

  Attributes:
    lm: The verifier, a `LanguageModel`.
    drafter: A `Drafter`.
    max_length: Tokens per row, the prompt's among them; a row may have a limit
      of its own below it, `Prompt.limits`.
    verify: A `Verifier`.
    eos: The token that ends a row, or a tuple of such; -1 for none.

  Reference: Narasimhan et al. (2025), Alg. 4, https://arxiv.org/abs/2405.19261
  """
  lm: Any = struct.field(pytree_node=False)
  drafter: Any
  max_length: int = struct.field(pytree_node=False)
  verify: Any = Rejection()
  eos: int | tuple[int, ...] = struct.field(pytree_node=False, default=1)

  @property
  def ends(self) -> tuple[int, ...]:
    """The tokens that end a row."""
    some = self.eos if isinstance(self.eos, tuple) else (self.eos,)
    return tuple(token for token in some if token >= 0)

  def init(self, params: Any, draft_params: Any, prompt: types.Prompt,
           keys: Key[Array, 'B']) -> State:
    """Reads the prompts. Keys are the rows' own, see `row_keys`."""
    b, p = prompt.prefix.shape
    check.room(p, self.max_length)
    check.batch_of(prompt, keys)
    capacity = self.max_length + self.drafter.num_nodes
    with jax.named_scope('prompts'):
      hidden, cache = prefill.prefill(self.lm, params, prompt, capacity)
      lent = prompt.replace(lent=getattr(cache, 'lent', None))
      drafter = self.drafter.init(draft_params, lent, hidden, capacity)
    zero, lengths = jnp.zeros(b, jnp.int32), prompt.prefix_lengths
    own = jnp.arange(p)[None] < lengths[:, None]          # not the padding
    tokens = jnp.zeros((b, self.max_length), jnp.int32)
    tokens = tokens.at[:, :p].set(jnp.where(own, prompt.prefix, 0))
    limits = jnp.full(b, self.max_length)
    if prompt.limits is not None:
      limits = jnp.minimum(limits, prompt.limits)
    # `check.call` refuses rows that are empty or full; here they do nothing.
    idle = (lengths < 1) | (lengths >= limits)
    return State(tokens, lengths, idle, zero, keys, limits, cache, drafter,
                 stats_lib.zeros(b, self.drafter.num_nodes))

  def step(self, params: Any, draft_params: Any, target: Any, warp: Any,
           state: State) -> tuple[State, types.Feedback]:
    """One round. Returns the new state and everything there is to see."""
    propose, verify = round_keys(state.keys, state.stats.rounds)
    ctx = types.Context(state.tokens, state.lengths, state.cache, warp,
                        target.uses_q, ~state.done,
                        getattr(target, 'reads_q', None), self.ends)
    with jax.named_scope('drafting'):
      whole, drafter = self.drafter.propose(
          draft_params, state.drafter, ctx, propose)
    check.draft(self, whole, target)
    draft = whole.judged
    with jax.named_scope('verification'):
      hidden, scored, cache = self.score(params, state.cache, whole,
                                         ~state.done)
      logits = scored[:, :draft.tree.tokens.shape[1]]
    with jax.named_scope('sampling'):
      verdict, deferral, broken = self.judge(
          verify, draft, logits, target, warp)
    broken &= ~state.done
    live = ~state.done & ~broken

    cut, new, over = jax.vmap(_cut, (0, 0, None, 0))(
        verdict, draft.tree.tokens, self.ends, state.limits - state.lengths)
    emitted = jnp.where(live, cut.count + 1, 0)
    tokens = jax.vmap(_append)(state.tokens, state.lengths, new, emitted)
    feedback = types.Feedback(whole, hidden, scored, cut, live)
    counts = stats_lib.of_round(whole, verdict, deferral, emitted, live)
    with jax.named_scope('drafting'):
      drafter = self.drafter.observe(draft_params, drafter, feedback)
    return State(
        tokens, state.lengths + emitted, state.done | broken | (over & live),
        jnp.where(broken, state.stats.rounds + 1, state.fault), state.keys,
        state.limits, cache.accept(draft, cut, live), drafter,
        state.stats + counts), feedback

  def __call__(self, params: Any, draft_params: Any, prompt: types.Prompt,
               keys: Key[Array, 'B'], target: Any, warp: Any) -> State:
    """Decodes every row to its end, in one compiled loop.

    Args:
      params: The verifier's parameters, from `lm.pack`.
      draft_params: The drafter's parameters; None if it has none.
      prompt: Right-padded prompts of at least one token a row.
      keys: One key per row, see `row_keys`.
      target: The rule pi = T(q, p).
      warp: The sampling transform of both models.

    Returns:
      The last state: `tokens` [B, max_length] up to `lengths` [B], `stats`, and
      `fault`, which `check.faults` puts into words.

    Raises:
      ValueError: Something is outside what it may be, see `check.call`.
    """
    check.target(target)
    check.call(self, prompt, keys, target, warp)
    return run(self, params, draft_params, prompt, keys, target, warp)

  def score(self, params: Any, cache: Any, draft: types.Draft,
            live: Bool[Array, 'B']) -> tuple[Array, Array, Any]:
    """Hidden states and logits [B, N, V] of a draft, and the cache with it.

    Scores every node, or the root alone where no live row has a draft.
    """
    n = draft.tree.tokens.shape[1]

    def score(width, cache):
      nodes = types.head_of(draft.tree, width)
      hidden, cache = self.lm.extend(params, cache, nodes)
      pad = lambda x: jnp.pad(
          x, ((0, 0), (0, n - width)) + ((0, 0),) * (x.ndim - 2))
      return pad(hidden), pad(self.lm.head(params, hidden)), cache

    if draft.full or draft.scratch:
      return score(n, cache)
    wide = jnp.any((draft.tree.parents >= 0) & live[:, None])
    return jax.lax.cond(wide, functools.partial(score, n),
                        functools.partial(score, 1), cache)

  def judge(self, keys: Key[Array, 'B'], draft: types.Draft, logits: Array,
            target: Any, warp: Any
            ) -> tuple[types.Verdict, Array, Bool[Array, 'B']]:
    """A round's verdicts, deferrals, and rows whose logits can't be sampled.

    Args:
      keys: The verifier's.
      draft: Of `Draft.judged`.
      logits: The target model's, [B, N, V].
      target: The rule pi = T(q, p).
      warp: The sampling transform.
    """
    p = warp(logits)
    fused = target(draft.prediction, p)
    verdict = jax.vmap(self.verify)(keys, draft, p, fused.pi)
    return verdict, fused.deferral, _broken(draft, logits)


@jax.jit
def run(spec: GenSpecSample, params: Any, draft_params: Any,
        prompt: types.Prompt, keys: Key[Array, 'B'], target: Any,
        warp: Any) -> State:
  """`spec(...)` without the checks of numbers: one `while_loop` over `step`."""
  step = lambda s: spec.step(params, draft_params, target, warp, s)[0]
  state = spec.init(params, draft_params, prompt, keys)
  return jax.lax.while_loop(lambda s: ~s.done.all(), step, state)


@jax.jit
def _init(spec, params, draft_params, prompt, keys):
  """The first state, whose arrays are its own: none is the caller's."""
  state = spec.init(params, draft_params, prompt, keys)
  return jax.tree.map(jnp.copy, state)


_step = jax.jit(GenSpecSample.step, donate_argnames='state')


@struct.dataclass
class Round:
  """What one round added, on the host; one entry per row.

  `origins` says of each token whether it was 'accepted' (drafted), 'corrected'
  (after a rejection) or 'bonus' (after a full draft). `drafted` are all drafted
  nodes in index order, accepted or not.
  """
  tokens: list[np.ndarray]
  origins: list[list[str]]
  drafted: list[np.ndarray]
  feedback: types.Feedback
  state: State


def stream(spec: GenSpecSample, params: Any, draft_params: Any,
           prompt: types.Prompt, keys: Key[Array, 'B'], target: Any,
           warp: Any) -> Iterator[Round]:
  """Decodes like `spec(...)`, token for token, and yields after every round.

  A host loop over the compiled `step`; the state is donated to it, so
  `Round.state` may be read until the next round is asked for.
  """
  check.target(target)
  check.call(spec, prompt, keys, target, warp)
  # What `step` would refuse is refused before `init` is compiled.
  jax.eval_shape(run, spec, params, draft_params, prompt, keys, target, warp)
  state = _init(spec, params, draft_params, prompt, keys)
  before = fetching.get(_counted(state))
  while not before['done'].all():
    state, feedback = _step(spec, params, draft_params, target, warp, state)
    nodes = feedback.draft.tree
    after, tokens, drafted, parents, live = fetching.get((
        _counted(state), state.tokens, nodes.tokens, nodes.parents,
        feedback.live))
    there = (parents >= 0) & live[:, None]
    yield Round(*_added(before, after, tokens),
                [row[known] for row, known in zip(drafted, there)],
                feedback, state)
    before = after


def _counted(state):
  """What says how far each row is."""
  return dict(done=state.done, lengths=state.lengths, kinds={
      k: getattr(state.stats, k) for k in ('accepted', 'corrected', 'bonus')})


def _added(before, after, tokens):
  """What a round added to each row, and the origin of each token."""
  spans = zip(before['lengths'], after['lengths'])
  old, new = before['kinds'], after['kinds']
  return ([row[start:end] for row, (start, end) in zip(tokens, spans)],
          [[kind for kind in new for _ in range(new[kind][i] - old[kind][i])]
           for i in range(len(tokens))])


def row_keys(seed: int | Key[Array, ''],
             ids: Int[Array | np.ndarray, 'B'] | Sequence[int]
             ) -> Key[Array, 'B']:
  """One key per example: fold_in(seed, id), whatever its row or batch."""
  key = jax.random.key(seed) if isinstance(seed, int) else seed
  fold = jax.vmap(jax.random.fold_in, (None, 0))
  return fold(key, jnp.asarray(ids, jnp.uint32))


def round_keys(keys: Key[Array, 'B'],
               rounds: Int[Array, 'B']) -> tuple[Key[Array, 'B'], ...]:
  """A round's keys [B]: one for the drafter, one for the verifier."""
  split = lambda key, i: jax.random.split(jax.random.fold_in(key, i))
  return tuple(jax.vmap(split, out_axes=1)(keys, rounds))


def _broken(draft, logits):
  """Rows with NaN, +inf or nothing but -inf at a node that may be visited.

  Rows of q that nobody computed are zeros, so they count as finite.
  """
  node = jnp.arange(logits.shape[1])[None]
  visited = (draft.tree.parents >= 0) | (node == 0)
  finite, q = _finite(logits), draft.prediction
  if q is not None:
    parent = jnp.maximum(draft.tree.parents, 0)
    drawn = jax.vmap(lambda law, *at: law[at])(
        q.probs, parent, draft.tree.tokens)
    finite &= jnp.isfinite(drawn) | (node == 0)
    finite &= _finite(q.logits)
  if draft.laws is not None:
    finite &= jnp.isfinite(draft.laws).all(-1)
  return jnp.any(visited & ~finite, 1)


def _finite(logits):
  """No NaN or +inf, and not all -inf. On CPU `max` may pass over a NaN."""
  total = jnp.where(logits == -jnp.inf, 0, logits).sum(-1)
  return jnp.isfinite(total) & (logits.max(-1) > -jnp.inf)


def _cut(verdict, nodes, ends, room):
  """Ends a verdict at the first of `ends`, or where `room` is used up.

  Returns the verdict of the tokens kept, all tokens [D], and whether it ended.
  """
  i, count = jnp.arange(len(verdict.path)), verdict.count
  new = jnp.roll(nodes[verdict.path], -1).at[count].set(verdict.next_token)
  ending = types.among(new, ends)
  end = jnp.min(jnp.where(ending & (i <= count), i, len(i)))
  last = jnp.minimum(jnp.minimum(count, end), room - 1)
  over = (last == end) | (last == room - 1)
  return types.Verdict(verdict.path, last, new[last]), new, over


def _append(tokens, length, new, emitted):
  i = jnp.arange(len(new))
  at = jnp.where(i < emitted, length + i, len(tokens))
  return tokens.at[at].set(new, mode='drop')
