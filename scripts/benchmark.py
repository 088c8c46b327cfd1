"""Prints the figures of docs/benchmarks.md, each a ratio from one run.

  python scripts/benchmark.py all                    everything below, in turn
  python scripts/benchmark.py steps --dims large     cost of scoring 1..8 tokens
  python scripts/benchmark.py speedup --dims large   measured against analytic
  python scripts/benchmark.py rules --dims large     what rules add to a round
  python scripts/benchmark.py memory                 temporaries of 64 nodes
  python scripts/benchmark.py peers --dims large     against transformers
  python scripts/benchmark.py peers --weights FILE   the same, published weights
  python scripts/benchmark.py shipped                the shipped pair at T=0
  python scripts/benchmark.py bf16                   where bfloat16 texts differ
  python scripts/benchmark.py held                   how weights lie in memory
  python scripts/benchmark.py reduced                a head over fewer words
  python scripts/benchmark.py trainer                against a plain optax loop
  python scripts/benchmark.py scaling                cost of a token by batch

--dims small and large are T5 v1.1's, with random weights, drafted for by small
dimensions; shipped is the pair that comes with the project. steps --output FILE
saves the costs that scripts/plan.py and shape_tree.py read. peers needs
requirements-test.txt. Times exclude compilation; run it on a quiet machine:
what memory, products and threads give there is printed before and after, by
NumPy alone, since neighbours of a virtual machine can halve it.
"""
from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import pathlib
import platform
import time
from typing import Sequence

import _cli
import numpy as np

from spec_cascades import theory
from spec_cascades import verify
from spec_cascades.drafters import chain
from spec_cascades.drafters import tree
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import costs
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import heads
from spec_cascades.evaluation import held as held_lib
from spec_cascades.evaluation import lossless
from spec_cascades.evaluation import memory as memory_lib
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import overhead
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import peers as peers_lib
from spec_cascades.evaluation import precision
from spec_cascades.evaluation import pulse
from spec_cascades.evaluation import rules as rules_lib
from spec_cascades.evaluation import scaling as scaling_lib
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import weights
from spec_cascades.models import t5
from spec_cascades.training import throughput

DIMS = {'small': benchmarks.SMALL, 'large': benchmarks.LARGE}
SHIPPED = 'shipped'
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
RUNS = {'rules': 20}                 # where it is not 5


def models(dims: str, mesh: meshes.Mesh = meshes.Mesh()
           ) -> tuple[benchmarks.Loaded, benchmarks.Loaded]:
  """Verifier and drafter: the shipped ones, or random weights."""
  if dims == SHIPPED:
    pair = pairs.load(mesh=mesh)
    return tuple(benchmarks.Loaded(model.lm, model.params)
                 for model in (pair.verifier, pair.drafter))
  layouts = mesh.layouts() or (None, None)
  return (benchmarks.Loaded.random(DIMS[dims], layout=layouts[0]),
          benchmarks.Loaded.random(DIMS['small'], 1, layouts[1]))


def header() -> str:
  """Machine, versions, date and load: what figures depend on."""
  version = importlib.metadata.version
  return (f'{datetime.date.today()}  {timing.machine()}  {timing.device()}  '
          f'load {os.getloadavg()[0]:.1f}  jax {version("jax")}  '
          f'flax {version("flax")}  Python {platform.python_version()}  '
          f'kernels {environment.versions().get("kernels", "none")}')


def names_of(dims: str) -> dict[str, str]:
  """What verifier and drafter are called in a file of costs."""
  if dims == SHIPPED:
    pair = pairs.load()
    return dict(verifier=pair.verifier.name, drafter=pair.drafter.name)
  return dict(verifier=f'T5 v1.1 {dims}, random weights',
              drafter='T5 v1.1 small, random weights')


def steps(args) -> None:
  """Cost of scoring 1..8 tokens, relative to 1, and of a drafter step."""
  found = costs.measure(
      *models(args.dims), WIDTHS, runs=args.runs, names=names_of(args.dims),
      versions=environment.versions(), trees=costs.TREES if args.trees else ())
  one = found.verifier[1].median
  for n, spread in found.verifier.items():
    print(f'{args.dims}: {n} tokens  {spread}  {spread.median / one:.2f}x the '
          'cost of 1')
  print(f'{args.dims}: a drafter step  {found.drafter}  '
        f'{found.drafter.median / one:.2f}x')
  for levels, nodes, seconds in found.rounds:
    print(f'{args.dims}: a round of a tree of {nodes:.0f} nodes, {levels:.0f} '
          f'deep  {1e3 * seconds:.2f} ms')
  if args.output:
    args.output.parent.mkdir(parents=True, exist_ok=True)
    costs.write(args.output, found)
    print(f'saved as {args.output}')


def speedup(args) -> None:
  """Forced acceptance: measured speed-up against the analytic one."""
  verifier, drafter = models(args.dims)
  gamma = args.gamma
  programs = dict(
      autoregression=benchmarks.decode_program(
          verifier, None, gamma, new_tokens=args.tokens),
      speculative=benchmarks.decode_program(
          verifier, drafter, gamma, rate=args.rate, new_tokens=args.tokens),
      one=benchmarks.block_program(verifier, 1, steps=8),
      block=benchmarks.block_program(verifier, gamma + 1, steps=8),
      drafter=benchmarks.block_program(drafter, 1, steps=8),
      prefill=benchmarks.prefill_program(verifier),
      draft_prefill=benchmarks.prefill_program(drafter))
  found = benchmarks.timed(programs, args.runs)
  for name, spread in found.items():
    print(f'{name:16} {spread}')
  state = programs['speculative']()
  rounds, emitted = int(state.stats.rounds[0]), int(state.stats.emitted[0])
  # What both decodes do before their rounds is none of the formula's business.
  encoders = found['prefill'].median + found['draft_prefill'].median
  plain = found['autoregression'].median - found['prefill'].median
  spec = found['speculative'].median - encoders
  analytic = theory.analytic_speedup(
      emitted / rounds, verifier_one=found['one'].median / 8,
      verifier_block=found['block'].median / 8, drafter_steps=gamma,
      drafter_one=found['drafter'].median / 8)
  print(f'gamma {gamma}, forced acceptance {args.rate}: '
        f'{emitted / rounds:.2f} tokens a round '
        f'(i.i.d. formula {theory.expected_tokens(args.rate, gamma):.2f})')
  print(f'decoding alone: measured {plain / spec:.2f}x, analytic '
        f'{analytic:.2f}x, ratio {plain / spec / analytic:.3f}')
  whole = found['autoregression'].median / found['speculative'].median
  print(f'prefill included: measured {whole:.2f}x')


def rules(args) -> None:
  """What each rule and warp adds to a round, end to end and by itself."""
  found = overhead.measure(*models(args.dims), args.gamma, args.runs,
                           rate=args.rate)
  percent = lambda x: (f'{100 * x.median:+6.1f} % [{100 * x.low:+.1f}, '
                       f'{100 * x.high:+.1f}]')
  base = found.round_seconds
  print(f'{args.dims}: a round of Lossless with q at the last node, gamma '
        f'{args.gamma}, forced acceptance {args.rate}: {1e3 * base.median:.2f} '
        f'ms [{1e3 * base.low:.2f}, {1e3 * base.high:.2f}]')
  print(f'  q at the last node adds {percent(found.leaf)} to a round without; '
        f'a Choice among rules adds {percent(found.switch)}')
  print('  relative to that round; medians of '
        f'{args.runs} passes with 95 % intervals')
  print(f'  {"":16} {"whole round":26} {"its part alone":26} part alone')
  for name, cost in found.costs.items():
    print(f'  {name:16} {percent(cost.whole):26} {percent(cost.part):26} '
          f'{1e3 * cost.seconds.median:.3f} ms')


def memory(args) -> None:
  """Temporaries of rules and verifiers at their largest."""
  del args
  mib = lambda size: f'{size / 2**20:.0f} MiB'
  pairs_of = list(memory_lib.combinations())
  print(f'{memory_lib.VOCAB:,} entries, {memory_lib.NODES} nodes, batch 1; '
        f'allowed: {mib(memory_lib.LIMIT)}')
  print(f'{"":15} warp, target and verifier: worst of {len(pairs_of)}; a whole '
        f'round of a chain of {memory_lib.NODES}')
  worst = {}
  for name in rules_lib.RULES:
    sizes = {f'{type(judge).__name__}, {shape}': memory_lib.fusing(
        name, judge, shape) for judge, shape in pairs_of}
    most = max(sizes, key=sizes.get)
    whole = memory_lib.stepping(
        name, verify.Rejection(),
        lambda lm: chain.Chain(lm, memory_lib.NODES - 1))
    worst = {key: max(size, worst.get(key, 0)) for key, size in sizes.items()}
    print(f'{name:15} {mib(sizes[most])} ({most}); {mib(whole)}', flush=True)
  for key, size in worst.items():
    print(f'worst rule, {key}: {mib(size)}')
  parents = memory_lib.shapes()[-1].parents
  whole = memory_lib.stepping('LossyBudget', verify.Rejection(),
                              lambda lm: tree.Tree(lm, parents))
  print(f'LossyBudget, a whole round of a tree of {len(parents)}: {mib(whole)}')


def peers(args) -> None:
  """Greedy decoding of the same weights by transformers, in turn with ours."""
  if args.weights:
    for line in weights.lines(args.weights, args.tokens, args.runs,
                              _cli.loading_bar()):
      print(line, flush=True)
    return
  if args.dims == SHIPPED:
    model = pairs.load(drafter=None).verifier
    pair = peers_lib.of(model.lm, model.unpacked())
  else:
    pair = peers_lib.random(DIMS[args.dims])
  programs = dict(
      ours=benchmarks.decode_program(pair.ours, None, 1,
                                     new_tokens=args.tokens),
      transformers=pair.decode(args.tokens))
  found = benchmarks.timed(programs, args.runs)
  same = np.asarray(programs['ours']().tokens)[0] == programs['transformers']()
  for name, spread in found.items():
    print(f'{args.dims}: {name:14} {spread} for {args.tokens} tokens, '
          f'{args.tokens / spread.median:.1f} tokens/s')
  ratio = found['ours'].median / found['transformers'].median
  print(f'{args.dims}: ours takes {ratio:.2f}x the time of '
        f'{peers_lib.versions()}; {100 * same.mean():.0f} % of the tokens '
        'agree')
  count = 20
  found = benchmarks.timed({
      'ours, in a loop': benchmarks.block_program(pair.ours, 1, steps=count),
      'ours, each called': pair.our_steps(count, 32),
      'transformers': pair.their_steps(count, 32)}, 3 * args.runs)
  theirs = found['transformers'].median
  for name, spread in found.items():
    print(f'{args.dims}: one step, {name:17} {spread.over(count)}  '
          f'{spread.median / theirs:.2f}x')


def shipped(args) -> None:
  """Greedy speculative decoding with the shipped pair, against p alone."""
  for gamma in args.gammas:
    found = lossless.measured(gamma, args.runs)
    same = sum(a == b for a, b in zip(found.alone, found.speculative))
    rounds = sum(x['rounds'] for x in found.stats)
    total = {k: sum(x[k] for x in found.stats) for k in ('accepted', 'drafted')}
    emitted = sum(map(len, found.speculative))
    print(f'gamma {gamma}: {same} of {len(found.alone)} outputs are the '
          f"verifier's, token for token; {emitted / rounds:.2f} tokens a "
          f'verifier call, {total["accepted"] / total["drafted"]:.2f} of the '
          'drafts accepted')
    print(f'  all sentences: alone {found.seconds_alone}, speculative '
          f'{found.seconds_speculative}: {found.speedup:.2f}x '
          f'[{found.low:.2f}, {found.high:.2f}] (median and extremes of '
          f'{args.runs} passes)')


def bf16(args) -> None:
  """Where greedy texts of the shipped pair part if computed in bfloat16."""
  print(*precision.lines(args.gammas[-1]), sep='\n')


def held(args) -> None:
  """Decoding with weights in fewer bytes, and in other pages."""
  print(f'{args.dims}, gamma {args.gamma}, forced acceptance {args.rate}, '
        f'{args.tokens} tokens')
  for line in held_lib.lines(*models(args.dims), gamma=args.gamma,
                               rate=args.rate, tokens=args.tokens,
                               runs=args.runs):
    print(line, flush=True)


def reduced(args) -> None:
  """A drafter's step by the size of its head."""
  print(*heads.lines(args.words, args.gamma, args.runs), sep='\n')


def trainer(args) -> None:
  """Tokens per second of the trainer and of a plain loop."""
  pair = pairs.load()
  lm = pair.verifier.lm if args.dims == SHIPPED else t5.T5(DIMS[args.dims])
  print(*throughput.lines(lm, pair.vocabulary, steps=args.steps,
                          runs=args.runs), sep='\n')


def scaling(args) -> None:
  """What a token costs by batch size, on one device or a mesh."""
  mesh = meshes.Mesh(*args.mesh)
  print(f'{args.dims}, gamma {args.gamma}, forced acceptance {args.rate}, '
        f'{args.tokens} tokens a row, prompts left out, '
        f'{mesh.data} x {mesh.model} devices (data x model), medians of '
        f'{args.runs}')
  found = scaling_lib.measure(
      *models(args.dims, mesh), args.batches, gamma=args.gamma,
      rate=args.rate, tokens=args.tokens, runs=args.runs)
  for line in scaling_lib.lines(found):
    print(line, flush=True)


def everything(args) -> None:
  """All figures, the same way as one by one."""
  for what, dims in (
      (peers, 'small'), (peers, 'large'), (steps, 'large'), (speedup, 'large'),
      (rules, 'large'), (memory, 'large'), (peers, SHIPPED), (steps, SHIPPED),
      (speedup, SHIPPED), (held, 'large'), (held, SHIPPED),
      (reduced, 'large'), (shipped, SHIPPED),
      (bf16, SHIPPED), (trainer, SHIPPED), (scaling, SHIPPED)):
    print(f'\n{what.__name__} --dims {dims}', flush=True)
    runs = args.given_runs or RUNS.get(what.__name__, 5)
    what(argparse.Namespace(**{**vars(args), 'dims': dims, 'runs': runs}))


COMMANDS = {'all': everything, 'steps': steps, 'speedup': speedup,
            'rules': rules, 'memory': memory, 'peers': peers,
            'shipped': shipped, 'bf16': bf16, 'held': held,
            'reduced': reduced, 'trainer': trainer, 'scaling': scaling}


def _flags(args: Sequence[str]) -> argparse.Namespace:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('what', choices=COMMANDS)
  add('--dims', choices=[*DIMS, SHIPPED],
      help='of steps, speedup, rules, held, trainer, peers and scaling; '
           'default: large, of the trainer and scaling shipped')
  add('--runs', type=int, dest='given_runs', metavar='RUNS',
      help='of each program; default: 5, of rules 20')
  add('--gamma', type=int, default=5, help='of speedup, rules, held, '
      'reduced, scaling')
  add('--rate', type=float, default=0.75, help='accepted: speedup, rules, '
      'held and scaling')
  add('--tokens', type=int, default=48, help='decoded, of speedup, '
      'held, peers and scaling')
  add('--gammas', type=int, nargs='+', default=[2, 3, 4, 5],
      help='of shipped; bf16 takes the last')
  add('--steps', type=int, default=20, help='of a block, of trainer')
  add('--words', type=int, default=8192, help='of the head, of reduced')
  add('--weights', type=pathlib.Path, help='of peers: decoder-only weights')
  add('--batches', type=int, nargs='+', help='of scaling',
      default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
  add('--mesh', type=int, nargs=2, default=[1, 1], metavar=('DATA', 'MODEL'),
      help='devices of scaling; default: 1 1')
  add('--trees', action='store_true',
      help='of steps: rounds of small trees, too, for scripts/shape_tree.py')
  add('--output', type=pathlib.Path, help='of steps: save the costs here')
  flags = parser.parse_args(args)
  flags.runs = (RUNS.get(flags.what, 5) if flags.given_runs is None
                else flags.given_runs)
  flags.dims = flags.dims or (
      SHIPPED if flags.what in ('trainer', 'scaling') else 'large')
  for name in ('runs', 'gamma', 'tokens', 'words', 'steps'):
    if (value := getattr(flags, name)) < 1:
      raise ValueError(f'Got --{name} {value}; allowed: 1 or more.')
  if flags.weights and (flags.what != 'peers' or not flags.weights.exists()):
    raise ValueError(f'Got {flags.what} --weights {flags.weights}; allowed: '
                     'peers, and a path that exists.')
  if any(x < 1 or x % max(flags.mesh[0], 1) for x in flags.batches):
    raise ValueError(f'Got --batches {flags.batches} --mesh {flags.mesh}; '
                     'allowed: multiples of the first number of the mesh.')
  if min(flags.gammas) < 1 or not 0 <= flags.rate <= 1:
    raise ValueError(f'Got --gammas {flags.gammas} --rate {flags.rate}; '
                     'allowed: gammas from 1, a rate in [0, 1].')
  if flags.output and flags.what != 'steps':
    raise ValueError(f'Got {flags.what} --output; allowed: with steps.')
  if flags.output:
    flags.output = flags.output.expanduser()
    _cli.directory(flags.output.parent)
    if flags.output.is_dir():
      raise ValueError(f'Got --output {flags.output}, a directory; give a '
                       'file.')
  if flags.what in ('peers', 'all'):
    is_file = flags.weights and flags.weights.is_file()
    peers_lib.check(*['accelerate'] * bool(is_file))
  return flags


def main(args: Sequence[str]) -> None:
  flags = _flags(args)
  print(header())
  print(f'the machine before: {pulse.measure()}')
  began = time.time()
  COMMANDS[flags.what](flags)
  print(f'took {time.time() - began:.0f} s')
  print(f'the machine after: {pulse.measure()}')


if __name__ == '__main__':
  _cli.run(main)
