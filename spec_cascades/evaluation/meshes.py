"""Decoding on several devices: which, and how models are cut.

A mesh is of this process's own devices, if it has enough: of several processes
each has one, and decodes other texts. A larger one is of the devices of all
processes, which then decode the same texts, in the same order: for models that
one host can't hold.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import jax

from spec_cascades import check
from spec_cascades import hosts
from spec_cascades import sharding
from spec_cascades.models import reduced

Rules = str | tuple[tuple[str, str | None], ...]


@dataclasses.dataclass(frozen=True)
class Mesh:
  """The first data x model devices of each process; (1, 1) is one device.

  Or, if no process has so many, those of all processes together.

  Attributes:
    data: Groups of devices that share no row. Where there are fewer rows, the
      others decode copies.
    model: Devices of a group.
    rules: How the verifier is cut, see `sharding.Layout`.
    drafter_rules: How the drafter is; 'data' is whole on every device.
  """
  data: int = 1
  model: int = 1
  rules: Rules = 'tensor'
  drafter_rules: Rules = 'data'

  def __post_init__(self):
    for name, size in zip(sharding.AXES, (self.data, self.model)):
      check.interval(f'{name} of a mesh', size, 1, 10**6, whole=True)
    for rules in (self.rules, self.drafter_rules):
      if isinstance(rules, str) and rules not in sharding.RULES:
        raise ValueError(f'Unknown rules {rules!r} of a mesh; allowed: '
                         f'{", ".join(sharding.RULES)}, or pairs of axes.')

  @property
  def size(self) -> int:
    """Devices."""
    return self.data * self.model

  @property
  def spans(self) -> bool:
    """Whether it takes the devices of all processes, if there are several."""
    return (hosts.count() > 1 and self.size > 1
            and self.size > jax.local_device_count())

  def inputs(self, processes: int | None = None) -> dict[str, Any]:
    """What a sweep's keys cover of it; nothing of one device.

    Args:
      processes: That it spans; None: these ones, if it does.
    """
    if self.size == 1:
      return {}
    if processes is None:
      processes = hosts.count() if self.spans else 1
    together = {'processes': processes} if processes > 1 else {}
    return {'mesh': dataclasses.asdict(self) | together}

  def layouts(self) -> tuple[sharding.Layout, sharding.Layout] | None:
    """The verifier's and the drafter's; None for one device.

    Raises:
      ValueError: This process has not so many devices, and there are not just
        so many in all.
    """
    if self.size == 1:
      return None
    # Devices of one process side by side, so that groups lie on few.
    there = sorted(jax.devices() if self.spans else jax.local_devices(),
                   key=lambda x: (x.process_index, x.id))
    if len(there) < self.size or (self.spans and len(there) > self.size):
      own, every = jax.local_device_count(), jax.device_count()
      others = (f', all {hosts.count()} together {every}; allowed: up to {own},'
                f' for each process, or {every}, for all'
                if hosts.count() > 1 else '')
      raise ValueError(
          f'Got a mesh of data={self.data}, model={self.model}, which takes '
          f'{self.size} devices; this process has {own}{others}. Give '
          f'{"another" if others else "a smaller one"}.')
    mesh = sharding.mesh(self.data, self.model, there[:self.size])
    return (sharding.Layout(mesh, self.rules),
            sharding.Layout(mesh, self.drafter_rules))


def placed(lm: Any, layout: sharding.Layout | None) -> Any:
  """A model that lies on a mesh; the same one for None."""
  if layout is None:
    return lm
  if isinstance(lm, reduced.Reduced):
    return dataclasses.replace(lm, lm=placed(lm.lm, layout))
  return sharding.Sharded(lm, layout)


def bare(lm: Any) -> Any:
  """The model itself: with all its tokens, wherever it lies."""
  lm = reduced.whole(lm)
  return reduced.whole(lm.lm) if isinstance(lm, sharding.Sharded) else lm


def layout_of(lm: Any) -> sharding.Layout | None:
  """Where it lies, if on a mesh."""
  lm = reduced.whole(lm)
  return lm.layout if isinstance(lm, sharding.Sharded) else None


def spans(lm: Any) -> bool:
  """Whether it lies on devices of several processes."""
  layout = layout_of(lm)
  return layout is not None and layout.spans


def groups(lm: Any) -> int:
  """Devices or groups of them that share no row."""
  layout = layout_of(lm)
  return layout.mesh.shape[sharding.AXES[0]] if layout else 1


def rows(lm: Any, tree: Any) -> Any:
  """Prompts and keys where a model's rows belong."""
  layout = layout_of(lm)
  return layout.rows(tree) if layout else tree


def everywhere(lm: Any, tree: Any) -> Any:
  """Inside a program: results whole on each device, if a mesh spans processes.

  So that each of them has them, and need not ask for them with another program.
  """
  if not spans(lm):
    return tree
  return jax.lax.with_sharding_constraint(
      tree, jax.sharding.NamedSharding(
          layout_of(lm).mesh, jax.sharding.PartitionSpec()))
