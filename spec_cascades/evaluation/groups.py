"""Which devices take part in a collective together, by its line of HLO text.

Groups are written as lists, as a row of numbers cut up, or as some axes of a
mesh: {{0,1},{2,3}}, [2,2]<=[4], mesh['x'=2,'y'=2] {'y'}.
"""
from __future__ import annotations

import math
import re

import numpy as np

_ANY = re.compile(r'replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]*)\}|'
                  r'mesh\[([^\]]*)\][^{]*\{([^}]*)\})')
# How devices are numbered that [groups,devices] or a mesh cut up.
_IOTA = r'\[([\d,]+)\](?:T\(([\d,]+)\))?'
_CUT = re.compile(r'replica_groups=\[\d+,(\d+)\]<=' + _IOTA)
_MESH = re.compile(r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((?:' +
                   _IOTA + r'|([\d,]+))\))? *\{([^}]*)\}')
_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)|=)?(\d+)?")
_PART = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")


def size(line: str) -> int:
  """Devices of a group, 2 if it has them in pairs; 1 if the line doesn't say.
  """
  found = _ANY.search(line)
  if not found:
    return 1 + ('source_target_pairs=' in line)
  if found[3]:
    sizes = dict(_AXIS.findall(found[3]))
    return math.prod(int(part or sizes[axis])
                     for axis, part in _AXIS.findall(found[4]))
  return int(found[1]) if found[1] else len(found[2].split(','))


def first(line: str) -> list[int]:
  """Devices of the first group; none if the line does not say."""
  if mesh := _MESH.search(line):
    axes, sizes, order, listed, used = mesh.groups()
    shape = [(name, int(n)) for name, n in _AXIS.findall(axes)]
    every = sizes or str(math.prod(n for _, n in shape))
    ids = np.array(_whole(listed)) if listed else _numbered(every, order)
    return _of_axes(ids, shape, used)
  if cut := _CUT.search(line):
    return _numbered(*cut.groups()[1:])[:int(cut[1])].tolist()
  found = _ANY.search(line)
  return _whole(found[2]) if found and found[2] else []


def _whole(text):
  return [int(x) for x in text.split(',')]


def _numbered(sizes, order):
  """0, 1, ... as an array of some sizes, its axes in another order, flat."""
  ids = np.arange(math.prod(_whole(sizes))).reshape(_whole(sizes))
  return (ids.transpose(_whole(order)) if order else ids).reshape(-1)


def _of_axes(ids, shape, used):
  """Devices that differ from the first one in the used axes of a mesh alone.

  "'y':(2)4" are four parts of each of two parts of y.
  """
  parts = {name: (int(before or 1), part)
           for name, before, part in _PART.findall(used)}

  def along(name, n):
    if name not in parts:
      return slice(1)
    before, part = parts[name]
    part = int(part or n)
    stride = n // (before * part)
    return slice(0, part * stride, stride)
  grid = ids.reshape([n for _, n in shape])
  return grid[tuple(along(*axis) for axis in shape)].reshape(-1).tolist()
