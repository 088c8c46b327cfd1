"""What the scripts share: gin on the command line, and errors in one line."""
from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import functools
import itertools
import logging
import pathlib
import re
import sys
import traceback
from typing import Any, Callable, Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PREFIX = '--gin.'
FIELD = re.compile(r'\{\w+\}')        # a template begins with its field
# Scopes of gin: of a binding, and of a reference.
BOUND = re.compile(r'^([\w/]+)/[\w.]+\s*=', re.MULTILINE)
REFERRED = re.compile(r'@([\w/]+)/[\w.]+')
# Errors of the system that are of a file's name, and those without a number.
OF_INPUT = (None, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
            errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG,
            errno.ELOOP, errno.EINVAL)
UNSET = re.compile(r'(\w+)/macro\.value set to `%gin\.REQUIRED`')


class Parser(argparse.ArgumentParser):
  """Flags that can't be used are errors like any other."""

  def error(self, message: str) -> None:
    """Raises ValueError instead of printing the usage."""
    raise ValueError(f'{message}; see --help.')


def gin_parser(doc: str) -> Parser:
  """A parser whose only flag is --gin_file; `doc` is the script's docstring."""
  parser = Parser(description=doc,
                  formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--gin_file', action='append', required=True,
                      metavar='FILE', help='may be given more than once')
  return parser


def add_hosts(parser: argparse.ArgumentParser) -> None:
  """Flags of a script that several processes may run together."""
  add = parser.add_argument_group(
      'several processes', 'each is given the same command and these; see '
      'docs/tpu.md').add_argument
  add('--coordinator', metavar='HOST:PORT', help="of process 0; 'auto' finds "
      'out all three on Cloud TPUs and Slurm')
  add('--num_processes', type=int, help='how many there are')
  add('--process_id', type=int, help='which this is, from 0')


def named_hosts(flags: argparse.Namespace) -> bool:
  """Whether a flag of `add_hosts` is given."""
  return (flags.coordinator, flags.num_processes,
          flags.process_id) != (None, None, None)


def join(flags: argparse.Namespace, **how: Any) -> None:
  """Joins the other processes that the flags or the environment name.

  `how` is `training` or `mesh` of `hosts.start`.
  """
  from spec_cascades import hosts  # pylint: disable=g-import-not-at-top
  hosts.start(flags.coordinator, flags.num_processes, flags.process_id, **how)


def run(main: Callable[[Sequence[str]], None]) -> None:
  """Calls main; input that can't be used ends in one line and exit code 2.

  What the same command may get past, such as a network or other processes that
  are not there yet, ends in one line and exit code 3. Of several processes the
  others end soon after one that failed.
  """
  name = pathlib.Path(sys.argv[0]).name
  try:
    main(sys.argv[1:])
    if hosts := _hosts():
      hosts.finish()
  except (ValueError, OSError) as error:
    print(f'{name}: {one_line(error)}', file=sys.stderr)
    _leave(3 if _passing(error) else 2)
  except KeyboardInterrupt:
    print(f'\n{name}: interrupted.', file=sys.stderr)
    _leave(130)
  except Exception as error:  # pylint: disable=broad-exception-caught
    if isinstance(error, MemoryError) or 'RESOURCE_EXHAUSTED' in str(error):
      print(f'{name}: out of memory: {one_line(error)[:200]}; take a smaller '
            'batch, length or gamma, or dtype bfloat16.', file=sys.stderr)
      _leave(2)
    hosts = _hosts()
    if hosts is None or hosts.count() == 1:
      raise
    if line := hosts.cut_off(error):
      print(f'{name}: {line}', file=sys.stderr)
      hosts.leave(3)
    traceback.print_exc()
    hosts.leave(1)


def _passing(error: ValueError | OSError) -> bool:
  """Whether it is of the machine or its network, and not of the input."""
  return not isinstance(error, ValueError) and (
      isinstance(error, (ConnectionError, TimeoutError, ChildProcessError))
      or error.errno not in OF_INPUT)


def _hosts() -> Any:
  """The module, if the script has joined others, which takes JAX."""
  return sys.modules.get('spec_cascades.hosts')


def _leave(code: int) -> None:
  if hosts := _hosts():
    hosts.leave(code)
  sys.exit(code)


def loading_bar() -> Callable[..., Any]:
  """tqdm for bytes of weights, unless they are read in no time.

  What is longer than a second is shown in a terminal, than 15 in a log.
  """
  import tqdm  # pylint: disable=g-import-not-at-top
  interval, delay = (.5, 1) if sys.stderr.isatty() else (15, 15)
  return functools.partial(tqdm.tqdm, dynamic_ncols=True, mininterval=interval,
                           delay=delay)


def text_parser(doc: str) -> Parser:
  """A parser for what makes something of texts for a verifier, see `texts`."""
  parser = Parser(description=doc,
                  formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--output', required=True, help='directory to write')
  add('--verifier', help='model directory, or any checkpoint; default: the '
      'shipped one')
  add('--corpora', help='comma-separated corpora that build_corpus.py made')
  add('--file', help='or: a file with one text a line')
  add('--cache_dir', default='~/.cache/spec_cascades',
      help='directory that build_corpus.py filled (default: %(default)s)')
  return parser


def texts(flags: argparse.Namespace, side: str, split: str) -> Iterator[str]:
  """Texts one by one; ValueError if it is not clear which.

  Args:
    flags: See `text_parser`.
    side: 'source' or 'target' of a corpus.
    split: Of a corpus.
  """
  if (flags.corpora is None) == (flags.file is None):
    raise ValueError(f'Got --corpora={flags.corpora} and --file={flags.file}; '
                     'give one of the two.')
  if flags.file is not None:
    return filter(str.strip, lines(flags.file))
  from spec_cascades.data import corpus  # pylint: disable=g-import-not-at-top
  chosen = [corpus.find(name) for name in flags.corpora.split(',')]
  cache_dir = pathlib.Path(flags.cache_dir).expanduser()
  return itertools.chain.from_iterable(
      (row[getattr(x, side)] for row in corpus.read(x.name, split, cache_dir))
      for x in chosen)


def lines(path: str | None,
          part: tuple[int, int] | None = None) -> list[str]:
  """Of a file of texts, or of standard input; ValueError if it is none.

  They end at line ends only: `str.splitlines` also cuts a text at what Unicode
  counts as one, such as form feeds, U+0085 and U+2028. Of a file a part may be
  asked for, see `data.shares.lines`.
  """
  if part is not None:
    from spec_cascades.data import shares  # pylint: disable=g-import-not-at-top
    with _utf8(path):
      found = shares.lines(pathlib.Path(path).expanduser(), part)
    return [line.removeprefix('\ufeff') if start == 0 else line
            for start, text in found for line in text.split('\r')]
  content = said(sys.stdin.read) if path is None else _content(path)
  found = [line.removesuffix('\r') for line in content.split('\n')]
  return found if found[-1] else found[:-1]


def said(read: Callable[[], str]) -> str:
  """What comes by standard input or as an argument; ValueError if not UTF-8."""
  try:
    text = read()
    text.encode('utf-8')           # Python passes other bytes on as surrogates
  except UnicodeError:
    raise ValueError('Got a text that is not UTF-8; give one that is: `iconv '
                     '-t UTF-8` converts it.') from None
  return text


def _content(path: str) -> str:
  place = pathlib.Path(path).expanduser()
  if not place.exists() or place.is_dir():     # it may be a pipe
    raise ValueError(f'No file at {path}; give one with a text on each line.')
  with _utf8(path):
    return place.read_text(encoding='utf-8-sig')   # Windows may mark it so


@contextlib.contextmanager
def _utf8(path):
  """ValueError that names a file which is not UTF-8."""
  try:
    yield
  except UnicodeDecodeError:
    raise ValueError(f'{path} is not UTF-8; give a file of texts, one a line.'
                     ) from None


def directory(path: str | pathlib.Path) -> pathlib.Path:
  """A directory for --output, not made yet; ValueError if it can't be."""
  place = pathlib.Path(path).expanduser()
  new = [x for x in (place, *place.parents) if not x.exists()]
  try:
    place.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(f'Got --output under {place}, which is no directory and '
                     f'can\'t be made one ({error.strerror}); give another.'
                     ) from None
  finally:                               # what is refused later leaves nothing
    for made in new:
      if made.is_dir():
        made.rmdir()
  return place


def one_line(error: BaseException) -> str:
  """The message of an error without line breaks, and what gin adds to it."""
  if isinstance(error, OSError) and error.filename and error.errno in OF_INPUT:
    return f'{error.filename}: {error.strerror.lower()}; check the path.'
  own = re.sub(r"\n\s*In call to configurable '.*", '', str(error))
  return ' '.join(own.split())


def parse(parser: argparse.ArgumentParser,
          args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """Flags, and the bindings in arguments --gin.NAME=VALUE."""
  known, rest = parser.parse_known_args(args)
  bindings = []
  for item in rest:
    if not item.startswith(PREFIX) or '=' not in item:
      raise ValueError(f'Unknown argument {item!r}; give --gin_file=FILE and '
                       '--gin.NAME=VALUE, or see --help.')
    name, value = item.removeprefix(PREFIX).split('=', 1)
    bindings.append(f'{name} = {_quoted(value)}')
  return known, bindings


def configure(files: Sequence[str], bindings: Sequence[str]) -> None:
  """Reads gin files, then bindings; relative paths may start at the root.

  Raises:
    ValueError: No such file, a name or a scope that nothing has, or a macro
      that no file sets.
  """
  import gin  # pylint: disable=g-import-not-at-top
  gin.clear_config()
  gin.add_config_file_search_path(str(ROOT))
  for file in files:
    _gin_file(file)
  try:
    with _unsaid():                   # gin logs each place where a file is not
      gin.parse_config_files_and_bindings(files, [], finalize_config=False)
    macros = _macros(gin)
    _check_scopes(gin.config_str(max_line_length=10**6), bindings)
    for binding in bindings:
      name = binding.split('=', 1)[0].strip()
      if '.' not in name and name not in macros:
        raise ValueError(f'Unknown gin name {name!r}; give a name that the '
                         'files set, or MODULE.CLASS.FIELD.')
    gin.parse_config(bindings)
    gin.finalize()
  except (ValueError, SyntaxError, TypeError, AttributeError,
          ImportError) as error:
    if unset := UNSET.search(str(error)):
      raise ValueError(f'{unset[1]} must be set: add --gin.{unset[1]}=VALUE; '
                       f'the head of {files[-1]} says which.') from None
    names = ', '.join(sorted(_macros(gin)))
    hint = f' Names that the files set: {names}.' if names else ''
    raise ValueError(f'gin: {one_line(error)}{hint}') from None


def _gin_file(file):
  """ValueError for a path at which no text is."""
  places = [place for base in (pathlib.Path(), ROOT)
            if (place := base / pathlib.Path(file).expanduser()).is_file()]
  if not places:
    raise ValueError(f'No gin file {file}; those that exist are in gin/.')
  try:
    places[0].read_text(encoding='utf-8')
  except UnicodeDecodeError:
    raise ValueError(f'{file} is no gin file: it is not UTF-8; those that '
                     'exist are in gin/.') from None


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
  """Nothing is logged meanwhile."""
  before = logging.root.manager.disable
  logging.disable(logging.ERROR)
  try:
    yield
  finally:
    logging.disable(before)


def _check_scopes(files: str, bindings: Sequence[str]) -> None:
  """Refuses scopes that only one side has: gin would never use them.

  Args:
    files: The configuration that the files make.
    bindings: Of the command line.
  """
  bound = lambda text: set(BOUND.findall(text))
  referred = lambda text: set(REFERRED.findall(text))
  own = '\n'.join(bindings)
  known = bound(files) | referred(files)
  lost = bound(own) - known - referred(own) | referred(own) - known - bound(own)
  if lost:
    raise ValueError(f'Unknown scope {min(lost)!r}; the files have: '
                     f'{", ".join(sorted(known)) or "none"}.')


def call(configurable: Callable[..., Any]) -> Any:
  """The result of a configurable; what gin left out is a ValueError."""
  import gin  # pylint: disable=g-import-not-at-top
  try:
    return gin.get_configurable(configurable)()
  except TypeError as error:
    own = getattr(configurable, '__code__', None)      # None of a class
    if any(frame.f_code is own
           for frame, _ in traceback.walk_tb(error.__traceback__)):
      raise                            # it had begun: this is not gin's doing
    raise ValueError(f'gin: {one_line(error)}') from None


def _macros(gin) -> set[str]:
  """Names of macros that the files set."""
  found = set()
  for line in gin.config_str(max_line_length=10**6).splitlines():
    name, equals, _ = line.partition(' = ')
    if equals and name.isidentifier():
      found.add(name)
  return found


def _quoted(value: str) -> str:
  """Python literals and references as they are; anything else is a string."""
  if FIELD.match(value):
    return repr(value)
  if value.startswith(('@', '%', '(', '[', '{')):
    return value
  try:
    ast.literal_eval(value)
    return value
  except (ValueError, SyntaxError):
    return repr(value)
