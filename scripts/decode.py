"""Decodes text with a speculative cascade; prints as rounds finish.

A T5 translates it; a Gemma, Llama or Qwen, given by the path of its checkpoint,
continues it, or answers it with --chat.

Examples:
  python scripts/decode.py "This package contains the documentation."
  python scripts/decode.py --rule TokenV3 --alpha 0.3 --temperature 1 --trace \\
    "Click the button to save the document."
  python scripts/decode.py --file input.txt --rule Lossless > output.txt
  python scripts/decode.py --verifier gemma-3-270m-q4_k_m.gguf \\
    --drafter ngram "The capital of France is"
Each line of a file or of standard input is a text of its own. Several processes
(--coordinator) share them, or, if they share one --mesh, decode each together;
the first one reads and prints.
"""
from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
from typing import Any, Callable, Iterator, Sequence

import _cli

# Of several processes' flags, what each may have of its own; of paths, what is
# there is compared.
OWN = ('text', 'file', 'coordinator', 'num_processes', 'process_id', 'profile',
       'verifier', 'drafter_dir', 'drafter')


def _flags(args: Sequence[str]) -> argparse.Namespace:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('text', nargs='?', help='the input; default: standard input')
  add('--file', help='read the texts from this file instead')
  add('--rule', default='Lossless', help='a class of spec_cascades/targets')
  add('--alpha', type=float, help="the rule's threshold")
  add('--drafter', default='chain', help='a key of KINDS in '
      'spec_cascades/evaluation/kinds.py, such as chain (default), tree, '
      'ngram, lookahead or skip; some read what is at a path: '
      'rest:runs/drafters/datastore')
  add('--gamma', type=int, default=5, help='tokens drafted a round')
  add('--temperature', type=float, default=0.0, help='0 (default) is greedy')
  add('--top_p', type=float, default=1.0)
  add('--top_k', type=int, default=0)
  add('--seed', type=int, default=0)
  add('--max_length', type=int, default=128, help='output tokens at most')
  add('--max_input_length', type=int, help="input tokens at most; default: the "
      "model's")
  add('--verifier', help='model directory, or any checkpoint; default: the '
      'shipped pair')
  add('--drafter_dir', help='the same, for drafters that are a small model')
  add('--dtype', default='float32', help='of weights, activations and caches: '
      'float32 (default) or bfloat16, which halves memory')
  add('--chat', action='store_true', help='the text is a message to answer; '
      "needs the checkpoint's chat template")
  add('--mesh', default='1,1', metavar='DATA,MODEL', help='devices to decode '
      'on: groups, which a single text leaves idle but one, and devices of a '
      'group; more than one process has are those of all')
  add('--layout', default='tensor', help='how the verifier is cut on a mesh: '
      'data, tensor (default) or fsdp')
  add('--drafter_layout', default='data', help='the same for the drafter; '
      'data (default) is whole on each device')
  add('--trace', action='store_true', help='show every round and the origin of '
      'its tokens; NO_COLOR is respected')
  add('--profile', metavar='DIR', help='write a trace for xprof there, and say '
      'where the time went; of several processes the first is traced')
  _cli.add_hosts(parser)
  return parser.parse_args(args)


def _texts(flags: argparse.Namespace) -> list[str]:
  """The inputs."""
  if flags.text is not None and flags.file is not None:
    raise ValueError('Got a text and --file; give one of them.')
  if flags.text is None:
    return _cli.lines(flags.file)
  return [_cli.said(lambda: flags.text)]


def _shared(flags: argparse.Namespace, spans: bool
            ) -> tuple[list[int | None], dict[int, str]]:
  """Which process has which line, None for all, and this one's own lines.

  Of a file that all of several processes have, each reads those in its part of
  the bytes. Else the first reads all, and line i is for process i modulo their
  number. Where a mesh spans them, each has all lines.

  Raises:
    ValueError: There is none, in any process, or files differ.
  """
  # pylint: disable=g-import-not-at-top
  from spec_cascades import hosts
  from spec_cascades.data import shares
  place = pathlib.Path(flags.file or '').expanduser()
  if not spans and hosts.count() > 1 and all(
      hosts.gathered(flags.text is None and place.is_file())):
    shares.agreed(lambda: place)
    own = hosts.together(lambda: _cli.lines(
        flags.file, (hosts.index(), hosts.count())))
    counts = hosts.gathered(len(own))
    owners = [who for who, n in enumerate(counts) for _ in range(n)]
    lines = dict(enumerate(own, sum(counts[:hosts.index()])))
  else:
    every = hosts.said(lambda: _texts(flags))
    owners = [None if spans else i % hosts.count() for i in range(len(every))]
    lines = {i: line for i, line in enumerate(every)
             if owners[i] in (None, hosts.index())}
  if not any(hosts.gathered(any(x.strip() for x in lines.values()))):
    raise ValueError('The input is empty; give a text, --file or lines on '
                     'standard input.')
  return owners, lines


def _models(flags: argparse.Namespace, mesh: Any) -> Any:
  """The models; ValueError if there is none at a path, or they don't fit."""
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import drafting
  from spec_cascades.evaluation import pairs
  options = dict(dtype=flags.dtype, mesh=mesh,
                 progress=_cli.loading_bar())
  if flags.verifier is None or pairs.is_own(flags.verifier):
    if flags.chat:
      raise ValueError('--chat needs --verifier, a checkpoint with a chat '
                       'template.')
    given = dict(verifier=flags.verifier, drafter=flags.drafter_dir)
    given = {name: path for name, path in given.items() if path}
    # The drafter that comes with the project is read if one is needed.
    small = drafting.takes_small(flags.drafter)
    none = {} if small else {'drafter': None}
    return pairs.load(**(none | given), **options)
  return pairs.load(flags.verifier, flags.drafter_dir, **options)


def _mesh(flags: argparse.Namespace) -> Any:
  """The mesh of the flags; ValueError if it can't be."""
  from spec_cascades.evaluation import meshes  # pylint: disable=g-import-not-at-top
  sizes = flags.mesh.split(',')
  if len(sizes) != 2 or not all(
      x.isascii() and x.strip().isdigit() for x in sizes):
    raise ValueError(f'Got --mesh {flags.mesh}; allowed: DATA,MODEL, such as '
                     '1,4.')
  return meshes.Mesh(*map(int, sizes), flags.layout, flags.drafter_layout)


def _shown(translator: Any, painter: Any, flags: argparse.Namespace,
           tokens: list[int] | None, i: int) -> Iterator[tuple[str, str]]:
  """What is printed for line i, as rounds finish, and what went wrong."""
  output = ''
  for number, step in enumerate(translator(tokens, i) if tokens else (), 1):
    fault = (f'line {i + 1} stopped in round {step.fault}' if step.fault else
             '')
    output += step.text
    if not flags.trace:
      yield step.text, fault
    elif step.pieces or fault:
      lines = painter.line(number, step) + '\n' if step.pieces else ''
      yield lines, fault
  yield (output if flags.trace else '') + '\n', ''


def _print_all(show: Callable[[int], Iterator[tuple[str, str]]],
               owners: Sequence[int | None]) -> list[str]:
  """Prints every line's output in order; of several processes the first.

  Returns what went wrong.
  """
  from spec_cascades import hosts  # pylint: disable=g-import-not-at-top
  board, faults = hosts.Board('lines'), []
  for i, owner in enumerate(owners):
    if owner in (None, hosts.index()):
      found = show(i)
      if not hosts.first():
        found = list(found)
        if owner is not None:
          board.put(i, found)
    elif hosts.first():
      found = board.take(i)
    if hosts.first():
      for text, fault in found:
        print(text, end='', flush=True)
        faults += [fault] if fault else []
  return faults


def main(args: Sequence[str]) -> None:
  flags = _flags(args)
  mesh = _mesh(flags)
  _cli.join(flags, mesh=mesh.size)
  # pylint: disable=g-import-not-at-top
  from spec_cascades import hosts
  from spec_cascades.evaluation import dealing
  from spec_cascades.evaluation import environment
  from spec_cascades.evaluation import profiling
  if hosts.count() > 1:
    kind, _, _ = flags.drafter.partition(':')
    dealing.agree({**environment.here(), 'drafter': kind, **{
        name: repr(x) for name, x in vars(flags).items() if name not in OWN}})
  if flags.profile and hosts.first():
    profiling.writable(flags.profile)  # or it is refused, before all else
  owners, lines = _shared(flags, mesh.spans)
  from spec_cascades.evaluation import trace
  from spec_cascades.evaluation import translate
  settings = translate.Settings(
      flags.rule, flags.drafter, flags.alpha, flags.gamma, flags.temperature,
      flags.top_p, flags.top_k, flags.seed, flags.max_length)
  pair = _models(flags, mesh)
  translator = translate.Translator(
      pair, settings, max_input_length=flags.max_input_length)
  hosts.alike('models', ' '.join(x[:12] for x in translator.digests))
  asked = lambda line: pair.vocabulary.chat(
      [dict(role='user', content=line)]) if flags.chat else line
  inputs = hosts.together(lambda: {
      i: translator.encode(asked(line), f'Line {i + 1}') if line.strip()
      else None for i, line in lines.items()})

  painter = trace.Painter(hosts.said(lambda: trace.has_colour(
      sys.stdout.isatty(), os.environ)))        # the first one prints
  if flags.trace and hosts.first():
    print(f'round, accepted/drafted, tokens: {painter.legend()}')
  show = lambda i: _shown(translator, painter, flags, inputs[i], i)
  warm = flags.profile
  if mesh.spans:                       # then all have to decode the same
    warm = hosts.said(lambda: flags.profile)
  if warm:
    for i in {len(x): i for i, x in inputs.items() if x}.values():
      list(show(i))                    # compiled before, not in the trace
  with profiling.traced(flags.profile if hosts.first() else None,
                        functools.partial(print, file=sys.stderr)):
    faults = _print_all(show, owners)
  if faults:
    raise ValueError(f'Non-finite logits: {", ".join(faults)}; the output ends '
                     'there. Check the weights.')


if __name__ == '__main__':
  _cli.run(main)
