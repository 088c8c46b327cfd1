"""Speed-ups on a slice that is not there: by hand, and what is no estimate."""
import dataclasses
import json
import types

import fakesweep
import jax
import pytest
import tinypair

from spec_cascades import theory
from spec_cascades.evaluation import estimated
from spec_cascades.evaluation import kinds
from spec_cascades.evaluation.report import drafters
from spec_cascades.evaluation.report import sections
from spec_cascades.models import t5

FOUND = dict(topology='v4-8', cost=.08, layer=.04, head=.03,
             flatness={'1': 1., '4': 1.03, '8': 1.05},
             case=dict(drafter='small', verifier='xl', gamma=5))
ON = estimated.Slice('v4-8', 'small -> xl', theory.StepTimes(
    {1: 1., 4: 1.03, 8: 1.05}, .08), .04, .03)


@pytest.fixture(scope='module')
def summary():
  return fakesweep.make(limit=6)


def write(tmp_path, content):
  path = tmp_path / 'found.json'
  path.write_text(content)
  return path


def test_what_the_compiler_script_wrote_is_read(tmp_path):
  assert estimated.read(write(tmp_path, json.dumps(FOUND))) == ON


@pytest.mark.parametrize('content,match', [
    ('', 'Expecting value'), ('[]', 'it lacks topology'),
    ('3', 'not iterable'),
    (json.dumps({k: v for k, v in FOUND.items() if k != 'head'}),
     'it lacks head'),
    (json.dumps(FOUND | dict(layer=2.)), 'layer is 2.0; allowed'),
    (json.dumps(FOUND | dict(flatness={'2': 1.})), 'width 1'),
    (json.dumps(FOUND | dict(flatness=[1.])), 'has no estimates'),
    (json.dumps(FOUND | dict(case={})), 'has no estimates')])
def test_what_is_no_estimate_is_refused(tmp_path, content, match):
  with pytest.raises(ValueError, match=match) as error:
    estimated.read(write(tmp_path, content))
  assert 'found.json' in str(error.value)
  with pytest.raises(ValueError, match='give a file that scripts/compile_tpu'):
    estimated.read(tmp_path / 'none.json')


def test_a_speedup_is_tokens_over_the_time_of_a_round(summary):
  row = dataclasses.replace(
      next(x for x in summary.rows if x.drafter), tokens_per_call=3.,
      rounds=10, drafter_calls=50, histogram=[4, 3, 2, 1])
  for cost, drafting in (
      (estimated.nothing, 0.), (estimated.small, 5 * .08),
      (estimated.heads, 5 * .03), (estimated.layer, 5 * .07),
      (estimated.layer_and_heads, .04 + 4 * .03),
      (estimated.part(.5), 5 * (.5 * .97 + .03)), (estimated.part(1.), 5.)):
    assert estimated.speedup(row, cost, ON) == pytest.approx(
        3 / (1.03 + drafting))
  between = dataclasses.replace(row, histogram=[0] * 6)
  assert estimated.speedup(between, estimated.nothing, ON) == pytest.approx(
      3 / 1.04)
  wide = dataclasses.replace(row, histogram=[0] * 9)
  assert estimated.speedup(wide, estimated.nothing, ON) is None
  assert estimated.speedup(row, None, ON) is None


def test_each_kind_says_what_its_calls_cost():
  own = {name for name, kind in kinds.KINDS.items() if not kind.small}
  for name, kind in kinds.KINDS.items():
    if kind.cost is estimated.small:
      assert name not in own, f'{name} has no small model'
  assert {name for name, kind in kinds.KINDS.items() if kind.cost is None} == {
      'triforce', 'sublayers'}


def test_self_speculation_costs_the_layers_that_it_keeps():
  lm = t5.T5(tinypair.config(16, 6))
  params = jax.eval_shape(lm.init_params, jax.random.key(0))
  pair = types.SimpleNamespace(
      verifier=types.SimpleNamespace(lm=lm, params=params))
  for name in ('skip', 'exit', 'pipelined'):
    kind = kinds.KINDS[name]
    _, kept = kind.make(pair, 3, None)
    layers = sum(x.startswith('layers_') for x in kept['decoder'])
    assert kind.cost(1, ON) == pytest.approx(layers / 6 * .97 + .03), name


def test_the_table_has_a_column_of_it(summary):
  head, body = drafters.table(summary.rows, summary.drafting, (), ON)
  assert head[-1] == 'on v4-8' and body
  row = {(x.method, f'{x.temperature:g}', '-' if x.alpha is None
          else f'{x.alpha:g}'): x for x in summary.rows}
  for line in body:
    want = estimated.speedup(row[line[0], line[2], line[1]], estimated.small,
                             ON)
    assert line[-1] == f'{want:.2f}x'
  known = next(x for x in summary.rows if x.drafter)
  _, body_too = drafters.table(
      [dataclasses.replace(known, rule='SeqCascade')],
      [(dataclasses.replace(point, rule='SeqCascade'), found)
       for point, found in summary.drafting], (), ON)
  assert [x[-1] for x in body_too] == ['-']      # its rounds are tokens
  made = {x.name: x for x in sections.of_sweep(
      summary.rows, summary.comparisons, summary.drafting, summary.analysis,
      on=ON)}
  assert made['drafters'].table == (head, body)
  assert 'costs of small -> xl' in made['drafters'].note
