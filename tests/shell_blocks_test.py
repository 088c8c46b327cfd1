"""Commands in the documents: bash reads them, and their flags exist."""
import contextlib
import functools
import importlib.util
import io
import itertools
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from unittest import mock

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
BLOCK = re.compile(r'^ *```(\w*)\n(.*?)^ *```$', re.S | re.M)
# What is quoted stays; comments go, and so do the ends of lines that go on.
QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
NOISE = re.compile(rf'({QUOTED})|(?<!\S)#[^\n]*|\\\n')
SEPARATORS = set('();<>|&\n')
INNER = re.compile(r'--(?:command|setup)=(.*)', re.S)
SCRIPT = re.compile(r'(?:\./)?(scripts/[\w/]+\.py)')


def blocks(document):
  """Shell commands of a document, of each block by the number of its line."""
  text = document.read_text(encoding='utf-8')
  return {text[:x.start()].count('\n') + 1: textwrap.dedent(x[2])
          for x in BLOCK.finditer(text) if x[1] in ('', 'bash')}


def commands(script):
  """'a \\\n  b && c "d e"' -> [['a', 'b'], ['c', 'd e']]."""
  plain = NOISE.sub(lambda x: x[1] or ' ', script)
  lexer = shlex.shlex(plain, posix=True,
                      punctuation_chars=''.join(SEPARATORS))
  lexer.whitespace, lexer.whitespace_split, lexer.commenters = ' \t', True, ''
  found = [[]]
  for word in lexer:
    if word and set(word) <= SEPARATORS:
      found.append([])
    else:
      found[-1].append(word)
  return [x for x in found if x]


def scripts(script):
  """A script, and what its commands hand to a shell elsewhere."""
  yield script
  for command in commands(script):
    for word in command:
      if inner := INNER.fullmatch(word):
        yield from scripts(inner[1])


def faults(script):
  """What bash does not read, or reads as something else than was meant."""
  run = subprocess.run(['bash', '-n', '-c', script], capture_output=True,
                       text=True, check=False)
  if run.returncode:
    return [run.stderr]
  found = [f'{x[0]} begins a command; the line before it has to end in a \\'
           for x in commands(script) if x[0].startswith('-')]
  for command in commands(script):
    if at := [i for i, x in enumerate(command) if SCRIPT.fullmatch(x)]:
      found += wrong_flags(SCRIPT.fullmatch(command[at[0]])[1],
                           command[at[0] + 1:])
  return found


def wrong_flags(script, args):
  """Flags that a script does not have; those behind -- are of sweep.py."""
  if not (ROOT / script).is_file():
    return [f'there is no {script}']
  args, rest = list(args), []
  if '--' in args:
    args, rest = args[:args.index('--')], args[args.index('--') + 1:]
  known = usage(script)
  given = {x.split('=')[0] for x in args if x.startswith('--')}
  found = [f'{script} has no {x}' for x in sorted(given - known - {'--help'})
           if not x.startswith('--gin.')]
  return found + (wrong_flags('scripts/sweep.py', rest) if rest else [])


@functools.cache
def usage(script):
  """Flags that a script's --help names, without its description."""
  name = f'documented_{script.removesuffix(".py").replace("/", "_")}'
  spec = importlib.util.spec_from_file_location(name, ROOT / script)
  module = importlib.util.module_from_spec(spec)
  path = [str(ROOT / 'scripts'), str(ROOT / 'scripts/tpu'), *sys.path]
  shown = io.StringIO()
  with (mock.patch.dict(os.environ), mock.patch.object(sys, 'path', path),
        mock.patch.dict(sys.modules, {name: module}),
        contextlib.redirect_stdout(shown), pytest.raises(SystemExit)):
    spec.loader.exec_module(module)
    module.main(['--help'])
  return set(re.findall(r'--\w+', shown.getvalue().split('\n\n')[0]))


def inner_scripts(document):
  return [x for block in blocks(document).values()
          for x in list(scripts(block))[1:]]


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda x: x.name)
def test_bash_reads_what_was_meant(document):
  found = {line: x for line, block in blocks(document).items()
           for script in scripts(block) if (x := faults(script))}
  assert not found


def test_there_are_blocks_and_scripts_within():
  assert sum(len(blocks(x)) for x in DOCUMENTS) > 20
  assert len(inner_scripts(ROOT / 'docs/tpu.md')) >= 2


# A bucket that is a folder, and a Python that makes what it is told to make.
GCLOUD = """\
#!/bin/bash
from=${4/#gs:/$BUCKETS} to=${5/#gs:/$BUCKETS}
case "$1 $2 $3" in
  "storage cp -r") cp -r "$from" "$to";;
  "storage rsync -r") mkdir -p "$to" && cp -r "$from/." "$to";;
  *) exit 9;;
esac
"""
PYTHON = """\
#!/bin/bash
echo "$@" >>"$BUCKETS/log"
for x in "$@"; do
  case "$x" in --output=* | --gin.MODEL_DIR=*) mkdir -p "${x#*=}";; esac
  case "$x" in --gin.WEIGHTS=*) [ -d "${x#*=}" ] || exit 2;; esac
done
"""


def test_what_is_fine_tuned_comes_to_the_sweep(tmp_path, monkeypatch):
  set_up, tune, save, set_up_sweep = inner_scripts(ROOT / 'docs/tpu.md')
  for size in ('small', 'xl'):
    (tmp_path / f'BUCKET/pretrained/t5_1_1_{size}').mkdir(parents=True)

  def program(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
  program(tmp_path / 'bin/gcloud', GCLOUD)

  def new(name):
    program(tmp_path / name / 'spec_cascades/.venv/bin/python', PYTHON)
    return tmp_path / name

  def run(script, folder):
    path = f'{tmp_path / "bin"}:{os.defpath}'
    subprocess.run(['bash', '-ec', script], cwd=folder, check=True,
                   env=dict(PATH=path, BUCKETS=f'{tmp_path}'))
  first, second, curve = map(new, ('first', 'second', 'curve'))
  run(set_up, first / 'spec_cascades')
  run(tune, first)
  run(tune.replace('xl', 'small'), first)
  run(save, first)
  run(set_up, second / 'spec_cascades')                # after a loss
  assert (second / 'spec_cascades/trained/xl').is_dir()
  log = (tmp_path / 'log').read_text().splitlines()
  train, export = (next(x for x in log if name in x)
                   for name in ('train.py', 'export.py'))
  assert '--gin.MODEL_DIR=trained/xl' in train and '"' not in train
  assert '--gin.loop.Run.mesh=(1, 8)' in train
  assert '--gin.MODEL_DIR=trained/xl' in export
  run(set_up_sweep, curve / 'spec_cascades')
  given = [x.split('=', 2)[1:] for x in sum(itertools.chain.from_iterable(
      map(commands, blocks(ROOT / 'docs/tpu.md').values())), [])
           if x.startswith('--env=')]
  assert ['CHECKPOINTS', 'checkpoints'] in given
  for name, value in given:
    monkeypatch.setenv(name, value)
  config = runpy.run_path(str(ROOT / 'configs/paper_t5.py'))
  bindings, = (x for name, _, x in config['get_sweep']()
               if name == 'wmt14_ende_xl')
  for model in ('VERIFIER', 'DRAFTER'):
    path, = (x.split("'")[1] for x in bindings if x.startswith(model))
    assert (curve / 'spec_cascades' / path).is_dir()


INNER_FLAGS = """\
gcloud ssh s \\
  --command='cd there && python scripts/train.py{0}
    --gin_file=a.gin --gin.A="(1, 8)"'  # don't
"""


@pytest.mark.parametrize('script,what', [
    (INNER_FLAGS.format(''), '--gin_file=a.gin begins a command'),
    ('gcloud ssh s\n  --quiet\n', '--quiet begins a command'),
    ("gcloud ssh s --command='cd there &&'", 'syntax error'),
    ("python scripts/tpu/launch.py sweep --setup='x &&\n  (y'", 'syntax error'),
    ("python scripts/tpu/launch.py sweep --set_up='x'", 'has no --set_up'),
    ('python scripts/tpu/launch.py run -- --config=a --out=b', 'no --out'),
    ('A=b .venv/bin/python scripts/export.py --output=a --texts 3', '--texts'),
    ('python scripts/none.py --output=a', 'there is no scripts/none.py'),
    ('if true; then', 'syntax error')])
def test_what_is_wrong_is_found(script, what):
  found = [y for x in scripts(script) for y in faults(x)]
  assert len(found) == 1 and what in found[0]


def test_what_is_right_is_not_found():
  for script in (INNER_FLAGS.format(' \\'), "a 'b;\n--c' \\\n  --d # --e\nf\n"):
    assert not [y for x in scripts(script) for y in faults(x)]
  assert commands('a \\\n  b && c "d e"') == [['a', 'b'], ['c', 'd e']]
