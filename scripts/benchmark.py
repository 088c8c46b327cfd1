"""Prints the figures of docs/benchmarks.md, each a ratio from one run.

  python scripts/benchmark.py all                    everything below, in turn
  python scripts/benchmark.py steps --dims large     cost of scoring 1..8 tokens
  python scripts/benchmark.py speedup --dims large   measured against analytic
  python scripts/benchmark.py peers --dims large     against transformers
  python scripts/benchmark.py shipped                the shipped pair at T=0

--dims small and large are T5 v1.1's, with random weights; shipped is the pair
that comes with the project. peers needs requirements-test.txt. Times exclude
compilation; run it on a quiet machine.
"""
from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import time
from typing import Sequence

import _cli
import jax
import numpy as np

from spec_cascades import theory
from spec_cascades.checkpoints import huggingface
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import timing

DIMS = {'small': benchmarks.SMALL, 'large': benchmarks.LARGE}
SHIPPED = 'shipped'
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)


def verifier_of(dims: str) -> benchmarks.Loaded:
  """The shipped verifier, or one of these dimensions with random weights."""
  if dims != SHIPPED:
    return benchmarks.Loaded.random(DIMS[dims])
  model = pairs.load().verifier
  return benchmarks.Loaded(model.lm, model.params)


def drafter_of(dims: str) -> benchmarks.Loaded:
  """The shipped drafter, or one of small dimensions with random weights."""
  if dims != SHIPPED:
    return benchmarks.Loaded.random(DIMS['small'], seed=1)
  model = pairs.load().drafter
  return benchmarks.Loaded(model.lm, model.params)


def header() -> str:
  """Machine, versions, date and load: what a figure depends on."""
  version = importlib.metadata.version
  return (f'{datetime.date.today()}  {timing.machine()}  {timing.device()}  '
          f'load {os.getloadavg()[0]:.1f}  jax {version("jax")}  '
          f'flax {version("flax")}  Python {platform.python_version()}')


def steps(args) -> None:
  """Cost of scoring 1..8 tokens, relative to 1."""
  model = verifier_of(args.dims)
  found = benchmarks.step_seconds(model, WIDTHS, runs=args.runs)
  for n, spread in found.items():
    ratio = spread.median / found[1].median
    print(f'{args.dims}: {n} tokens  {spread}  {ratio:.2f}x the cost of 1')


def speedup(args) -> None:
  """Forced acceptance: measured speed-up against the analytic one."""
  verifier, drafter = verifier_of(args.dims), drafter_of(args.dims)
  gamma = args.gamma
  programs = dict(
      autoregression=benchmarks.decode_program(
          verifier, None, gamma, new_tokens=args.tokens),
      speculative=benchmarks.decode_program(
          verifier, drafter, gamma, rate=args.rate, new_tokens=args.tokens),
      one=benchmarks.block_program(verifier, 1, steps=8),
      block=benchmarks.block_program(verifier, gamma + 1, steps=8),
      drafter=benchmarks.block_program(drafter, 1, steps=8),
      prefill=lambda: prefill(verifier),
      draft_prefill=lambda: prefill(drafter))
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


def prefill(model):
  """The encoder and the empty cache: what a decode does before its rounds."""
  return _prefill(model.lm, model.packed, benchmarks.prompt_of(1, 64))


_prefill = jax.jit(lambda lm, packed, prompt: lm.init(packed, prompt, 80),
                   static_argnums=0)


def peers(args) -> None:
  """Greedy decoding of the same weights by transformers, in turn with ours."""
  import torch  # pylint: disable=g-import-not-at-top
  import transformers  # pylint: disable=g-import-not-at-top
  config = DIMS[args.dims]
  lm = benchmarks.t5.T5(config)
  params = jax.jit(lm.init_params)(jax.random.key(0))
  theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(
      vocab_size=config.vocab_size, d_model=config.emb_dim,
      d_kv=config.head_dim, d_ff=config.mlp_dim,
      num_layers=config.num_encoder_layers,
      num_decoder_layers=config.num_decoder_layers,
      num_heads=config.num_heads, feed_forward_proj='gated-gelu',
      tie_word_embeddings=False, decoder_start_token_id=0, eos_token_id=None,
      pad_token_id=0)).eval()
  # Version 5 ties the head to the embeddings whatever the configuration says.
  theirs.lm_head.weight = torch.nn.Parameter(theirs.shared.weight.clone())
  state = huggingface.t5_state_dict(params, config)
  theirs.load_state_dict(
      {k: torch.from_numpy(np.array(v)) for k, v in state.items()},
      strict=False)
  ours = benchmarks.Loaded(lm, lm.pack(params))
  del params, state
  ids = torch.from_numpy(np.array(benchmarks.prompt_of(1, 64).inputs)).long()

  def generate():
    with torch.inference_mode():
      return theirs.generate(
          ids, max_new_tokens=args.tokens, min_new_tokens=args.tokens,
          do_sample=False, use_cache=True).numpy()

  ours_fn = benchmarks.decode_program(ours, None, 1, new_tokens=args.tokens)
  found = benchmarks.timed(dict(ours=ours_fn, transformers=generate), args.runs)
  same = (np.asarray(ours_fn().tokens)[0] == generate()[0]).mean()
  for name, spread in found.items():
    print(f'{args.dims}: {name:14} {spread} for {args.tokens} tokens, '
          f'{args.tokens / spread.median:.1f} tokens/s')
  ratio = found['ours'].median / found['transformers'].median
  print(f'{args.dims}: ours takes {ratio:.2f}x the time of transformers '
        f'{transformers.__version__} (torch {torch.__version__}); '
        f'{100 * same:.0f} % of the tokens agree')


def shipped(args) -> None:
  """Greedy speculative decoding with the shipped pair, against p alone."""
  for gamma in args.gammas:
    found = benchmarks.lossless_pair(gamma, args.runs)
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


def everything(args) -> None:
  """All figures, the same way as one by one."""
  for what, dims in (
      (peers, 'small'), (peers, 'large'), (steps, 'large'), (speedup, 'large'),
      (steps, SHIPPED), (speedup, SHIPPED), (shipped, SHIPPED)):
    print(f'\n{what.__name__}, {dims} dimensions', flush=True)
    what(argparse.Namespace(**{**vars(args), 'dims': dims}))


COMMANDS = {'all': everything, 'steps': steps, 'speedup': speedup,
            'peers': peers, 'shipped': shipped}


def main(args: Sequence[str]) -> None:
  parser = _cli.Parser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('what', choices=COMMANDS)
  parser.add_argument('--dims', choices=[*DIMS, SHIPPED], default='large',
                      help='of steps, speedup and peers (not shipped)')
  parser.add_argument('--runs', type=int, default=5)
  parser.add_argument('--gamma', type=int, default=5, help='of speedup')
  parser.add_argument('--rate', type=float, default=0.75,
                      help='forced acceptance of speedup')
  parser.add_argument('--tokens', type=int, default=48,
                      help='decoded, of speedup and peers')
  parser.add_argument('--gammas', type=int, nargs='+', default=[2, 3, 4, 5],
                      help='of shipped')
  flags = parser.parse_args(args)
  for name in ('runs', 'gamma', 'tokens'):
    if getattr(flags, name) < 1:
      raise ValueError(f'Got --{name} {getattr(flags, name)}; allowed: 1 or '
                       'more.')
  if flags.what == 'peers' and flags.dims == SHIPPED:
    raise ValueError('Got peers --dims shipped; allowed: small, large.')
  if min(flags.gammas) < 1 or not 0 <= flags.rate <= 1:
    raise ValueError(f'Got --gammas {flags.gammas} --rate {flags.rate}; '
                     'allowed: gammas from 1, a rate in [0, 1].')
  print(header())
  began = time.time()
  COMMANDS[flags.what](flags)
  print(f'took {time.time() - began:.0f} s')


if __name__ == '__main__':
  _cli.run(main)
