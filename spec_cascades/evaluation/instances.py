"""What drafters of the shipped verifier need trained or built, and how.

`INSTANCES` is the sequence: each entry after those that it needs. Commands are
those of the gin files and scripts, and go on where they were stopped.
`CURVES` says which of them each curve of gin/sweeps/drafters.gin reads, and
`OWN` which of them is the verifier of a curve of gin/sweeps/drafters_own.gin.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import json
import pathlib
from typing import Any

CACHE = '~/.cache/spec_cascades'
OUT = 'runs/drafters'
VERIFIER = 'spec_cascades/assets/debian_ende/verifier'
PARTS = 'spec_cascades/assets/debian_ende/parts'
CHOSEN = 'paths'                  # of heads in model.json, once calibrated


@dataclasses.dataclass(frozen=True)
class Instance:
  """One thing to make.

  Attributes:
    name: Unique.
    what: In words.
    makes: A path that is there when it is done.
    commands: Scripts and their arguments, in turn.
    minutes: Roughly, on 2 cores: what docs/training.md says that it took, or
      for the verifier's longest trainings a guess from its own; None: minutes
      at most.
    needs: Names of what is read.
    calibrated: Whether model.json beside has to hold a tree, too.
    ships: Where the project comes with one that drafters read; it is what
      scripts/export.py --part wrote of such a run.
    has: What the JSON that it makes has to hold; an older one may not.
    behind: Name of what it is made from, and is stale if that is newer.
  """
  name: str
  what: str
  makes: str
  commands: tuple[tuple[str, ...], ...]
  minutes: int | None = None
  needs: tuple[str, ...] = ()
  calibrated: bool = False
  ships: str | None = None
  has: str = ''
  behind: str = ''

  def there(self) -> bool:
    """Whether a drafter can read it: it was made, or came along."""
    return self.ships is not None or self.made()

  def made(self) -> bool:
    """Whether it was made here, to the end."""
    place = pathlib.Path(self.makes).expanduser()
    if not (place.exists() or _passed(place)):
      return False
    if self.has and not _read(place).get(self.has):
      return False
    source = self.behind and pathlib.Path(BY_NAME[self.behind].makes)
    if source and source.exists() and (
        source.stat().st_mtime > place.stat().st_mtime):
      return False
    return not self.calibrated or bool(_read(
        place.parents[1] / 'model.json').get('heads', {}).get(CHOSEN))

  def lines(self) -> list[str]:
    """The commands as they are typed."""
    return [' '.join(('python', *command)) for command in self.commands]


def _passed(place: pathlib.Path) -> bool:
  """Whether a run is beyond the checkpoint of some step."""
  steps = [int(x.name) for x in place.parent.glob('*') if x.name.isdigit()]
  return place.name.isdigit() and max(steps, default=-1) > int(place.name)


def _read(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object, empty if there is no file; ValueError if it is damaged."""
  if not path.is_file():
    return {}
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
    return {**found, 'heads': {**(found.get('heads') or {})}}
  except (ValueError, AttributeError, TypeError):
    raise ValueError(f'{path} is damaged; move {path.parent} away and make it '
                     'again.') from None


def _trained(name, what, steps, minutes, needs=('own',), *, tree=False,
             ships=False):
  """A run of gin/train/NAME.gin, and the tree of its heads."""
  flag = f'--gin_file=gin/train/{name}.gin'
  commands = [('scripts/train.py', flag)]
  if tree:
    commands.append(('scripts/calibrate_heads.py', flag, '--nodes=16'))
  return Instance(name, what, f'{CACHE}/runs/{name}/checkpoints/{steps}',
                  tuple(commands), minutes, needs, tree,
                  f'{PARTS}/{name}' if ships else None)


def _written(name, what, folder, minutes, *flags):
  """A corpus that the shipped verifier writes."""
  output = f'{CACHE}/corpora/{folder}'
  return Instance(name, what, f'{output}/train.jsonl', ((
      'scripts/distill.py', '--gin_file=gin/train/distill.gin',
      f'--gin.VERIFIER={VERIFIER}', f'--gin.OUTPUT={output}', *flags),),
                  minutes)


def _counted(order, name):
  path = f'{OUT}/{name}.npz'
  return Instance(name, f'counts of order {order}', path, ((
      'scripts/count_table.py', '--gin_file=gin/train/drafter_boosted.gin',
      '--order', str(order), '--output', path),), needs=('own',))


INSTANCES = (
    _written('own', "the verifier's own translations, 36,000 of them",
             'debian_ende_own', 13),
    _written('jacobi', '10,240 of them with states of Jacobi decoding',
             'debian_ende_jacobi', 17, '--gin.GUESSES=5',
             '--gin.SENTENCES=10240'),
    Instance('datastore', 'a datastore of the corpus',
             f'{OUT}/datastore/datastore.json',
             (('scripts/build_datastore.py', '--corpora', 'debian_ende',
               '--output', f'{OUT}/datastore'),)),
    *(_counted(i, name) for i, name in enumerate(
        ('unigrams', 'bigrams', 'trigrams'), 1)),
    Instance('costs', 'times of steps', f'{OUT}/costs.json',
             (('scripts/benchmark.py', 'steps', '--dims', 'shipped',
               '--trees', '--output', f'{OUT}/costs.json'),), has='rounds'),
    Instance('sublayers', 'sublayers to leave out',
             f'{OUT}/sublayers/skipped.json',
             (('scripts/search_layers.py', '--corpora', 'debian_ende',
               '--output', f'{OUT}/sublayers'),), 8, has='kept'),
    Instance('calibration', 'a sweep whose texts trees are chosen on',
             f'{OUT}/calibration/report.html',
             (('scripts/sweep.py', '--gin_file=gin/sweeps/calibration.gin'),),
             2),
    Instance('trees', "Sequoia's trees", f'{OUT}/trees/SpecDecode_T=1.json',
             (('scripts/shape_tree.py', f'{OUT}/calibration',
               f'{OUT}/costs.json', '--gin_file=gin/sweeps/calibration.gin',
               '--output', f'{OUT}/trees'),), needs=('calibration', 'costs'),
             behind='costs'),
    _trained('drafter_boosted', 'a second small model', 400, 2),
    _trained('medusa', "Medusa's heads, and their tree", 500, 30, tree=True,
             ships=True),
    _trained('hydra', "Hydra's heads, and their tree", 600, 30, tree=True,
             ships=True),
    _trained('hydra_plus', "Hydra++'s heads, and their tree", 300, 20,
             tree=True, ships=True),
    _trained('eagle', "EAGLE's layer", 1500, 45, ships=True),
    _trained('eagle3', "EAGLE-3's layer", 450, 30, ships=True),
    _trained('pass', 'mask tokens, for PaSS and SPACE', 1200, 310, ships=True),
    _trained('medusa_joint', 'a verifier with its heads (Medusa-2)', 300, 40,
             ('own', 'medusa'), tree=True),
    _trained('space', 'a verifier with its masks (SPACE)', 400, 20,
             ('own', 'pass')),
    _trained('cllm', 'a verifier for Jacobi decoding', 300, 12, ('jacobi',)),
    _trained('layerskip', 'a verifier whose layers draft', 1000, 150))
BY_NAME = {x.name: x for x in INSTANCES}
# Curves of gin/sweeps/drafters.gin, in its order, and what each one reads.
CURVES = dict(
    chain=(), adaptive=('costs',), tracking=(), tree=(),
    greedy_sequoia=('trees',), sampled_sequoia=('trees',), spectr=(),
    specinfer=('drafter_boosted',), medusa=('medusa',), typical=('medusa',),
    hydra=('hydra',), hydra_plus=('hydra_plus',),
    eagle=('eagle',), eagle_static=('eagle',), eagle_tree=('eagle',),
    eagle3=('eagle3',), eagle3_tree=('eagle3',), jacobi=(), lookahead=(),
    recycling=(), masks=('pass',), space=('pass',),
    ouroboros=(), warm=('datastore',), unigrams=('unigrams',),
    bigrams=('bigrams',), trigrams=('trigrams',), ngram=(),
    rest=('datastore',), cascade=(), horizontal=(), skip=(),
    sublayers=('sublayers',), exit=(), pipelined=())
OWN = dict(joint='medusa_joint', space='space', cllm='cllm', exit='layerskip')


def ready(curves: Iterable[str] = tuple(CURVES)) -> list[str]:
  """Curves of `CURVES` of which everything is there."""
  return [x for x in curves if all(BY_NAME[y].there() for y in CURVES[x])]


def missing() -> list[Instance]:
  """What is neither made nor came along, in order."""
  return [x for x in INSTANCES if not x.there()]


def wanted(names: Sequence[str]) -> list[Instance]:
  """Those of some, and of what they need, that were not made here, in order.

  Args:
    names: Of instances; none: all that are missing. One that came along is
      made only where it is named.

  Raises:
    ValueError: There is no such instance.
  """
  if unknown := sorted(set(names) - set(BY_NAME)):
    raise ValueError(f'Unknown: {", ".join(unknown)}; allowed: '
                     f'{", ".join(BY_NAME)}.')
  chosen, rest = set(), [x for x in names if not BY_NAME[x].made()] or [
      x.name for x in missing() if not names]
  while rest:
    name = rest.pop()
    chosen.add(name)
    rest += (x for x in BY_NAME[name].needs if not BY_NAME[x].there())
  return [x for x in INSTANCES if x.name in chosen]


def table() -> str:
  """All instances: what is there, and how long the rest may take."""
  return '\n'.join(f'{_state(x):>12}  {x.name:16}{x.what}' for x in INSTANCES)


def _state(x):
  if x.there():
    return 'there' if x.made() else 'came along'
  return f'some {x.minutes} min' if x.minutes else 'minutes'
