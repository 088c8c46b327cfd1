"""The quickstart's curves at four draft lengths.

Command:
  python scripts/sweep.py --config=configs/gammas.py
Result: four sweeps like the quickstart, runs/gammas/gamma2 .. gamma7, each with
its table, picture and report; some minutes each on 2 cores. Long drafts pay
where drafts are accepted: compare the sweeps' latencies at equal BLEU.
"""


def get_sweep() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
  """(name, gin files, bindings) of each sweep; names are folders."""
  return [(f'gamma{gamma}', ('gin/sweeps/quickstart.gin',),
           (f'GAMMA = {gamma}',)) for gamma in (2, 3, 5, 7)]
