"""Step costs survive a file, and files that are not whole are refused."""
import dataclasses
import json

import benchmarks_test
import fakecosts
import pytest

from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import costs


def test_costs_survive_a_file(tmp_path):
  path = tmp_path / 'costs.json'
  costs.write(path, fakecosts.make())
  again = costs.read(path)
  assert again == fakecosts.make()
  assert [p.name for p in tmp_path.iterdir()] == [path.name]
  assert again.times.block(2) == 11. and again.times.drafter == 1.


def test_steps_are_timed_per_step():
  model = benchmarks.Loaded.random(benchmarks_test.TINY)
  found = costs.measure(model, model, (1, 3), names=dict(
      verifier='v', drafter='d'), versions={}, steps=4, runs=2)
  assert set(found.verifier) == {1, 3}
  for s in (*found.verifier.values(), found.drafter):
    assert 0 < s.low <= s.median <= s.high
  assert found.rounds == []


def test_rounds_of_trees_are_timed_without_their_prompts(monkeypatch):
  """With a clock that gives a decode so much a round, and for its prompt."""
  model = benchmarks.Loaded.random(benchmarks_test.TINY)
  spread = lambda x: benchmarks.Spread(x, x, x)

  def timed(calls, runs):
    prompts = dict(verifier=7., both=2.)
    rounds = lambda name: int(calls[name]().stats.rounds[0])
    return {name: spread(prompts[name]) if name in prompts else spread(
        7. + 2. * (name > 0) + rounds(name) * (3. + name)
        if isinstance(name, int) else 1.) for name in calls}

  monkeypatch.setattr(benchmarks, 'timed', timed)
  found = costs.measure(
      model, model, (1, 3), names=dict(verifier='v', drafter='d'), versions={},
      trees=((-1, 0), (-1, 0, 0, 1)))
  assert found.rounds == [[0., 1., 3.], [1., 2., 4.], [2., 4., 5.]]


def changed(**changes):
  return json.dumps({**dataclasses.asdict(fakecosts.make()), **changes})


BAD = dict(
  empty=('', 'Expecting value'),
  cut=(changed()[:200], 'costs.json'),
  list=('[1]', 'Got [1]'),
  missing=(json.dumps(dict(schema=1)), 'machine'),
  unknown=(changed(extra=1), 'extra'),
  schema=(changed(schema=9), 'schema 9'),
  widths=(changed(verifier={'2': dict(median=2, low=1, high=3)}), 'width 1'),
  word=(changed(verifier={'x': dict(median=2, low=1, high=3)}), "'x'"),
  order=(changed(drafter=dict(median=2, low=3, high=4)), 'low <= median'),
  zero=(changed(drafter=dict(median=0, low=0, high=0)), '0 < low'),
  text=(changed(drafter=dict(median='2', low=1, high=3)), "'2'"),
  number=(changed(drafter=3), 'seconds of drafter'),
  nan=(changed(drafter=dict(median=float('nan'), low=1, high=3)), 'nan'),
  names=(changed(names={}), 'names lacks'),
  versions=(changed(versions=3), 'versions is 3'),
  load=(changed(load='high'), "load is 'high'"),
  rounds=(changed(rounds=[[1, 2]]), 'rounds is [[1, 2]]'),
  nothing=(changed(rounds=[[1, 2, None]]), 'expected levels'),
  device=(changed(device=None), 'device is None'))


@pytest.mark.parametrize('content,what', BAD.values(), ids=BAD)
def test_files_that_are_not_whole_are_refused(tmp_path, content, what):
  path = tmp_path / 'costs.json'
  path.write_text(content)
  with pytest.raises(ValueError) as error:
    costs.read(path)
  assert str(path) in str(error.value) and what in str(error.value)
  assert 'benchmark.py steps' in str(error.value)
