"""Runs a sweep on TPU slices: asks for them, sets up, runs, resumes, collects.

  python scripts/tpu/launch.py sweep --name=curve --project=PROJECT \\
    --zone=us-west4-a --type=v5litepod-16 --spot --output=collected -- \\
    --gin_file=gin/sweeps/quickstart.gin \\
    --gin_file=gin/executors/mesh.gin --gin.MODEL=4

decodes on all four chips of each host; without the mesh, on one of them. What
follows -- goes to scripts/sweep.py on every host, which has what is committed
here; its OUTPUT_DIR must lie under runs/, which is copied to --output now and
then, and back to a host that has none. A slice that was taken away is asked for
again and the sweep goes on.
--dry_run prints every command and runs nothing. Actions:
  create   asks for the slices and waits until they are there
  setup    copies this checkout's HEAD to each host and installs it; a sweep
           keeps to the HEAD that it began with
  run      runs the sweep once; says of each host how it ended
  collect  copies runs/ from the first host
  delete   gives the slices back: until then they cost money
  sweep    all of this but delete, until the sweep is done; with --delete, too;
           sets up only slices whose set-up has not come to its end
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import secrets
import shlex
import sys
import tempfile
import time
from typing import Callable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import _cli  # noqa: E402
import asked  # noqa: E402
import checks  # noqa: E402
import collected  # noqa: E402
import slices as lib  # noqa: E402

FOLDER = 'spec_cascades'               # on a host, under its home directory
ARCHIVE = 'spec_cascades.tgz'
READY = f'~/{FOLDER}/.ready'           # is there once a host is set up
APT = 'sudo apt-get -q -o DPkg::Lock::Timeout=600'   # others install, too
# Of lists the lock is not waited for. Ubuntu 22.04 has a candidate for release
# by the name of python3.11.
UPDATE = f'timeout 600 sh -c "until {APT} update; do sleep 5; done"'
FINAL = "'import sys; sys.exit(sys.version_info.releaselevel != \"final\")'"
PYTHON = (f'python3.11 -c {FINAL} 2>/dev/null || '
          f'(sudo add-apt-repository -y -n ppa:deadsnakes/ppa && {UPDATE} && '
          f'{APT} install -y python3.11 python3.11-venv)')
DECODE = b'"kind": "example"'          # in a line of a journal
# gcloud calls again where a connection was lost, and the first may go on.
LOCKED = f'exec 9>.{FOLDER}.lock', 'flock -w 1800 9'
PORT = 6379                            # of Ray's head
# Labels by which its workers find the hosts of a slice, see `ray_cluster`.
SLICE, HOST = 'ray.io/tpu-slice-name', 'ray.io/tpu-worker-id'
TOKEN = f'.{FOLDER}_ray'               # without which nobody joins it
AUTH = f'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/{TOKEN}'
BAD_INPUT = 2                          # exit code of our scripts


@dataclasses.dataclass
class Launch:
  """What the flags say.

  Attributes:
    gcloud: Who runs commands.
    slices: All alike.
    args: Of scripts/sweep.py.
    output: Where results are collected here.
    env: NAME=VALUE, for the sweep.
    setup: A command to run on each host in the end of its set-up.
    poll: Seconds between looks at states.
    collect_every: Seconds between copies of results.
    restarts: How often slices that are lost may be asked for again.
    commit: What hosts get.
    mesh: Devices that decode together.
  """
  gcloud: lib.Gcloud
  slices: list[lib.Slice]
  args: Sequence[str]
  output: pathlib.Path
  env: Sequence[str] = ()
  setup: str = ''
  poll: float = 30.
  collect_every: float = 300.
  restarts: int = 20
  commit: str = 'HEAD'
  mesh: int = 1

  @property
  def head(self) -> lib.Slice:
    return self.slices[0]

  def hosts(self, some: Sequence[lib.Slice]) -> list[tuple[lib.Slice, int]]:
    return [(one, i) for one in some for i in range(one.hosts)]

  def everywhere(self, some: Sequence[tuple[lib.Slice, int]],
                 command: Callable[[lib.Slice, int], str], what: str) -> None:
    """Runs a command on hosts; ValueError names those where it failed."""
    lib.report(self.watched({
        f'{one.name} host {i}': one.on_host(i, command(one, i))
        for one, i in some}), what)

  def watched(self, commands: dict[str, list[str]], *,
              quiet: bool = False) -> list[lib.Ended]:
    """Runs commands by host; ends them if a slice is lost meanwhile."""
    return self.gcloud.together(commands, quiet=quiet, every=self.poll,
                                going=lambda: not asked.lost(self))


def unready(launch: Launch) -> list[lib.Slice]:
  """Slices with a host that does not say that its set-up came to its end.

  None if one was lost, which has to be asked for first.
  """
  hosts = launch.hosts(launch.slices)
  found = launch.watched({
      f'{one.name} host {i}': one.on_host(i, f'test ! -e {READY} || echo ready')
      for one, i in hosts}, quiet=True)
  if any(x.code for x in found) and asked.lost(launch):
    return []
  return list(dict.fromkeys(
      one for (one, _), x in zip(hosts, found)
      if x.code or 'ready' not in x.lines))


def setup(launch: Launch, some: Sequence[lib.Slice]) -> None:
  """Copies the sources, installs what they need, and brings results back.

  Results on a host may be newer than those here, and are kept.
  """
  if not some:
    return
  gcloud = launch.gcloud
  with tempfile.TemporaryDirectory() as folder:
    path = ARCHIVE if gcloud.dry_run else str(pathlib.Path(folder) / ARCHIVE)
    gcloud.done(['-C', str(_cli.ROOT), 'archive', '--format=tar.gz',
                 f'--output={path}', launch.commit], 'git')
    lib.report(launch.watched({
        f'{one.name} host {i}': one.copy(path, f'HOST:{ARCHIVE}', i)
        for one, i in launch.hosts(some)}), 'Copying the sources')
  if launch.head in some and (launch.output / 'runs').is_dir():
    lib.report(launch.watched({f'{launch.head.name} host 0': launch.head.copy(
        str(launch.output / 'runs'), 'HOST:.', 0)}), 'Copying the results')
  wanted = ['requirements-tpu.txt']
  wanted += ['requirements-ray.txt'] * (len(launch.slices) > 1)
  steps = ['set -e', *LOCKED, PYTHON, 'export PYTHON=python3.11',
           f'mkdir -p {FOLDER}', f'rm -f {READY}',
           f'rm -rf {FOLDER}/spec_cascades',             # of before
           f'tar -xzf {ARCHIVE} -C {FOLDER}', f'cd {FOLDER}',
           '[ -d runs ] || [ ! -d ../runs ] || mv ../runs .',
           *(f'. scripts/setup.sh {name}' for name in wanted),
           # A shell of its own, whose exit code counts: of A && B, too.
           *[shlex.join(['bash', '-ec', launch.setup])] * bool(launch.setup),
           f'touch {READY}']
  launch.everywhere(launch.hosts(some), lambda *_: '; '.join(steps), 'Set-up')


def collect(launch: Launch) -> lib.Ended:
  """Copies runs/ of the first host here, whole or not at all."""
  one = launch.head

  def copied(folder: pathlib.Path) -> lib.Ended:
    copy = one.copy(f'HOST:{FOLDER}/runs', str(folder), 0)
    return launch.watched({f'{one.name} host 0, runs/': copy}, quiet=True)[0]
  if launch.gcloud.dry_run:
    return copied(launch.output / collected.FRESH)
  with collected.fresh(launch.output) as folder:
    ended = copied(folder)
    if not ended.code:
      collected.take(folder, launch.output)
  if ended.code:
    launch.gcloud.say(f'# nothing collected: {ended}')
  return ended


def commands(launch: Launch) -> dict[str, list[str]]:
  """What runs the sweep, by host: one command on all, or the driver of Ray."""
  # One of a connection that was lost may run on; its shell begins otherwise.
  stop = "pkill -f '^.venv/bin/python scripts/sweep.py' && sleep 5"
  call = ['env', *launch.env, '.venv/bin/python', 'scripts/sweep.py']
  one, ray = launch.head, len(launch.slices) > 1
  if ray:
    call += [*launch.args, '--gin_file=gin/executors/ray.gin',
             '--gin.ADDRESS=auto', *_workers(launch)]
  else:
    call += ['--coordinator=auto'] * (one.hosts > 1) + list(launch.args)
  auth = f'{AUTH} && ' if ray else ''
  line = f'{stop}; cd {FOLDER} && {auth}exec {shlex.join(call)}'
  return {f'{one.name} host {i}': one.on_host(i, line)
          for i in range(1 if ray else one.hosts)}


def _workers(launch: Launch) -> list[str]:
  """How many workers of Ray there are, and what each takes: see `checks`."""
  one = launch.head
  chips = max(1, launch.mesh * one.chips // one.devices)         # of a worker
  hosts = max(1, chips * one.hosts // one.chips)
  return [f'--gin.NUM_WORKERS={len(launch.slices) * (one.chips // chips)}',
          f'--gin.HOSTS={hosts}',
          f"--gin.RESOURCES={{'TPU': {chips // hosts}}}"]


def join_ray(launch: Launch) -> None:
  """Starts Ray on all hosts, anew, each with its slice's name and its place.

  They get a new token, by a file, since others can see commands.
  """
  gcloud = launch.gcloud
  address = lib.address(gcloud, launch.head)
  head, *others = launch.hosts(launch.slices)
  with tempfile.TemporaryDirectory() as folder:
    path = TOKEN if gcloud.dry_run else str(pathlib.Path(folder) / TOKEN)
    if not gcloud.dry_run:
      pathlib.Path(path).touch(0o600)
      pathlib.Path(path).write_text(secrets.token_hex(32))
    lib.report(launch.watched({
        f'{one.name} host {i}': one.copy(path, f'HOST:{TOKEN}', i)
        for one, i in (head, *others)}), "Copying Ray's token")

  def begin(flags):
    return lambda one, i: (
        f'chmod 600 {TOKEN} && {AUTH} && cd {FOLDER} && (.venv/bin/ray stop '
        '--force; .venv/bin/ray start --disable-usage-stats '
        f'--labels={SLICE}={one.name},{HOST}={i} {flags})')
  launch.everywhere([head], begin(f'--head --port={PORT} --node-ip-address='
                                  f'{address}'), "Starting Ray's head")
  launch.everywhere(others, begin(f'--address={address}:{PORT}'),
                    'Starting Ray')


def run(launch: Launch) -> list[lib.Ended]:
  """Runs the sweep until it ends or a slice is lost, collecting meanwhile.

  Without results that were copied here in the end it has failed.
  """
  if len(launch.slices) > 1:
    join_ray(launch)
  last = time.monotonic()

  def going() -> bool:
    nonlocal last
    if time.monotonic() > last + launch.collect_every:
      collect(launch)
      last = time.monotonic()
    return not asked.lost(launch)
  found = launch.gcloud.together(commands(launch), going=going,
                                 every=launch.poll)
  ended = collect(launch)
  return found if any(x.code for x in found) else [ended]


def sweep(launch: Launch) -> None:
  """Everything, again and again, until the sweep is done.

  Raises:
    ValueError: It can't go on: says what each host said last, of the sweep or
      of its set-up.
  """
  losses = fruitless = 0
  before, again = _decoded(launch.output), False
  while True:
    asked.create(launch, launch.slices, patient=again)
    failed = None
    try:
      setup(launch, unready(launch))
      found = run(launch)
    except ValueError as error:
      failed, found = error, [lib.Ended('the start', 1, [str(error)])]
    if launch.gcloud.dry_run:
      return lib.say_what_a_loss_takes(
          launch.gcloud, launch.slices, str(launch.output / 'runs'))
    if not any(x.code for x in found):
      return
    time.sleep(launch.poll)            # until a loss shows, or it has passed
    gone = asked.lost(launch)
    now = _decoded(launch.output)
    fruitless = 0 if now > before or gone else fruitless + 1
    before, again, losses = now, True, losses + bool(gone)
    if gone and losses > launch.restarts:
      raise ValueError(
          f'{gone[0].name} was taken away, and --restarts {launch.restarts} '
          'says how often it may be asked for again; the same command goes on.')
    bad = any(x.code == BAD_INPUT for x in found)
    if not gone and (bad or fruitless == lib.RETRIED):
      if failed:
        raise failed
      # Others end because one did, which is told first.
      lib.report(sorted(found, key=lambda x: x.code != BAD_INPUT), 'The sweep')
    for line in [f'{one.name} was taken away' for one in gone] or map(
        str, (x for x in found if x.code)):
      launch.gcloud.say(f'# {line}; the sweep goes on')


def _decoded(folder: pathlib.Path) -> int:
  """Decodes that are collected: a journal gets notes of every start, too."""
  return sum(x.read_bytes().count(DECODE)
             for x in (folder / 'runs').rglob('*.jsonl'))


def delete(launch: Launch) -> None:
  """Gives the slices back; ValueError names those that it could not."""
  failed = [x for x in launch.gcloud.together(
      {one.name: one.delete() for one in launch.slices}) if x.code]
  if failed:
    raise ValueError(f'Not given back: {"; ".join(map(str, failed))}')


def _flags(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  args, rest = list(args), []
  if '--' in args:
    args, rest = args[:args.index('--')], args[args.index('--') + 1:]
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('action', choices=('create', 'setup', 'run', 'collect', 'delete',
                         'sweep'))
  for name, what in (('name', 'of the slices, yours to choose'),
                     ('project', 'of Google Cloud'),
                     ('zone', 'us-west4-a, say'),
                     ('type', 'v5litepod-16, v4-8, ...')):
    add(f'--{name}', required=True, help=what)
  add('--slices', type=int, default=1, help='how many; from two on they are '
      'joined by Ray, a worker a chip, or on each mesh that the sweep names')
  add('--runtime', help="the virtual machines' software; default: the type's")
  add('--spot', action='store_true', help='cheaper, and may be taken away')
  add('--output', default='collected', help='directory for results, here')
  add('--env', action='append', default=[], metavar='NAME=VALUE',
      help='for the sweep; may be given more than once')
  add('--setup', default='', help='a shell command for each host after its '
      'installation, which fetches checkpoints, say')
  add('--poll', type=float, default=30., help='seconds between looks')
  add('--collect_every', type=float, default=300., help='seconds')
  add('--restarts', type=int, default=20, help='how often slices that are '
      'taken away are asked for again, at most')
  add('--delete', action='store_true', help='give the slices back at the end')
  add('--dry_run', action='store_true', help='print commands, run nothing')
  return parser.parse_args(args), rest


def _launch(flags: argparse.Namespace, rest: list[str]) -> Launch:
  checks.numbers(flags)
  names = [flags.name] if flags.slices == 1 else [
      f'{flags.name}-{i}' for i in range(flags.slices)]
  made = [lib.Slice(name, flags.project, flags.zone, flags.type, flags.runtime,
                    flags.spot) for name in names]
  mesh = checks.sweep(flags, rest, made[0])
  checks.output(flags)
  output = pathlib.Path(flags.output).expanduser()
  if not flags.dry_run:
    output = output.absolute()         # scp takes a colon for a host's end
  if not flags.dry_run:
    collected.settle(output)
  return Launch(
      lib.Gcloud(flags.dry_run), made, rest, output, flags.env, flags.setup,
      flags.poll, flags.collect_every, flags.restarts, checks.head(flags),
      mesh)


def main(args: Sequence[str]) -> None:
  flags, rest = _flags(args)
  launch = _launch(flags, rest)
  alone = flags.action in checks.RUNS and not flags.dry_run
  try:
    with collected.held(launch.output) if alone else contextlib.nullcontext():
      _act(flags, launch)
  except BaseException:                # an interrupt, too
    lib.remind(launch.gcloud, launch.slices)
    raise


def _act(flags: argparse.Namespace, launch: Launch) -> None:
  if flags.action == 'run':
    lib.report(run(launch), 'The sweep')
  elif flags.action == 'sweep':
    sweep(launch)
  elif flags.action == 'collect':
    lib.report([collect(launch)], 'Collecting')
  elif flags.action == 'delete':
    flags.delete = True
  else:
    dict(create=asked.create, setup=setup)[flags.action](launch, launch.slices)
  if flags.delete:
    delete(launch)


if __name__ == '__main__':
  _cli.run(main)
