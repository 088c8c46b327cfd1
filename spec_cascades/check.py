"""Bad input, refused before anything is compiled.

Every message is one line: what was given, what is allowed, what to do. Checks
of shapes and structure work on tracers too; checks of numbers need concrete
values and run on the host (`call`), which is also the only place where the
contents of prompts, alphas and temperatures are looked at.
"""
from __future__ import annotations

from typing import Any

import jax
import numpy as np

from spec_cascades import fetching

MAX_GAMMA = 1024                        # a block is read whole, with its mask


def interval(name: str, value: Any, low: float, high: float, *,
             above: bool = False, whole: bool = False,
             batch: int | None = None, hint: str = '') -> None:
  """Refuses what is no number, or outside [low, high]; entries of arrays too.

  Args:
    name: What the number is called in the message.
    value: A concrete number or array; NaN is outside every interval.
    low: Smallest value allowed.
    high: Largest value allowed.
    above: Refuse `low` itself too.
    whole: Refuse floats too.
    batch: If given, `value` must have shape () or (batch,).
    hint: What to do about it.
  """
  numbers = np.asarray(value)
  kinds = (np.integer,) if whole else (np.integer, np.floating)
  if not any(jax.dtypes.issubdtype(numbers.dtype, kind) for kind in kinds):
    given = f'an array of {numbers.dtype}' if numbers.ndim else repr(value)
    raise ValueError(f'{name} is {given}; allowed: a {"whole " * whole}'
                     f'number of {low:g} to {high:g}. {hint}'.rstrip())
  if batch is not None and numbers.shape not in ((), (batch,)):
    raise ValueError(f'{name} has shape {numbers.shape}; allowed: a scalar or '
                     f'one number per row, here ({batch},).')
  bad = ~((numbers >= low) & (numbers <= high)) | (above & (numbers == low))
  if bad.any():
    place = np.unravel_index(np.argmax(bad), bad.shape)
    where = f' in row {place[0]}' if numbers.ndim else ''
    raise ValueError(f'{name} is {numbers[place]}{where}; allowed: '
                     f'{"above " * above}{low:g} to {high:g}. {hint}'.rstrip())


def scalar(name: str, value: Any) -> None:
  """Refuses an array with axes; works on tracers."""
  if shape := np.shape(value):
    raise ValueError(f'{name} has shape {shape}; allowed: a scalar, the same '
                     'for all rows.')


def gamma(length: Any) -> None:
  """Refuses a draft of fewer than one token, or of more than a block holds."""
  whole = isinstance(length, (int, np.integer)) and type(length) is not bool
  if not whole or not 1 <= length <= MAX_GAMMA:
    raise ValueError(f'A draft length (gamma) of {length}; allowed: '
                     f'{"" if whole else "whole numbers from "}1 to '
                     f'{MAX_GAMMA}. Use the Null drafter to decode without '
                     'drafts.')


def tree(parents: tuple[int, ...]) -> None:
  """Refuses a list of parents that is not a tree listed by level."""
  depths = [0]
  if len(parents) < 2 or parents[0] != -1:
    raise ValueError(f'A tree with parents {parents}; allowed: -1 for the '
                     'root, then the parent of each draft.')
  for node, parent in enumerate(parents[1:], 1):
    if not 0 <= parent < node or depths[parent] + 1 < depths[-1]:
      raise ValueError(f'A tree with parents {parents}; allowed: levels in '
                       f'turn, a parent before its children (see node {node}).')
    depths.append(depths[parent] + 1)


def room(width: int, max_length: int) -> None:
  """Refuses a prompt as wide as the whole sequence."""
  if width >= max_length:
    raise ValueError(f'A prompt of width {width} leaves no room in '
                     f'max_length={max_length}; shorten the prompt or raise '
                     'max_length.')


def batch_of(prompt: Any, keys: Any) -> int:
  """The number of rows, on which prompt and keys must agree."""
  shapes = dict(prefix=prompt.prefix.shape[0],
                prefix_lengths=len(prompt.prefix_lengths), keys=len(keys))
  for name in ('inputs', 'limits'):
    if getattr(prompt, name) is not None:
      shapes[name] = len(getattr(prompt, name))
  if len(set(shapes.values())) > 1:
    rows = ', '.join(f'{name} {n}' for name, n in shapes.items())
    raise ValueError(f'Different numbers of rows: {rows}; give every row a '
                     'prompt, a length and a key.')
  return shapes['prefix']


def prompt_rows(prompt: Any, max_length: int, vocab_size: int) -> None:
  """Refuses rows without a token, rows at their cap and unknown tokens."""
  lengths, width = np.asarray(prompt.prefix_lengths), prompt.prefix.shape[1]
  hint = ('A row needs at least one token (a decoder start token will do), no '
          'more than its prefix holds, and room for one more.')
  interval('prefix_lengths', lengths, 1, min(width, max_length - 1), hint=hint)
  if prompt.limits is not None:
    interval('limits', prompt.limits, 2, max_length, hint='They count the '
             'prompt, too, and end at max_length.')
    interval('Room of a row, its limit less its prompt',
             np.asarray(prompt.limits) - lengths, 1, max_length, hint=hint)
  for name in ('prefix', 'inputs'):
    tokens = getattr(prompt, name)
    if tokens is not None:
      interval(f'Token of {name}', tokens, 0, vocab_size - 1,
               hint='Check that text and model share a vocabulary.')
  if prompt.inputs is not None:
    interval('Tokens of inputs (0 is padding)',
             (np.asarray(prompt.inputs) > 0).sum(1), 1, prompt.inputs.shape[1],
             hint='Give each row a text.')


def draft(spec: Any, proposed: Any, target: Any) -> None:
  """Refuses a draft that the target, the verifier or the caches cannot take."""
  name = type(spec.drafter).__name__
  nodes, width = proposed.tree.tokens.shape[-1], spec.drafter.num_nodes
  if nodes != width:
    raise ValueError(f'{name} proposed {nodes} nodes; allowed: its num_nodes, '
                     f'{width}, for which caches have room.')
  inner = nodes - proposed.scratch
  if not 0 <= proposed.max_depth < inner:
    raise ValueError(f'{name} proposed {inner} nodes down to max_depth='
                     f'{proposed.max_depth}; allowed: 0 to {inner - 1}, as a '
                     'path has no more nodes than the tree.')
  if proposed.prediction is None:
    if target.uses_q or proposed.law != 'deterministic':
      raise ValueError(
          f'{type(target).__name__} on {proposed.law!r} drafts needs q, but '
          f'{name} has none; use a rule that ignores q, such as Lossless.')
  elif (own := proposed.prediction.probs.shape[-1]) != spec.lm.vocab_size:
    raise ValueError(
        f'{name} has a vocabulary of {own} tokens and the verifier one of '
        f'{spec.lm.vocab_size}; allowed: the same one for both.')
  if (proposed.law == 'given') != (proposed.laws is not None):
    has = 'no' if proposed.laws is None else 'with'
    raise ValueError(f"{name} proposed {proposed.law!r} drafts, {has} laws; "
                     "allowed: laws [B, N, V] with 'given' drafts only.")
  for path, number in jax.tree_util.tree_leaves_with_path(spec.verify):
    scalar(f'{type(spec.verify).__name__}{jax.tree_util.keystr(path)}', number)
  spec.verify.supports.check(spec.verify, proposed.judged)


def tokens_only(lm: Any, tree: Any) -> None:
  """Refuses embeddings in place of tokens, for a model without embeddings."""
  if tree.embedded is not None:
    raise ValueError(f'{type(lm).__name__} reads tokens, but got embeddings to '
                     'read; allowed: a T5 or a Gemma for drafters with masks.')


def head(lm: Any, logits: Any) -> None:
  """Refuses a model that decodes alone with a head over some tokens only."""
  if logits.shape[-1] != lm.vocab_size:
    raise ValueError(
        f'{type(lm).__name__} has a head over {logits.shape[-1]} of '
        f'{lm.vocab_size} tokens; allowed: all, for a model that decodes '
        'alone. Use it as a drafter.')


def target(rule: Any) -> None:
  """Refuses what is no target distribution."""
  kind = type(rule)
  if isinstance(rule, type):
    instance(rule)
  if not (callable(rule) and hasattr(kind, 'uses_q')
          and hasattr(kind, 'validate')):
    raise ValueError(f'{kind.__name__} is no target; allowed: those of '
                     'spec_cascades.targets. Baselines go to Sequential.')


def instance(part: Any) -> None:
  """Refuses a class where one of its instances is due."""
  if isinstance(part, type):
    raise ValueError(f'{part.__name__} is a class; allowed: an instance of it, '
                     f'such as {part.__name__}().')
  if not hasattr(part, 'validate'):
    raise ValueError(f'Got {part!r}; allowed: a target, a warp, a verifier, a '
                     'drafter or a stop of spec_cascades.')


def verifier(judge: Any) -> None:
  """Refuses what is no verifier."""
  instance(judge)
  if not hasattr(type(judge), 'supports'):
    raise ValueError(f'{type(judge).__name__} is no verifier; allowed: those '
                     'of spec_cascades.verify.')


def own_params(drafter: Any, params: Any) -> None:
  """Refuses a drafter with a model, but without its parameters."""
  if params is None:
    raise ValueError('draft_params is None; allowed: for '
                     f"{type(drafter).__name__} its model's parameters, from "
                     'lm.pack.')


def params_of(holder: Any, params: Any, count: int) -> None:
  """Refuses other parameters than a tuple, those of each of its parts."""
  own_params(holder, params)
  several = isinstance(params, (tuple, list))
  if not several or len(params) != count:
    of = f' of {len(params)}' if several else ''
    raise ValueError(f'draft_params is a {type(params).__name__}{of}; allowed: '
                     f'for {type(holder).__name__} a tuple of {count}, the '
                     'parameters of each of its parts, None for one that has '
                     'none.')


def own_vocabulary(drafter: Any, feedback: Any) -> None:
  """Refuses a drafter that was told of another number of tokens."""
  if (size := feedback.logits.shape[-1]) != drafter.vocab_size:
    raise ValueError(f'vocab_size of {type(drafter).__name__} is '
                     f"{drafter.vocab_size}; allowed: the verifier's, {size}.")


def one_vocabulary(drafter: Any, lms: Any) -> None:
  """Refuses models with different numbers of tokens."""
  sizes = [lm.vocab_size for lm in lms]
  if len(set(sizes)) > 1:
    raise ValueError(f'{type(drafter).__name__} got models of '
                     f'{", ".join(map(str, sizes))} tokens; allowed: models '
                     "that all have the verifier's vocabulary.")


def lagging(holder: Any, drafter: Any, tokens: int) -> Any:
  """A drafter that another one holds, for a cache that may lack tokens."""
  if not hasattr(drafter, 'lagging'):
    raise ValueError(f'{type(holder).__name__} got {type(drafter).__name__}, '
                     'which has no `lagging`; allowed: drafters that need '
                     'tokens alone, such as Chain, Vertical and NGram.')
  return drafter.lagging(tokens)


def target_cache(drafter: Any, ctx: Any) -> Any:
  """The verifier's cache; refuses a drafter that is used where there is none.
  """
  if ctx.target_cache is None:
    raise ValueError(f'{type(drafter).__name__} drafts on the verifier\'s '
                     'cache, which the second drafter of Horizontal does not '
                     'get; put it first.')
  return ctx.target_cache


def scalars(*parts: Any) -> None:
  """Refuses parts with numbers outside their domains, or one for each row."""
  for part in parts:
    instance(part)
    part.validate()
    for number in jax.tree.leaves(part):
      scalar(f'A number of {type(part).__name__}', number)


def told_apart(*trees: Any) -> None:
  """Refuses `flax.struct` dataclasses, which `jax.jit` may take for others."""
  def walk(structure):
    kind = (structure.node_data() or (None,))[0]
    if '_flax_dataclass' in getattr(kind, '__dict__', {}):
      raise ValueError(
          f'{kind.__name__} is a flax.struct.dataclass; allowed: those of '
          'spec_cascades.struct, whose docstring says how jax.jit runs the '
          'program of another class otherwise. Change the import.')
    for child in structure.children():
      walk(child)

  for tree in trees:
    walk(jax.tree.structure(tree))


def call(spec: Any, prompt: Any, keys: Any, rule: Any, warp: Any) -> None:
  """Everything that can be said before a decode starts.

  Shapes are always checked; numbers unless an argument is being traced.
  """
  room(prompt.prefix.shape[1], spec.max_length)
  ends(spec.eos, spec.lm.vocab_size)
  batch = batch_of(prompt, keys)
  parts = rule, warp, spec.verify, spec.drafter
  for part in parts:
    instance(part)
  verifier(spec.verify)
  spec.verify.supports.check_target(spec.verify, rule)
  told_apart(spec, rule, warp)
  leaves = jax.tree.leaves((spec, prompt, keys, rule, warp))
  if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
    return
  prompt, parts = fetching.whole((prompt, parts))
  prompt_rows(prompt, spec.max_length, spec.lm.vocab_size)
  for part in parts:
    part.validate(batch)


def ends(eos: Any, vocab_size: int) -> None:
  """Refuses what is neither a token nor a tuple of tokens."""
  some = eos if isinstance(eos, tuple) else (eos,)
  if not some or not all(isinstance(x, (int, np.integer)) and
                         -1 <= x < vocab_size for x in some):
    raise ValueError(f'eos is {eos!r}; allowed: a token from 0 to '
                     f'{vocab_size - 1}, a tuple of such, or -1 for none.')


def faults(state: Any) -> list[str]:
  """One line per row that stopped at non-finite logits; rounds start at 1."""
  return [f'Row {row} stopped in round {fault}: non-finite logits.'
          for row, fault in enumerate(fetching.get(state.fault)) if fault]


def finite(fault: Any, first: int = 0) -> None:
  """Refuses texts of which one stopped at non-finite logits.

  Args:
    fault: Rounds as `State.fault` has them, of the rows that count.
    first: Number of the first text.
  """
  for row, at in enumerate(fetching.get(fault)):
    if at:
      raise ValueError(f'Text {first + row} stopped in round {at}: the logits '
                       'are not finite, so nothing that was decoded is used; '
                       'give weights without NaN or inf, or float32.')
