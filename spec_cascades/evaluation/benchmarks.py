"""Timed programs: one step, one block, whole decodes, on random weights.

Every figure is a time of a compiled program on a synchronised device; nothing
here includes compilation. Programs that are compared run in turn, so that the
machine's drift hits all of them alike.
"""
from __future__ import annotations

import dataclasses
import statistics
from typing import Any, Callable

import jax
import jax.numpy as jnp

from spec_cascades import decode
from spec_cascades import sharding
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import warp
from spec_cascades.drafters import chain
from spec_cascades.drafters import null
from spec_cascades.drafters import tree
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import text
from spec_cascades.evaluation import timing
from spec_cascades.models import products
from spec_cascades.models import t5
from spec_cascades import verify


@dataclasses.dataclass(frozen=True)
class Spread:
  """Seconds: the median of several runs, and their extremes."""
  median: float
  low: float
  high: float

  def __str__(self) -> str:
    return (f'{1e3 * self.median:.2f} ms '
            f'[{1e3 * self.low:.2f}, {1e3 * self.high:.2f}]')

  def over(self, steps: int) -> Spread:
    """Of one of so many steps."""
    return Spread(self.median / steps, self.low / steps, self.high / steps)


def timed(calls: dict[str, Callable[[], Any]],
          runs: int = 7) -> dict[str, Spread]:
  """Seconds of each program: one run to warm up, then `runs` in turn."""
  for call in calls.values():
    jax.block_until_ready(call())
  seconds = {name: [] for name in calls}
  for _ in range(runs):
    for name, call in calls.items():
      seconds[name].append(timing.timed(call)[0])
  return {name: Spread(statistics.median(all_), min(all_), max(all_))
          for name, all_ in seconds.items()}


# Public dimensions: T5 v1.1 small and large (Raffel et al. 2020).
SMALL = t5.T5Config(emb_dim=512, num_heads=6, num_encoder_layers=8,
                    num_decoder_layers=8, head_dim=64, mlp_dim=1024)
LARGE = t5.T5Config(emb_dim=1024, num_heads=16, num_encoder_layers=24,
                    num_decoder_layers=24, head_dim=64, mlp_dim=2816)


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A model with packed parameters, ready to decode."""
  lm: Any
  packed: Any

  @classmethod
  def random(cls, config: t5.T5Config, seed: int = 0,
             layout: sharding.Layout | None = None) -> Loaded:
    """Random weights; the checkpoint layout is dropped once packed."""
    lm = t5.T5(config)
    params = lm.init_params(jax.random.key(seed))   # jitted, it compiles long
    lm = meshes.placed(lm, layout)
    return cls(lm, products.compacted(lm.pack(params)))


def prompt_of(batch: int, width: int) -> types.Prompt:
  """A prompt of `width` arbitrary tokens for an encoder-decoder."""
  row = [2 + (7 * i) % 97 for i in range(width - 1)] + [text.EOS]
  return text.encoder_prompt([row] * batch, width)


def block_program(model: Loaded, nodes: int, *, steps: int = 20,
                  slots: int = 64, width: int = 64, batch: int = 1,
                  prompt: types.Prompt | None = None) -> Callable[[], Any]:
  """A program that scores `steps` blocks of `nodes` tokens, one after another.

  Each block is read at the same place behind `slots` // 2 committed tokens, and
  the argmax of one is the next: a chain of dependent calls, as in decoding.
  `prompt` is of `batch` rows, for models that are no encoder-decoders.
  """
  prompt = prompt_of(batch, width) if prompt is None else prompt
  prompt, tokens, start = meshes.rows(model.lm, (
      prompt, jnp.ones((batch, nodes), jnp.int32),
      jnp.full(batch, slots // 2, jnp.int32)))
  cache = jax.jit(model.lm.init, static_argnums=2)(
      model.packed, prompt, slots + nodes).truncate(start)

  def run(packed, cache, tokens):
    def body(_, carry):
      cache, tokens = carry
      hidden, cache = model.lm.extend(packed, cache, types.chain(tokens))
      logits = model.lm.head(packed, hidden)
      return cache, warp.argmax(logits)
    return jax.lax.fori_loop(0, steps, body, (cache, tokens))[1]

  run = jax.jit(run)
  return lambda: run(model.packed, cache, tokens)


def prefill_program(model: Loaded, *, slots: int = 80, width: int = 64,
                    batch: int = 1) -> Callable[[], Any]:
  """The encoder and an empty cache: what a decode does before its rounds.

  A model that shares its verifier's encoder gets that one's states.
  """
  prompt, lm = prompt_of(batch, width), meshes.bare(model.lm)
  if lm.shared and lm.config.encoder is not None:
    lent = jnp.zeros((batch, width, lm.config.encoder.emb_dim), lm.config.dtype)
    prompt = prompt.replace(lent=lent)
  prompt = meshes.rows(model.lm, prompt)
  run = jax.jit(model.lm.init, static_argnums=2)
  return lambda: run(model.packed, prompt, slots)


def decode_program(verifier: Loaded, drafter: Loaded | None, gamma: int, *,
                   rate: float | None = None, new_tokens: int = 64,
                   width: int = 64, temperature: float = 0.0,
                   batch: int = 1, parents: tuple[int, ...] | None = None
                   ) -> Callable[[], Any]:
  """A program that decodes `new_tokens` tokens a row; EOS is ignored.

  Args:
    verifier: p.
    drafter: q, or None for autoregression with p.
    gamma: Draft length.
    rate: If given, every draft is accepted with this probability, whatever the
      models say (`verify.Forced`).
    new_tokens: Tokens to emit.
    width: Encoder length.
    temperature: Of both models.
    batch: Rows.
    parents: Of a tree to draft, in place of a chain of gamma tokens.
  """
  proposer = null.Null() if drafter is None else (
      chain.Chain(drafter.lm, gamma) if parents is None else
      tree.Tree(drafter.lm, parents))
  judge = verify.Rejection() if rate is None else verify.Forced(rate)
  spec = decode.GenSpecSample(verifier.lm, proposer, new_tokens + 1,
                              verify=judge, eos=-1)
  prompt, keys = meshes.rows(verifier.lm, (
      prompt_of(batch, width), decode.row_keys(0, range(batch))))
  packed = None if drafter is None else drafter.packed
  return lambda: spec(verifier.packed, packed, prompt, keys,
                      targets.Lossless(), warp.Warp(temperature))
