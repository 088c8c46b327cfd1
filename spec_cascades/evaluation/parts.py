"""The parts of a decode as programs: prefill, draft, score and verdict.

Each runs its part up to `STEPS` times, and every time on what the time before
has found: a compiler can't do it once for all, and a call from the host costs
next to nothing beside it. How often is an argument, by what one took: a part
that takes long is repeated less.
"""
from __future__ import annotations

import collections
import math
from typing import Any

import jax
import jax.numpy as jnp

from spec_cascades import decode
from spec_cascades import stats
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.drafters import cached
from spec_cascades.evaluation import timing

STEPS = 24                           # of a part that is repeated, at most
AGAIN = 8                            # the same of a part of a certain round
BRIEF = 0.25                         # seconds that suffice for a part
DRAFT_STEPS = 'draft_steps'
PARTS = {
    'prefill': 'reading the prompt, with all models',
    'drafting': 'the drafter, its sampling included',
    'verification': 'the verifier on the draft, logits included',
    'sampling': 'warp, rule and verdict on these logits'}


def _blank(shapes: Any) -> Any:
  """Zeros of the shapes that `jax.eval_shape` has found."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


@jax.jit
def _prefills(steps, spec, params, draft_params, prompt, keys):
  """Reads a prompt, again and again; caches, tokens and lengths."""
  def read(prompt):
    state = spec.init(params, draft_params, prompt, keys)
    return state.cache, state.drafter, state.tokens, state.lengths

  def body(_, found):
    # Depends on what was found before, or it would be found but once: on every
    # array, since some are as they always are, such as an empty cache.
    ends = [x[(-1,) * x.ndim].astype(jnp.float32)
            for x in jax.tree.leaves(found)
            if x.size and jnp.issubdtype(x.dtype, jnp.number)]
    zero = (sum(ends) < -1e30).astype(jnp.int32)
    return read(jax.tree.map(lambda x: x + zero, prompt))

  return jax.lax.fori_loop(0, steps, body, _blank(jax.eval_shape(read, prompt)))


@jax.jit
def _round(spec, params, draft_params, found, keys, target, warp):
  """What a first round makes of what a prefill has found.

  In that round a drafter may do what it does once in a text.
  """
  cache, drafter, tokens, lengths = found
  zero = jnp.zeros_like(lengths)
  state = decode.State(
      tokens, lengths, zero > 0, zero, keys, zero + spec.max_length, cache,
      drafter, stats.zeros(len(lengths), spec.drafter.num_nodes))
  state, _ = spec.step(params, draft_params, target, warp, state)
  return state.cache, state.drafter, state.tokens, state.lengths


@jax.jit
def _drafts(steps, spec, draft_params, found, keys, target, warp):
  """Drafts, each from the last token of the draft before; the last one."""
  cache, drafter, tokens, lengths = found

  def propose(i, drafter, tokens):
    own, _ = decode.round_keys(keys, jnp.full(len(keys), i))
    ctx = types.Context(tokens, lengths, cache, warp, target.uses_q,
                        leaf_read=getattr(target, 'reads_q', None))
    return spec.drafter.propose(draft_params, drafter, ctx, own)

  def body(i, carry):
    draft, drafter = propose(i, *carry[1:])
    row = jnp.arange(len(lengths))
    tokens = carry[2].at[row, lengths - 1].set(draft.tree.tokens[:, -1])
    return draft, drafter, tokens

  draft, _ = jax.eval_shape(propose, jnp.int32(0), drafter, tokens)
  return jax.lax.fori_loop(0, steps, body, (_blank(draft), drafter, tokens))[0]


@jax.jit
def _scores(steps, spec, params, cache, tree):
  """Scores a draft, then what is likeliest after each node of it, and so on."""
  def body(_, carry):
    nodes = tree.replace(tokens=warp_lib.argmax(carry[0]))
    hidden, cache = spec.lm.extend(params, carry[1], nodes)
    return spec.lm.head(params, hidden), cache

  first = jax.nn.one_hot(tree.tokens, spec.lm.vocab_size)
  return jax.lax.fori_loop(0, steps, body, (first, cache))[0]


@jax.jit
def _verdicts(steps, spec, draft, logits, keys, target, warp):
  """Judges a draft; a verdict adds next to nothing to q and p of the next."""
  def body(i, nudge):
    _, own = decode.round_keys(keys, jnp.full(len(keys), i))
    q = jax.tree.map(lambda x: x + nudge, draft.prediction)
    verdict, _, broken = spec.judge(
        own, draft.replace(prediction=q), logits + nudge, target, warp)
    found = verdict.next_token + broken.astype(jnp.int32)
    return 1e-30 * found[0].astype(jnp.float32)

  return jax.lax.fori_loop(0, steps, body, jnp.float32(0))


def _nothing(x):
  """0, which a compiler can't know to be 0 before it has all of x."""
  return jnp.isnan(jnp.min(x).astype(jnp.float32) * 1e-30).astype(jnp.int32)


@jax.jit
def _redrafts(steps, spec, draft_params, state, target, warp):
  """A round's draft, made again and again."""
  own, _ = decode.round_keys(state.keys, state.stats.rounds)

  def propose(tokens, drafter):
    ctx = types.Context(tokens, state.lengths, state.cache, warp,
                        target.uses_q, ~state.done,
                        getattr(target, 'reads_q', None), spec.ends)
    return spec.drafter.propose(draft_params, drafter, ctx, own)

  def body(_, carry):
    draft, drafter = carry
    # Caches are written in place, as in a decode; what else it knows is as it
    # was before the draft.
    known = cached.caches_of(drafter, state.drafter)
    return propose(state.tokens + _nothing(draft.tree.tokens), known)

  draft, _ = jax.eval_shape(propose, state.tokens, state.drafter)
  return jax.lax.fori_loop(0, steps, body, (_blank(draft), state.drafter))[0]


@jax.jit
def _rescores(steps, spec, params, state, draft):
  """A round's draft, scored again and again."""
  def score(tokens, cache):
    tree = draft.tree.replace(tokens=tokens)
    return spec.score(params, cache, draft.replace(tree=tree), ~state.done)[1:]

  def body(_, carry):
    logits, cache = carry
    return score(draft.tree.tokens + _nothing(logits), cache)

  logits, _ = jax.eval_shape(score, draft.tree.tokens, state.cache)
  return jax.lax.fori_loop(0, steps, body, (_blank(logits), state.cache))[0]


def _timed(function, most, *args):
  """Seconds of one step of up to `most`, two at least, and what the last found.

  A first call of one step, which may compile, says how long one takes.
  """
  one, _ = timing.timed(function, 1, *args)
  steps = min(most, max(2, math.ceil(BRIEF / one)))
  seconds, out = timing.timed(function, steps, *args)
  return seconds / steps, out


_start = jax.jit(decode.GenSpecSample.init)
_step = jax.jit(decode.GenSpecSample.step)


def seconds(loop: tuple[Any, Any, Any], prompt: types.Prompt,
            keys: jax.Array, chosen: tuple[Any, Any]) -> dict[str, float]:
  """Of each of `PARTS`, once; the first call with such a loop compiles.

  And under `DRAFT_STEPS`, how many steps of the drafter's model a draft took.

  Args:
    loop: A `GenSpecSample` and the parameters of both models.
    prompt: Of one text.
    keys: Its own.
    chosen: Target and warp.
  """
  spec, params, draft_params = loop
  took = {}

  def timed(part, function, *args):
    took[part], out = _timed(function, STEPS, spec, *args)
    return out

  found = timed('prefill', _prefills, params, draft_params, prompt, keys)
  found = jax.block_until_ready(
      _round(spec, params, draft_params, found, keys, *chosen))
  draft = timed('drafting', _drafts, draft_params, found, keys, *chosen)
  took[DRAFT_STEPS] = float(draft.calls[0])
  logits = timed('verification', _scores, params, found[0], draft.tree)
  judged = draft.judged
  timed('sampling', _verdicts, judged,
        logits[:, :judged.tree.tokens.shape[1]], keys, *chosen)
  return took


def along(loop: tuple[Any, Any, Any], prompt: types.Prompt,
          keys: jax.Array, chosen: tuple[Any, Any]) -> dict[str, float]:
  """What `seconds` returns, on average over the rounds of a text.

  For drafts whose cost depends on what they are: the text is decoded round by
  round, and the parts of each round are made `AGAIN` times. `DRAFT_STEPS` is 0:
  a round's drafting is as measured, not by steps.
  """
  spec, params, draft_params = loop
  took, rounds = collections.Counter(), 0
  took['prefill'], _ = _timed(
      _prefills, STEPS, spec, params, draft_params, prompt, keys)
  state = _start(spec, params, draft_params, prompt, keys)

  def timed(part, function, steps, *args):
    seconds, out = _timed(function, steps, spec, *args)
    took[part] += seconds
    return out

  while not state.done.all():
    draft = timed('drafting', _redrafts, AGAIN, draft_params, state, *chosen)
    logits = timed('verification', _rescores, AGAIN, params, state, draft)
    judged = draft.judged
    timed('sampling', _verdicts, STEPS, judged,
          logits[:, :judged.tree.tokens.shape[1]], keys, *chosen)
    state, _ = _step(spec, params, draft_params, *chosen, state)
    rounds += 1
  return {DRAFT_STEPS: 0., **{part: x / (1 if part == 'prefill' else rounds)
                              for part, x in took.items()}}
