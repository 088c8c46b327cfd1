"""TPUs by their published figures: slices, and a roofline for steps on them.

Times are estimates and no measurements: arithmetic and memory at the published
peaks, one behind the other with collectives on a ring of two links a chip, and
nothing else. Real steps take longer.
"""
from __future__ import annotations

import dataclasses
import math
import re
from typing import Sequence

GIB = 2**30
HOP = 1e-6        # assumed seconds from a chip to its neighbour; not published


@dataclasses.dataclass(frozen=True)
class Chip:
  """One TPU chip.

  References: Jouppi et al. (2023), https://arxiv.org/abs/2304.01433 (v4);
    https://cloud.google.com/tpu/docs/v5e, v5p, v6e

  Attributes:
    flops: Peak a second in bfloat16.
    hbm: Bytes of memory.
    bandwidth: Of memory, bytes a second.
    link: Of one link to a neighbour in one direction, bytes a second.
    shapes: Slices by their number of chips.
    cores: By which a slice's name counts, per chip.
  """
  flops: float
  hbm: float
  bandwidth: float
  link: float
  shapes: dict[int, tuple[int, ...]]
  cores: int = 1


_FLAT = {4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8),
         128: (8, 16), 256: (16, 16)}
_CUBES = {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4),
          64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8)}
CHIPS = {
    'v4': Chip(275e12, 32 * GIB, 1.2e12, 50e9, _CUBES, 2),
    'v5e': Chip(197e12, 16 * GIB, 819e9, 50e9, _FLAT),
    'v5p': Chip(459e12, 95 * GIB, 2.765e12, 100e9, _CUBES, 2),
    'v6e': Chip(918e12, 32 * GIB, 1.638e12, 100e9, _FLAT)}


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice, such as v4-8: kind of chip and their arrangement."""
  kind: str
  shape: tuple[int, ...]

  @property
  def chip(self) -> Chip:
    return CHIPS[self.kind]

  @property
  def size(self) -> int:
    """Chips."""
    return math.prod(self.shape)

  @property
  def host(self) -> int:
    """Chips of a host, where one process decodes: 4, or all 8 of an e-8."""
    return 8 if self.size == 8 and self.kind in ('v5e', 'v6e') else 4

  @property
  def name(self) -> str:
    """As libtpu has it: v4:2x2x1."""
    return f'{self.kind}:{"x".join(map(str, self.shape))}'


def topology(name: str) -> Topology:
  """The slice that is called so.

  v4 and v5p count cores, two a chip: v4-8 has 4 chips. v5e and v6e count chips.

  Raises:
    ValueError: No such slice here.
  """
  kind, _, number = name.partition('-')
  known = {f'{k}-{n * c.cores}': Topology(k, shape)
           for k, c in CHIPS.items() for n, shape in c.shapes.items()}
  if name in known:
    return known[name]
  allowed = [x for x in known if x.startswith(f'{kind}-')] or known
  raise ValueError(f'Unknown topology {name!r}; allowed: '
                   f'{", ".join(allowed)}.')


@dataclasses.dataclass(frozen=True)
class Collective:
  """One exchange; bytes of the whole that a group of chips works on."""
  kind: str
  nbytes: int
  group: int
  times: int = 1

  def seconds(self, chip: Chip, hop: float = HOP) -> float:
    """All of them, on a ring of which each chip has two links.

    An all-reduce of n bytes on g chips sends 2 n (g - 1) / g bytes a chip, a
    gather or a scatter half of that; each of these two parts takes g / 2 hops.
    """
    g = self.group
    if g < 2:
      return 0.
    if self.kind.startswith('collective'):
      return self.times * (self.nbytes / chip.link + hop)
    if self.kind.endswith('to-all'):        # the way is a quarter of the ring
      return self.times * (self.nbytes * g / 8 / chip.link + g // 2 * hop)
    parts = 2 if self.kind == 'all-reduce' else 1
    sent = parts * self.nbytes * (g - 1) / g
    return self.times * (sent / (2 * chip.link) + parts * (g // 2) * hop)


@dataclasses.dataclass(frozen=True)
class Work:
  """What one chip does in a step."""
  flops: float
  nbytes: float
  collectives: Sequence[Collective] = ()

  def seconds(self, chip: Chip, hop: float = HOP) -> float:
    """max(FLOPs / peak, bytes / bandwidth), and then the collectives."""
    return max(self.flops / chip.flops, self.nbytes / chip.bandwidth) + sum(
        x.seconds(chip, hop) for x in self.collectives)


def rates(text: str) -> list[float]:
  """'.8' or '.8,.7,.6': acceptance, i.i.d. or by position of a round.

  Raises:
    ValueError: Not numbers from 0 to 1.
  """
  parts = text.split(',')
  number = re.compile(r'(0|1|0?\.\d+|[01]\.\d*)')
  if not all(number.fullmatch(x) and float(x) <= 1 for x in parts):
    raise ValueError(f'Got the acceptance {text!r}; allowed: a number from 0 '
                     'to 1, or one for each position, with commas.')
  return [float(x) for x in parts]
