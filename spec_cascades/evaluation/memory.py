"""Temporaries of a round at its largest, from the compiler; nothing runs.

Sizes are of the compiled program for the device at hand, beside its arguments
and results.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Iterator

import jax
import jax.numpy as jnp

from spec_cascades import decode
from spec_cascades import types
from spec_cascades import verify
from spec_cascades.evaluation import overhead
from spec_cascades.models import toy

VOCAB, NODES = 262_144, 64
LIMIT = 2**30
VERIFIERS = (verify.Rejection(), verify.Block(), verify.KSeq(),
             verify.Typical(), verify.TopB(), verify.Rollback(),
             verify.Forced())


@dataclasses.dataclass(frozen=True)
class Shape:
  """A draft: the parents of its nodes, and how children are drawn."""
  name: str
  parents: tuple[int, ...]
  law: str

  def __str__(self) -> str:
    return f'{self.name} of {len(self.parents)}, {self.law}'

  def draft(self, tree: types.TokenTree, q: types.Prediction) -> types.Draft:
    """A draft of this shape."""
    return types.Draft(tree, q, jnp.zeros(1, jnp.int32), self.law,
                       types.depths(self.parents)[-1])


def shapes(nodes: int = NODES) -> tuple[Shape, ...]:
  """A chain, and trees of two children a node, drawn either way."""
  line = tuple(range(-1, nodes - 1))
  binary = (-1, *(i // 2 for i in range(nodes - 1)))
  return (Shape('chain', line, 'sampled'), Shape('tree', binary, 'sampled'),
          Shape('tree', binary, 'distinct'))


def combinations(nodes: int = NODES) -> Iterator[tuple[Any, Shape]]:
  """Every verifier with every shape that it takes."""
  for judge in VERIFIERS:
    for shape in shapes(nodes):
      draft = shape.draft(*_abstract(shape, 2)[:2])
      try:
        judge.supports.check(judge, draft)
      except ValueError:
        continue
      yield judge, shape


def fusing(name: str, judge: Any, shape: Shape, *, vocab: int = VOCAB) -> int:
  """Bytes of warp, target and verifier, from logits to verdict, at batch 1."""
  tree, q, logits, keys = _abstract(shape, vocab)
  target, warp = jax.eval_shape(lambda: (overhead.rule(name), overhead.warp()))

  def run(target, warp, judge, tree, q, logits, keys):
    draft, p = shape.draft(tree, q), warp(logits)
    fused = target(draft.prediction, p)
    return jax.vmap(judge)(keys, draft, p, fused.pi), fused.deferral

  return _temporaries(jax.jit(run), target, warp, judge, tree, q, logits, keys)


def stepping(name: str, judge: Any, drafter: Any, *, vocab: int = VOCAB) -> int:
  """Bytes of a whole round with a verifier that keeps next to nothing.

  Args:
    name: The rule's.
    judge: The verifier of drafts.
    drafter: Makes a drafter of a small model.
    vocab: Entries of both models.
  """
  lm = toy.ToyLM(vocab, width=8, layers=1)
  proposer = drafter(lm)
  spec = decode.GenSpecSample(lm, proposer, proposer.num_nodes + 2, judge,
                              eos=-1)
  params, target, warp, keys = jax.eval_shape(lambda: (
      lm.init_params(jax.random.key(0)), overhead.rule(name), overhead.warp(),
      decode.row_keys(0, [0])))
  prompt = types.Prompt(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
  state = jax.eval_shape(spec.init, params, params, prompt, keys)
  return _temporaries(_step, spec, params, params, target, warp, state)


_step = jax.jit(lambda spec, *args: spec.step(*args)[0])


def _abstract(shape: Shape, vocab: int):
  """Tree, q, p's logits and keys of one row, without their contents."""
  n = len(shape.parents)
  logits = jax.ShapeDtypeStruct((1, n, vocab), jnp.float32)
  tree = jax.eval_shape(
      lambda: types.tree(jnp.zeros((1, n), jnp.int32), shape.parents))
  return (tree, types.Prediction(logits, logits), logits,
          jax.eval_shape(lambda: decode.row_keys(0, [0])))


def _temporaries(program: Any, *args: Any) -> int:
  compiled = program.lower(*args).compile()
  return compiled.memory_analysis().temp_size_in_bytes
