"""What a rule or a warp adds to a round: end to end, and its part alone.

Everything is compared with `Lossless`, made to draft q at the last node as the
rules that read it need: the drafter step that takes is no part of a rule's own
cost, and is measured beside it. Acceptance is forced (`verify.Forced`), so that
all rounds emit the same number of tokens.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, ClassVar, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import decode
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import verify
from spec_cascades import warp as warp_lib
from spec_cascades.drafters import chain
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import timing

Program = Callable[[], Any]
PLAIN = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, eta=0.0)
# Each truncation at a usual strength, and greedy decoding.
WARPS = {'temperature 0': dict(temperature=0.0), 'top-k 50': dict(top_k=50),
         'top-p 0.9': dict(top_p=0.9), 'min-p 0.05': dict(min_p=0.05),
         'eta 0.0003': dict(eta=3e-4)}


def warp(**changes: float) -> warp_lib.Warp:
  """A warp whose numbers are on the device: changing one compiles nothing."""
  dtype = dict(top_k=jnp.int32)
  return warp_lib.Warp(**{name: dtype.get(name, jnp.float32)(value)
                          for name, value in {**PLAIN, **changes}.items()})


def rule(name: str) -> Any:
  """The rule of that name at its default alpha, on the device."""
  made = rules.RULES[name]()
  if not rules.takes_alpha(type(made)):
    return made
  return type(made)(alpha=jnp.float32(made.alpha))


@struct.dataclass
class WithLeaf:
  """A rule for which q is drafted at the last node, whether it is read or not.

  So made, `Lossless` takes the drafter steps of the rules that use q.
  """
  rule: Any
  uses_q: ClassVar[bool] = True

  def validate(self, batch: int | None = None) -> None:
    """That of the rule."""
    self.rule.validate(batch)

  def __call__(self, q: types.Prediction | None,
               p: types.Prediction) -> types.Fused:
    return self.rule(q, p)


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A median, and a 95 % interval of it from order statistics.

  Of fewer than 6 samples `low` and `high` are the extremes: there is no such
  interval then.
  """
  median: float
  low: float
  high: float

  @classmethod
  def of(cls, samples: Sequence[float] | np.ndarray) -> Estimate:
    """From independent samples, whatever their distribution."""
    ordered = np.sort(np.asarray(samples, np.float64))
    n, below, outside = len(ordered), 0.0, 0
    for i in range(n):                # P(Binomial(n, 1/2) <= i)
      below += math.comb(n, i) / 2**n
      outside += below <= 0.025
    k = max(outside - 1, 0)
    return cls(float(np.median(ordered)), float(ordered[k]),
               float(ordered[n - 1 - k]))


def paired(reference: Program, calls: dict[str, Program], runs: int,
           seed: int = 0) -> dict[str, np.ndarray]:
  """Seconds of each program and of the reference right around it: [runs, 2].

  The reference runs before and after every program, whose order is drawn anew
  in every pass; its seconds are the mean of the two. One pass warms up.
  """
  for call in (reference, *calls.values()):
    jax.block_until_ready(call())
  names, seconds = list(calls), {name: [] for name in calls}
  before = timing.timed(reference)[0]
  for _, i in timing.interleaved(runs, len(names), seed):
    took = timing.timed(calls[names[i]])[0]
    after = timing.timed(reference)[0]
    seconds[names[i]].append((took, (before + after) / 2))
    before = after
  return {name: np.array(pairs) for name, pairs in seconds.items()}


def rounds_of(verifier: benchmarks.Loaded, drafter: benchmarks.Loaded,
              gamma: int, rounds: int, *, rate: float = 0.75,
              width: int = 64) -> Callable[[Any, Any], Program]:
  """(target, warp) -> a program: `rounds` rounds from one and the same state.

  A program returns tokens and lengths. Encoders are not in it.
  """
  spec = decode.GenSpecSample(
      verifier.lm, chain.Chain(drafter.lm, gamma), rounds * (gamma + 1) + 2,
      verify.Forced(rate), eos=-1)
  state = _init(spec, verifier.packed, drafter.packed,
                benchmarks.prompt_of(1, width), decode.row_keys(0, [0]))
  return lambda target, warp: lambda: _rounds(
      rounds, spec, verifier.packed, drafter.packed, target, warp, state)


_init = jax.jit(decode.GenSpecSample.init)


@jax.jit(static_argnums=0)
def _rounds(rounds, spec, params, draft_params, target, warp, state):
  step = lambda _, s: spec.step(params, draft_params, target, warp, s)[0]
  out = jax.lax.fori_loop(0, rounds, step, state)
  return out.tokens, out.lengths


def part_of(vocab_size: int, gamma: int, *, steps: int = 32, samples: int = 8,
            rate: float = 0.75) -> Callable[[Any, Any], Program]:
  """(target, warp) -> a program: what follows the logits, `steps` times.

  The warp of q, a node at a time as drafters apply it, the warp of p, the
  target and the verifier, on logits as peaked as a language model's.
  """
  key_p, key_q, key_t = jax.random.split(jax.random.key(0), 3)
  shape = (samples, 1, gamma + 1, vocab_size)
  of_p = 3 * jax.random.normal(key_p, shape)
  of_q = of_p + jax.random.normal(key_q, shape)
  tokens = jax.random.randint(key_t, (1, gamma + 1), 0, vocab_size)
  data = verify.Forced(rate), of_q, of_p, types.chain(tokens)
  return lambda target, warp: lambda: _parts(steps, *data, target, warp)


@jax.jit(static_argnums=0)
def _parts(steps, judge, of_q, of_p, tree, target, warp):
  def body(i, carry):
    at = i % len(of_q)
    nodes = jax.lax.map(warp, jnp.moveaxis(of_q[at], 1, 0))
    q = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), nodes)
    draft = types.Draft(tree, q, jnp.zeros(1, jnp.int32),
                        max_depth=tree.tokens.shape[1] - 1)
    p = warp(of_p[at])
    fused = target(draft.prediction, p)
    verdict = jax.vmap(judge)(decode.row_keys(0, i[None]), draft, p, fused.pi)
    return carry[0] + verdict.next_token, carry[1] + fused.deferral.sum()

  return jax.lax.fori_loop(0, steps, body, (jnp.zeros(1, jnp.int32), 0.))


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a case adds to a round; all are relative to the reference's round.

  Attributes:
    whole: From rounds measured end to end.
    part: From the part alone: its seconds over those of a round.
    seconds: The part's seconds a round.
  """
  whole: Estimate
  part: Estimate
  seconds: Estimate


@dataclasses.dataclass(frozen=True)
class Report:
  """All costs.

  Attributes:
    round_seconds: Of the reference, drafter and verifier included.
    costs: By rule and by warp.
    leaf: What drafting q at the last node adds, relative to a round without.
    switch: What a `Choice` among all rules adds, relative to the rule alone.
  """
  round_seconds: Estimate
  costs: dict[str, Cost]
  leaf: Estimate
  switch: Estimate


def measure(verifier: benchmarks.Loaded, drafter: benchmarks.Loaded,
            gamma: int, runs: int, *, rounds: int = 2, rate: float = 0.75,
            steps: int = 32, names: Sequence[str] | None = None) -> Report:
  """What every rule and warp adds to a round of these models, batch 1.

  End to end all rules ride in one compiled program, chosen by a traced index as
  in a sweep; the part is compiled for each rule alone.

  Args:
    verifier: p.
    drafter: q.
    gamma: Draft length.
    runs: Passes, in each of which everything is run once.
    rounds: Of a program that is timed.
    rate: Forced acceptance.
    steps: Repetitions of a part.
    names: Rules to measure; all if None.
  """
  lossless, plain = targets.Lossless(), warp()
  cases = {name: rule(name) for name in names or rules.RULES
           if name != type(lossless).__name__}
  choice = lambda i: targets.Choice(
      (WithLeaf(lossless), *cases.values()), jnp.int32(i))
  warps = {name: warp(**changes) for name, changes in WARPS.items()}

  make = rounds_of(verifier, drafter, gamma, rounds, rate=rate)
  calls = {name: make(choice(i), plain) for i, name in enumerate(cases, 1)}
  calls |= {name: make(choice(0), w) for name, w in warps.items()}
  alone = make(WithLeaf(lossless), plain)
  found = paired(make(choice(0), plain), {**calls, '': alone}, runs)
  without = paired(make(lossless, plain), {'': alone}, runs)['']

  part = part_of(verifier.lm.vocab_size, gamma, steps=steps, rate=rate)
  parts = {name: part(x, plain) for name, x in cases.items()}
  parts |= {name: part(lossless, w) for name, w in warps.items()}
  own = paired(part(lossless, plain), parts, runs)

  ratio = lambda x: Estimate.of(x[:, 0] / x[:, 1] - 1)
  round_seconds = Estimate.of(
      np.concatenate([found[name][:, 1] for name in calls]) / rounds)
  seconds = {name: (x[:, 0] - x[:, 1]) / steps for name, x in own.items()}
  costs = {name: Cost(ratio(found[name]),
                      Estimate.of(seconds[name] / round_seconds.median),
                      Estimate.of(seconds[name])) for name in calls}
  switch = found[''][:, ::-1]
  return Report(round_seconds, costs, ratio(without), ratio(switch))
