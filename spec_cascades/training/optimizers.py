"""Optimisers and learning rates: functions of optax, by name.

    loop.Run.optimizer = @optimizers.adamw
    optimizers.adamw.weight_decay = 0.01
"""
from __future__ import annotations

import re
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from spec_cascades import check


def rsqrt(t: jax.Array, rising: int, total: int) -> jax.Array:
  """A decay: sqrt(rising / t) from step t = `rising` on, the warm-up's last."""
  del total
  return jnp.sqrt(rising / jnp.maximum(t, rising))


def constant(t: jax.Array, rising: int, total: int) -> jax.Array:
  """A decay that is none."""
  del rising, total
  return jnp.ones_like(t)


def linear(t: jax.Array, rising: int, total: int) -> jax.Array:
  """A decay: from 1 after the warm-up straight to 0 at `total`."""
  return 1 - jnp.clip((t - rising) / max(total - rising, 1), 0, 1)


def cosine(t: jax.Array, rising: int, total: int) -> jax.Array:
  """A decay: half a cosine from 1 after the warm-up to 0 at `total`."""
  return (1 - jnp.cos(jnp.pi * linear(t, rising, total))) / 2


def schedule(*, peak: float, warmup: int, total: int, cooldown: int,
             decay: Callable[..., jax.Array] = rsqrt) -> optax.Schedule:
  """Linear warm-up, a decay, linear cool-down to 0 at `total`.

  Args:
    peak: Rate after the warm-up.
    warmup: Its steps.
    total: Steps in all.
    cooldown: The last of them, over which the rate falls to 0.
    decay: (step from 1, warm-up, total) -> factor: `rsqrt`, say.
  """
  rising = max(warmup, 1)

  def rate(step):
    step = jnp.asarray(step, jnp.float32) + 1
    rise = jnp.minimum(step / rising, 1)
    fall = jnp.clip((total - step + 1) / max(cooldown, 1), 0, 1)
    return peak * rise * decay(step, rising, total) * fall
  return rate


def adafactor(learning_rate: Any) -> optax.GradientTransformation:
  """Adafactor with T5's settings (Shazeer & Stern 2018, Raffel et al. 2020)."""
  return optax.adafactor(learning_rate, multiply_by_parameter_scale=True,
                         clipping_threshold=1.0, decay_rate=0.8)


def adamw(learning_rate: Any, *, b1: float = 0.9, b2: float = 0.98,
          weight_decay: float = 0.0, clip: float = 1.0
          ) -> optax.GradientTransformation:
  """AdamW after clipping of the gradient's norm (Loshchilov & Hutter 2019).

  Only matrices decay, not scales or biases.
  """
  matrices = lambda params: jax.tree.map(lambda x: x.ndim > 1, params)
  return optax.chain(
      optax.clip_by_global_norm(clip),
      optax.adamw(learning_rate, b1=b1, b2=b2, weight_decay=weight_decay,
                  mask=matrices))


def frozen(optimizer: optax.GradientTransformation, patterns: Sequence[str],
           params: Any) -> optax.GradientTransformation:
  """Leaves parameters as they are whose path matches a pattern.

    frozen(adamw(1e-3), ['token_embedder/'], params)

  Args:
    optimizer: Of the others; it keeps no state for these.
    patterns: Regular expressions, searched in paths such as
      `decoder/layers_0/mlp/wo/kernel`.
    params: A tree of them, or of their shapes.

  Raises:
    ValueError: A pattern matches nothing, or everything is frozen.
  """
  if not patterns:
    return optimizer
  check_patterns(patterns)
  paths = jax.tree_util.tree_map_with_path(lambda path, _: name(path), params)
  known = jax.tree.leaves(paths)
  for pattern in patterns:
    if not any(re.search(pattern, path) for path in known):
      raise ValueError(f'Nothing to freeze matches {pattern!r}; parameters are '
                       f'{", ".join(known[:3])}, ...')
  matched = lambda path: any(re.search(x, path) for x in patterns)
  if all(map(matched, known)):
    raise ValueError(f'{", ".join(patterns)} freezes every parameter; leave '
                     'some to train.')
  labels = jax.tree.map(lambda path: 'frozen' if matched(path) else 'trained',
                        paths)
  return optax.multi_transform(
      dict(trained=optimizer, frozen=optax.set_to_zero()), labels)


def scaled(optimizer: optax.GradientTransformation,
           rates: Sequence[tuple[str, float]], params: Any,
           still: Sequence[str] = ()) -> optax.GradientTransformation:
  """Multiplies the learning rate of parameters whose path matches a pattern.

    scaled(adamw(1e-3), [('^heads/', 4.)], params)

  Steps are multiplied, weight decay among them: with Adafactor and AdamW they
  are proportional to the rate. The state is that of `optimizer`, so that a run
  may go on with other rates.

  Args:
    optimizer: Of all parameters.
    rates: Regular expressions as in `frozen`, each with its factor; the first
      one that matches counts.
    params: A tree of parameters, or of their shapes.
    still: Patterns of what is frozen.

  Raises:
    ValueError: A pattern matches nothing that is trained.
  """
  if not rates:
    return optimizer
  check_rates(rates)
  paths = jax.tree_util.tree_map_with_path(lambda path, _: name(path), params)
  trained = [path for path in jax.tree.leaves(paths)
             if not any(re.search(x, path) for x in still)]
  for pattern, _ in rates:
    if not any(re.search(pattern, path) for path in trained):
      raise ValueError(f'Nothing that is trained matches {pattern!r} of rates; '
                       f'parameters to train are {", ".join(trained[:3])}, ...')
  factors = jax.tree.map(lambda path: next(
      (by for pattern, by in rates if re.search(pattern, path)), 1), paths)

  def update(grads, state, params=None):
    steps, state = optimizer.update(grads, state, params)
    return jax.tree.map(lambda x, by: x if by == 1 else x * by, steps,
                        factors), state
  return optax.GradientTransformation(optimizer.init, update)


def check_patterns(patterns: Any, use: str = 'to freeze') -> None:
  """Refuses what are no regular expressions of what to freeze."""
  if not (isinstance(patterns, (tuple, list))
          and all(isinstance(x, str) for x in patterns)):
    raise ValueError(f'Got {patterns!r} {use}; allowed: a tuple of regular '
                     "expressions, such as ('token_embedder/',).")
  for pattern in patterns:
    try:
      re.compile(pattern)
    except re.error as error:
      raise ValueError(f'Got {pattern!r} {use} ({error}); allowed: regular '
                       "expressions, such as 'token_embedder/'.") from None


def check_rates(rates: Any) -> None:
  """Refuses what are no regular expressions with a factor each."""
  pair = lambda x: isinstance(x, (tuple, list)) and len(x) == 2
  if not (isinstance(rates, (tuple, list)) and all(map(pair, rates))):
    raise ValueError(f'Got rates={rates!r}; allowed: a tuple of pairs of a '
                     "regular expression and a factor, (('^heads/', 4.0),).")
  check_patterns([pattern for pattern, _ in rates], 'of rates')
  for pattern, by in rates:
    check.scalar(f'The rate of {pattern!r}', by)
    check.interval(f'The rate of {pattern!r}', by, 0, 1e6, above=True,
                   hint='It multiplies the learning rate; what is to stay as '
                   'it is goes to freeze.')


def name(path: Sequence[Any]) -> str:
  """A key path of a tree with slashes: `decoder/layers_0/mlp/wo/kernel`."""
  return jax.tree_util.keystr(path, simple=True, separator='/')
