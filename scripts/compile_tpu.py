"""Compiles decoding for a slice of TPUs, on any machine: what does it cost?

  pip install 'libtpu==0.0.42.*'
  python scripts/compile_tpu.py --topology=v4-8 \
    --config=gin/tpu/t5_small_xl.gin --acceptance=.8

Prefill, one round and the whole loop: memory of a chip, and what chips
exchange in a round. Blocks of 1 to 64 tokens and a drafter step: FLOPs, bytes,
times by a roofline (an estimate and no measurement), and hence c, how flat
verification is, and the speed-up at a given acceptance, one or by position. A
best gamma such as 7+ is the longest that the widths, or 16, let it try.
--outputs 693000 --price 9.6 says how many hours of the slice so many outputs
take at least, and what they cost at so much an hour.
--batches 1,16,256 estimates instead what a token costs in each batch, and
where drafting stops paying.
v4 and v5p count two cores a chip: v4-8 has 4 chips, v5e-16 has 16.
scripts/tpu_table.py compiles many cases and makes the table of docs/tpu.md.
"""
from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import pathlib
import resource
from typing import Any, Sequence

os.environ['JAX_PLATFORMS'] = 'cpu'    # libtpu only compiles here

import _cli  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402

ESTIMATED = """\
Estimated, not measured: a roofline of the compiler's FLOPs, and of weights,
caches and results moved once, at {flops:.0f} TFLOP/s, {bandwidth:.0f} GB/s and
{link:.0f} GB/s a link, which are published, and {hop:g} us a hop, which is
assumed. Real steps take longer."""


def _flags(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--topology', required=True, help='v4-8, v5e-16, v5p-8, v6e-4, ...')
  add('--config', required=True, metavar='FILE', action='append',
      help='a gin file of gin/tpu; --gin.NAME=VALUE changes it, and so does '
      'another file behind it, such as fsdp.gin')
  add('--acceptance', default='.8', help='such as .8, or .85,.8,.75')
  add('--widths', default='1,2,4,8,16,32,64',
      help='of blocks, 1 among them; times between two are interpolated')
  add('--hop_us', type=float, default=1., help='assumed; default: 1')
  add('--only', choices=('programs', 'steps'),
      help='leave out the other half, which takes as long')
  add('--batches', help='such as 1,16,256')
  add('--outputs', type=int, default=0, metavar='N',
      help='how long so many outputs take at least')
  add('--price', type=float, default=0., metavar='P',
      help='of the slice for an hour; with --outputs')
  add('--json', metavar='FILE', type=pathlib.Path,
      help='write what was found there, too')
  flags, bindings = _cli.parse(parser, args)
  if not 0 <= flags.hop_us < math.inf:
    raise ValueError(f'Got --hop_us {flags.hop_us}; allowed: 0 or more.')
  if flags.outputs < 0 or not 0 <= flags.price < math.inf:
    raise ValueError(f'Got --outputs {flags.outputs} --price {flags.price:g}; '
                     'allowed: 0 or more.')
  if flags.outputs and (flags.batches or flags.only == 'programs'):
    raise ValueError('Got --outputs with --batches or --only=programs; '
                     'allowed: with the times of steps.')
  if flags.only and flags.batches:
    raise ValueError(f'Got --only={flags.only} with --batches, which compiles '
                     'steps; give one of the two.')
  if flags.price and not flags.outputs:
    raise ValueError('Got --price without --outputs, how many outputs are to '
                     'be paid for; give both.')
  flags.widths = _numbers('widths', flags.widths)
  if 1 not in flags.widths:
    raise ValueError('Got --widths without 1; allowed: 1 among them, since '
                     'times are over that of 1.')
  flags.batches = _numbers('batches', flags.batches) if flags.batches else []
  if flags.json:
    flags.json = flags.json.expanduser()
    _writable(flags.json)
  return flags, bindings


def _writable(path: pathlib.Path) -> None:
  """Refuses what can't become a file, which compiling takes long to find."""
  folder = next(x for x in path.absolute().parents if x.exists())
  if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
    raise ValueError(f'Got --json {path}; give a file in a folder that exists '
                     'or can be made.')


def _configure(files: Sequence[str], bindings: Sequence[str]) -> None:
  """Reads gin files; that of a pair would undo what is ahead of it."""
  import gin  # pylint: disable=g-import-not-at-top
  for i, file in enumerate(files):
    _cli.configure(files[:i + 1], [])      # says what can't be read
    gin.clear_config()
    gin.parse_config_file(file)
    named = 'Case.verifier =' in gin.config_str(max_line_length=10**6)
    if named != (i == 0):
      raise ValueError(f'{file} as --config number {i + 1} names '
                       f'{"a" if named else "no"} pair of models; allowed: the '
                       'file of a pair first, such as gin/tpu/t5_small_xl.gin, '
                       'and what changes it, such as fsdp.gin, behind it.')
  _cli.configure(files, bindings)


def _numbers(name: str, given: str) -> list[int]:
  """A list with commas."""
  parts = given.split(',')
  if not all(x.isascii() and x.isdigit() and int(x) for x in parts):
    raise ValueError(f'Got --{name} {given!r}; allowed: whole numbers from 1 '
                     'with commas.')
  return sorted(set(map(int, parts)))


def _memory(found: Any, hbm: float) -> str:
  """One line about a program."""
  if found.excess:
    return (f'{found.name}: does not fit: {found.excess} a chip '
            f'({found.seconds:.0f} s to compile)')
  gib = lambda x: f'{x / 2**30:.2f}'
  return (f'{found.name}: {gib(found.total)} of {gib(hbm)} GiB a chip: '
          f'arguments {gib(found.arguments)}, temporaries '
          f'{gib(found.temporary)}; donated {gib(found.donated)} '
          f'({found.seconds:.0f} s to compile)')


def _work(found: Any) -> str:
  """What a chip does in it."""
  kinds = {}
  for x in found.work.collectives:
    number, nbytes = kinds.get(x.kind, (0, 0))
    kinds[x.kind] = number + x.times, nbytes + x.times * x.nbytes
  exchanged = ', '.join(f'{n} {kind} of {size / 1e6:.2f} MB in all'
                        for kind, (n, size) in sorted(kinds.items()))
  return (f'{found.work.flops / 1e9:.2f} GFLOP, {found.work.nbytes / 1e9:.3f} '
          f'GB moved ({found.counted / 1e9:.3f} by the compiler), '
          f'{exchanged or "no exchange"}')


def _programs(programs: Any, hbm: float) -> dict[str, Any]:
  """Prints prefill, a round and the loop."""
  rows = {}
  for found in map(lambda f: f(),
                   (programs.prefill, programs.round, programs.loop)):
    print(_memory(found, hbm), flush=True)
    if found.name == 'one round' and not found.excess:
      print('  in a round:', _work(found))
    rows[found.name] = _row(found)
  if not found.excess:
    faults = rows[found.name]['faults'] = programs.faults(found)
    print('  in the loop, besides what the layouts ask for:',
          *(faults or ['no exchange, host transfer or copy of a cache']),
          sep='\n    ' if faults else ' ')
  return rows


def _row(found: Any) -> dict[str, Any]:
  return {name: x for name, x in dataclasses.asdict(found).items()
          if name != 'text'}


def _steps(programs: Any, chip: Any, flags: argparse.Namespace,
           rates: Sequence[float]) -> dict[str, Any]:
  """Prints steps, their estimated times, and what follows from them."""
  from spec_cascades.evaluation import roofline  # pylint: disable=g-import-not-at-top
  hop, uses_q = flags.hop_us * 1e-6, programs.case.uses_q
  draft, judging, sampling = (
      programs.draft(), programs.judging(), programs.sampling())
  blocks, before = {}, None
  for full in (x for x in (judging, sampling) if x.excess):
    print(_memory(full, chip.hbm))
    return {}
  for found in itertools.chain([draft], map(programs.block, flags.widths)):
    if found.excess:
      print(_memory(found, chip.hbm))
      return {}
    if found is not draft:
      blocks[int(found.name.split()[-1])] = found
    own = (f' ({1e3 * found.optimal:.3f} by XLA)'
           if roofline.sane(found, chip, hop, before) else '')
    before = found if found is not draft else None
    print(f'{found.name}: {1e3 * found.work.seconds(chip, hop):.3f} ms '
          f'estimated{own}; {_work(found)}', flush=True)
  gamma = programs.case.gamma
  judged, drawn = (roofline.passes(x, chip) for x in (judging, sampling))
  guess = roofline.estimate(draft, blocks, chip, hop, sampling=drawn,
                            judging=judged / (gamma + 1))
  flat = {width: guess.flatness(width) for width in blocks}
  drafting = (gamma + uses_q) * guess.times.drafter
  whole = drafting + guess.times.block(gamma + 1) + judged
  plan = guess.plan(rates, uses_q=uses_q)
  print(f'c {guess.cost:.3f}; verification over that of one token:',
        ', '.join(f'{w}: {x:.2f}x' for w, x in flat.items()))
  if roofline.sane(draft, chip, hop) and roofline.sane(blocks[1], chip, hop):
    print(f'c by XLA\'s own estimates {draft.optimal / blocks[1].optimal:.3f}')
  flops, moved = (
      (gamma + uses_q) * getattr(draft.work, of) + getattr(judging.work, of)
      + float(np.interp(gamma + 1, list(blocks), [
          getattr(x.work, of) for x in blocks.values()]))
      for of in ('flops', 'nbytes'))
  print(f'a round of gamma {gamma}: {1e3 * whole:.3f} ms estimated, of which '
        f'sampling and acceptance {1e3 * judged:.3f} ms, '
        f'{100 * judged / whole:.1f} %; {flops / 1e9:.2f} GFLOP, '
        f'{moved / 1e9:.3f} GB moved')
  print(f'acceptance {", ".join(f"{x:g}" for x in rates)}: best gamma '
        f'{plan.gamma}{"+" * (plan.gamma == plan.max_gamma)}, '
        f'{plan.tokens:.2f} tokens a round, {plan.speedup:.2f}x over the '
        'verifier alone, prompts left out')
  if flags.outputs:
    _bill(programs, chip, flags, rates, whole)
  print(ESTIMATED.format(flops=chip.flops / 1e12, link=chip.link / 1e9,
                         bandwidth=chip.bandwidth / 1e9, hop=flags.hop_us))
  rows = {x.name: _row(x)
          for x in (draft, judging, sampling, *blocks.values())}
  return rows | dict(
      cost=guess.cost, flatness=flat, draft_ms=1e3 * guess.times.drafter,
      verify_ms=1e3 * guess.times.block(1), round_ms=1e3 * whole,
      judging=judged / whole, sampling_ms=1e3 * drawn, gamma=plan.gamma,
      tokens=plan.tokens, max_gamma=plan.max_gamma, speedup=plan.speedup,
      acceptance=rates, **roofline.shares(programs))


def _bill(programs: Any, chip: Any, flags: argparse.Namespace,
          rates: Sequence[float], whole: float) -> None:
  """Prints what `flags.outputs` outputs take, each row by itself."""
  from spec_cascades import theory  # pylint: disable=g-import-not-at-top
  case, reading = programs.case, programs.reading()
  for found, _ in reading:
    if found.excess:
      print(_memory(found, chip.hbm))
      return
  rounds = case.new_tokens / theory.tokens_of_rates(
      _by_position(rates, case.gamma))
  prompt = sum(times * found.work.seconds(chip, flags.hop_us * 1e-6)
               for found, times in reading)
  hours = flags.outputs / case.batch * (prompt + rounds * whole) / 3600
  cost = f', {hours * flags.price:,.0f} at {flags.price:g} an hour'
  print(f'{flags.outputs:,} outputs of {case.new_tokens} tokens, '
        f'{rounds:.1f} rounds of gamma {case.gamma} and a prompt of '
        f'{1e3 * prompt:.3f} ms each, {case.batch} at a time: at least '
        f'{hours:.1f} hours of the slice{cost if flags.price else ""}')


def _by_position(rates: Sequence[float], gamma: int) -> Sequence[float]:
  """Acceptance of each draft of a round."""
  rates = [*rates] * gamma if len(rates) == 1 else rates
  if len(rates) != gamma:
    raise ValueError(f'Got --acceptance of {len(rates)} positions with gamma '
                     f'{gamma}; allowed: one, or one a position.')
  return rates


def _batches(cases: Sequence[Any], chips_: Sequence[Any], chip: Any,
             hop: float, rates: Sequence[float]) -> dict[str, Any]:
  """Prints what a token costs in each batch, prompts left out."""
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import roofline
  from spec_cascades.evaluation import scaling
  from spec_cascades.evaluation import tpu
  gamma, costs = len(rates), []
  print(f'{"rows":>5} {"us a token: alone":>18} {"drafted":>9} '
        f'{"refilled":>9} {"speed-up":>9} {"refilled":>9} '
        f'{gamma + 1:>4} tokens over 1; sampling, acceptance')
  for each in cases:
    programs, batch = tpu.Programs(each, chips_), each.batch
    steps = [programs.draft(), programs.block(1), programs.block(gamma + 1)]
    drawing = [programs.sampling(), programs.judging()]
    full = [x for x in (*steps, *drawing) if x.excess]
    if full:
      print(f'{batch:5} {_memory(full[0], chip.hbm)}')
      break
    guess = roofline.estimate(steps[0], dict(zip((1, gamma + 1), steps[1:])),
                              chip, hop)
    sampling, judging = (roofline.passes(x, chip) for x in drawing)
    cost = scaling.predicted(guess.times, batch, rates, each.new_tokens,
                             uses_q=each.uses_q, sampling=sampling,
                             judging=judging)
    whole = (gamma + each.uses_q) * guess.times.drafter + guess.times.block(
        gamma + 1) + judging
    costs.append(cost)
    print(f'{batch:5} {1e6 * cost.alone:18.2f} {1e6 * cost.drafted:9.2f} '
          f'{1e6 * cost.refilled:9.2f} {cost.speedup:8.2f}x '
          f'{cost.alone / cost.refilled:8.2f}x '
          f'{guess.flatness(gamma + 1):8.2f}x '
          f'{100 * judging / whole:16.1f} %', flush=True)
  if costs:
    print(f'acceptance {rates[0]:g}...: {scaling.ends(costs)}')
  return dict(batches=[dataclasses.asdict(x) for x in costs])


def main(args: Sequence[str]) -> None:
  """Compiles and prints."""
  flags, bindings = _flags(args)
  # pylint: disable=g-import-not-at-top
  from spec_cascades.evaluation import chips
  from spec_cascades.evaluation import tpu
  from spec_cascades.models import prefill
  if flags.widths[-1] > prefill.CHUNK:
    raise ValueError(f'Got --widths up to {flags.widths[-1]}; allowed: up to '
                     f'{prefill.CHUNK}.')
  slice_, rates = chips.topology(flags.topology), chips.rates(flags.acceptance)
  _configure(flags.config, bindings)
  case = _cli.call(tpu.Case)
  case.models()
  batched = [dataclasses.replace(case, batch=x) for x in flags.batches]
  if batched:
    rates = _by_position(rates, case.gamma)
  elif flags.outputs:
    _by_position(rates, case.gamma)    # refuses before anything is compiled
  if not (batched or flags.only == 'programs'
          or flags.widths[-1] > case.gamma):
    raise ValueError(f'Got --widths up to {flags.widths[-1]} with gamma '
                     f'{case.gamma}; allowed: {case.gamma + 1}, the block of a '
                     'round, or more among them.')
  chips_ = tpu.devices(slice_)
  programs = tpu.Programs(case, chips_)
  mesh = dict(programs.verifier.layout.mesh.shape)
  print(f'{flags.topology}: {slice_.size} chips {slice_.name}, {mesh}; '
        f'{case.drafter} ({case.drafter_rules}) -> {case.verifier} '
        f'({case.rules}), {case.dtype}, {case.batch} rows, prompts of '
        f'{case.prompt}, {case.new_tokens} new tokens, gamma {case.gamma}')
  if mesh['model'] > slice_.host:
    print(f'a group of {mesh["model"]} chips spans hosts of {slice_.host}: all '
          'processes share one mesh (more groups: --gin.DATA)')
  print(f'jax {jax.__version__}, libtpu {tpu.version()}')
  found: dict[str, Any] = {}
  if flags.batches:
    found |= _batches(batched, chips_, slice_.chip, flags.hop_us * 1e-6, rates)
  else:
    if flags.only != 'steps':
      found |= _programs(programs, slice_.chip.hbm)
    if flags.only != 'programs':
      found |= _steps(programs, slice_.chip, flags, rates)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  print(f'this machine used up to {peak / 2**30:.1f} GiB')
  if flags.json:
    from spec_cascades.data import files
    flags.json.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(flags.json, json.dumps(found | dict(
        topology=flags.topology, chips=slice_.size, mesh=mesh, host_bytes=peak,
        case=dataclasses.asdict(case), jax=jax.__version__,
        libtpu=tpu.version()), default=str))


if __name__ == '__main__':
  _cli.run(main)
