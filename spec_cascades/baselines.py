"""Sequential baselines: cascades that ask q first, and BiLD as published.

    spec = Sequential(verifier, drafter, max_length=64)
    state = spec(params, draft_params, prompt, row_keys(0, ids),
                 SeqCascade(alpha=0.3), Warp(temperature=0.))

Each runs the `step` of `decode.GenSpecSample` in one compiled program and calls
a model when the method needs it only. Reading a prompt counts as no call.

Reference: Narasimhan et al. (2025), https://arxiv.org/abs/2405.19261, section 3
"""
from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import verify as verify_lib
from spec_cascades.drafters import chain
from spec_cascades.drafters import null
from spec_cascades.drafters import root
from spec_cascades.models import deferring
from spec_cascades.targets.base import Ruled

LOSSLESS = targets.Lossless()


@struct.dataclass
class Sequential:
  """Decodes with a baseline of this module; called as `GenSpecSample` is.

  Attributes:
    lm: The large model p.
    small: The small model q.
    max_length: Tokens per row, the prompt's among them.
    eos: The token that ends a row, or a tuple of such; -1 for none.
  """
  lm: Any = struct.field(pytree_node=False)
  small: Any = struct.field(pytree_node=False)
  max_length: int = struct.field(pytree_node=False)
  eos: int | tuple[int, ...] = struct.field(pytree_node=False, default=1)
  verify: ClassVar[verify_lib.Rejection] = verify_lib.Rejection()

  def __post_init__(self):
    if self.small.vocab_size != self.lm.vocab_size:
      raise ValueError(
          f'q has a vocabulary of {self.small.vocab_size} tokens and p one of '
          f'{self.lm.vocab_size}; allowed: the same one for both.')

  @property
  def drafter(self) -> root.Root:
    """q, asked beside p at every token."""
    return root.Root(self.small)

  def loop(self, lm: Any, drafter: Any = null.Null(),
           verify: Any = verify) -> decode.GenSpecSample:
    """A loop with the same limits; of a model alone by default."""
    return decode.GenSpecSample(lm, drafter, self.max_length, verify, self.eos)

  def __call__(self, params: Any, draft_params: Any, prompt: types.Prompt,
               keys: Key[Array, 'B'], rule: Any, warp: Any) -> decode.State:
    """Decodes every row to its end, in one compiled program.

    Args:
      params: The parameters of p, from `lm.pack`.
      draft_params: Those of q.
      prompt: Right-padded prompts of at least one token a row.
      keys: One key per row, see `decode.row_keys`.
      rule: A baseline of this module.
      warp: The sampling transform of both models.

    Returns:
      The last state, without caches; its `stats` are in the rule's docstring.

    Raises:
      ValueError: Something is outside what it may be, see `check.call`.
    """
    check.instance(rule)
    name = type(rule).__name__
    if not isinstance(rule, _Baseline):
      raise ValueError(f'{name} is no baseline; allowed: SeqCascade, '
                       'TokenCascade, OracleCascade, OriginalBiLD. Targets go '
                       'to GenSpecSample.')
    check.call(self, prompt, keys, rule, warp)
    if rule.greedy:
      check_greedy(name, warp.temperature)
    return run(self, params, draft_params, prompt, keys, rule, warp)


@jax.jit
def run(spec: Sequential, params: Any, draft_params: Any, prompt: types.Prompt,
        keys: Key[Array, 'B'], rule: Any, warp: Any) -> decode.State:
  """`spec(...)` without the checks of numbers."""
  state = rule.decode(spec, params, draft_params, prompt, keys, warp)
  return state.replace(cache=None, drafter=None)


def renewed(keys: Key[Array, 'B']) -> Key[Array, 'B']:
  """Keys that no round of a decode with `keys` has used."""
  return jax.vmap(jax.random.fold_in, (0, None))(keys, 2**31 - 1)


def check_greedy(name: str, temperature: Any) -> None:
  """Refuses a temperature other than 0, a traced one too."""
  if isinstance(temperature, jax.core.Tracer):
    raise ValueError(f'temperature of {name} is traced; allowed: a concrete 0. '
                     'The method is defined for greedy decoding only.')
  check.interval(f'temperature of {name}', temperature, 0, 0,
                 hint='The method is defined for greedy decoding only.')


class _Baseline(Ruled):
  """A rule with a loop of its own.

  `decode` takes the spec and then the arguments of `Sequential.__call__`.
  `length` is how many tokens q writes before the rule looks.
  """
  greedy: ClassVar[bool] = False
  length: ClassVar[int] = 1


@struct.dataclass
class SeqCascade(_Baseline):
  """q writes the response; p writes it again if q's confidence < 1 - alpha.

  Confidence is exp(mean log q(x)) over the response, EOS included, at
  temperature 1; exp(sum log q(x)) if not `normalised`. q alone at alpha = 1, p
  alone for alpha < 0; p reads the prompt only if some row is deferred.

  Stats: rounds are tokens written by either, drafted those by q and
  drafter_calls as many; accepted, where q's response stands, all of it, and
  corrected, where it does not, all of p's; verifier_calls one for each of
  these; deferred = corrected.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  normalised: bool = struct.field(pytree_node=False, default=True)
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def decode(self, spec, params, draft_params, prompt, keys, warp):
    small, large = spec.loop(spec.small), spec.loop(spec.lm)

    def write(carry):
      state, logs = carry
      state, seen = small.step(draft_params, None, LOSSLESS, warp, state)
      check.head(spec.small, seen.logits)
      of_token = types.pick(jax.nn.log_softmax(seen.logits[:, 0]),
                            seen.verdict.next_token)
      return state, logs + jnp.where(seen.live, of_token, 0)

    q = small.init(draft_params, None, prompt, keys)
    q, logs = jax.lax.while_loop(lambda c: ~c[0].done.all(), write,
                                 (q, jnp.zeros(len(keys))))
    if self.normalised:
      logs = logs / jnp.maximum(q.stats.emitted, 1).astype(jnp.float32)
    unsure = (self.alpha < 0) | (jnp.exp(logs) < 1 - self.alpha)
    defers = (q.fault == 0) & unsure

    def again():
      state = large.init(params, None, prompt, renewed(keys))
      step = lambda s: large.step(params, None, LOSSLESS, warp, s)[0]
      p = _to_end(step, state.replace(done=state.done | ~defers))
      own = lambda new, old: jnp.where(types.rows(defers, old), new, old)
      fault = jnp.where(p.fault > 0, q.stats.rounds + p.fault, 0)
      return (own(p.tokens, q.tokens), own(p.lengths, q.lengths),
              own(fault, q.fault), p.stats.emitted)

    tokens, lengths, fault, new = jax.lax.cond(
        defers.any(), again,
        lambda: (q.tokens, q.lengths, q.fault, jnp.zeros_like(q.lengths)))
    old = q.stats.emitted
    kept = jnp.where(defers, 0, old)
    stats = q.stats.replace(
        rounds=old + new, drafted=old, emitted=kept + new,
        deferred=new.astype(jnp.float32), verifier_calls=new, drafter_calls=old)
    return q.replace(tokens=tokens, lengths=lengths, fault=fault,
                     stats=_by_origin(stats, accepted=kept, corrected=new))


@struct.dataclass
class TokenCascade(_Baseline):
  """A token is drawn from q~ if max q >= 1 - alpha, else p is asked: from p~.

  The law of `targets.Chow`. p reads what was written since its last call, up
  to `block` tokens a pass, when it is asked. q alone at alpha = 1, p alone for
  alpha < 0; p reads the prompt when it is first asked.

  Stats: rounds are tokens, drafter_calls as many; accepted = drafted are those
  drawn from q~, bonus = deferred those from p~, as nothing was drawn that they
  replace; verifier_calls are all passes of p, those that catch up included.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  block: int = struct.field(pytree_node=False, default=8)
  domain: ClassVar[tuple[float, float]] = (-1., 1.)

  def __post_init__(self):
    check.interval('block of TokenCascade', self.block, 1, 2**31 - 1,
                   whole=True, hint='It is how many tokens p reads in a pass.')

  def decode(self, spec, params, draft_params, prompt, keys, warp):
    loop = spec.loop(deferring.Deferring(spec.lm, spec.small, self.block))
    both = params, draft_params, self.alpha
    step = lambda s: loop.step(both, None, LOSSLESS, warp, s.replace(
        cache=s.cache.replace(live=~s.done)))[0]
    state = _to_end(step, loop.init(both, None, prompt, keys))
    stats, asked = state.stats, state.cache.deferred
    own = stats.emitted - asked
    return state.replace(stats=_by_origin(stats.replace(
        drafted=own, deferred=asked.astype(jnp.float32),
        verifier_calls=state.cache.calls, drafter_calls=stats.rounds),
        accepted=own, corrected=jnp.zeros_like(own)))


@struct.dataclass
class OracleCascade(_Baseline):
  """A token is drawn from pi = T(q, p), both asked at every token.

  T is `rule(alpha)`, a class of `targets`: its exact law at a step of q and one
  of p a token, which is what speculation saves.

  Stats: rounds are tokens, all of them bonus: nothing is drafted; drafter_calls
  and verifier_calls one a token; deferred as the target says.
  """
  alpha: float | Float[Array, '*B'] = 0.5
  rule: Any = struct.field(pytree_node=False, default=targets.Diff)
  domain: ClassVar[tuple[float, float]] = targets.Diff.domain

  def __post_init__(self):
    if not (isinstance(self.rule, type)
            and issubclass(self.rule, Ruled)):
      raise ValueError(f'The rule {self.rule!r} of OracleCascade; allowed: a '
                       'class of spec_cascades.targets with an alpha, such as '
                       'targets.Diff.')

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for an alpha outside the target's domain."""
    self.rule(alpha=self.alpha).validate(batch)

  def decode(self, spec, params, draft_params, prompt, keys, warp):
    return decode.run(spec.loop(spec.lm, spec.drafter), params, draft_params,
                      prompt, keys, self.rule(alpha=self.alpha), warp)


@struct.dataclass
class OriginalBiLD(_Baseline):
  """p replaces the first of q's tokens with -log p(x) > alpha, drops the rest.

  Greedy. p writes the first token; then q writes while max q >= `fallback`, at
  most `length` tokens, and p judges them. alpha is the rollback threshold, in
  nats: of the method's two thresholds the one whose curve starts at p's own
  greedy text, 0, and which `targets.BiLD` has too, so that the two compare. At
  inf nothing is rolled back: p writes where q is unsure.

  Stats: as of any drafter, but deferred are p's own tokens, corrected + bonus;
  the round of the first token has one step of q as well.

  Reference: Kim et al. (2023), https://arxiv.org/abs/2302.07863
  """
  alpha: float | Float[Array, ''] = 5.0
  fallback: float | Float[Array, '*B'] = 0.6
  length: int = struct.field(pytree_node=False, default=10)
  greedy: ClassVar[bool] = True
  domain: ClassVar[tuple[float, float]] = (0., math.inf)

  def __post_init__(self):
    check.gamma(self.length)

  def validate(self, batch: int | None = None) -> None:
    """Raises ValueError for thresholds outside their domains; host only."""
    check.scalar('alpha of OriginalBiLD', self.alpha)
    super().validate()
    chain.Below(self.fallback).validate(batch)

  def decode(self, spec, params, draft_params, prompt, keys, warp):
    def at(threshold):
      drafter = chain.Chain(spec.small, self.length, chain.Below(threshold))
      return spec.loop(spec.lm, drafter, verify_lib.Rollback(self.alpha))

    def step(state):
      first = state.stats.rounds == 0       # nothing is as sure as 2
      loop = at(jnp.where(first, 2., self.fallback))
      return loop.step(params, draft_params, LOSSLESS, warp, state)[0]

    state = _to_end(step, at(self.fallback).init(
        params, draft_params, prompt, keys))
    stats = state.stats
    return state.replace(stats=stats.replace(deferred=(
        stats.corrected + stats.bonus).astype(jnp.float32)))


def _to_end(step, state):
  return jax.lax.while_loop(lambda s: ~s.done.all(), step, state)


def _by_origin(stats, *, accepted, corrected):
  """Counters of rounds that kept one token of q, or none."""
  columns = lambda *x: jnp.stack(x, 1)
  return stats.replace(
      accepted=accepted, corrected=corrected,
      bonus=stats.emitted - accepted - corrected,
      histogram=columns(stats.rounds - accepted, accepted),
      rejected=columns(corrected, jnp.zeros_like(corrected)))
