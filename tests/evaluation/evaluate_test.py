"""seqio.Evaluator with our engine: its metrics are those of a sweep."""
import contextlib
import dataclasses
import io
import json
import pathlib
import subprocess
import sys
from unittest import mock

import gin
import jax
import numpy as np
import pytest

from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades import theory
from spec_cascades import warp
from spec_cascades.evaluation import evaluate
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import predict
from spec_cascades.evaluation import results
from spec_cascades.evaluation import seqio_tasks
from spec_cascades.evaluation import sources
from spec_cascades.evaluation import sweep as sweep_lib
from tests import publicdata
from tests.evaluation import sweep_run_test

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'scripts'))
import evaluate as script  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning')
CURVES = (points_lib.Curve(targets.TokenV3, (.4,), (1.,)),)
TIMES = ('latency_mean', 'latency_median', 'latency_p90', 'tokens_per_second')


@pytest.fixture(name='source', scope='module')
def _source(tmp_path_factory):
  directory = tmp_path_factory.mktemp('tfds')
  texts = lambda i, split: {
      'en': f'Page {i} of {split}.' + i % 2 * ' It is a long page.',
      'de': f'Seite {i} von {split}.'}
  with mock.patch.dict(publicdata.RECORDS, wmt14_ende=texts):
    publicdata.prepare('wmt14_ende', directory)
  return sources.Public('wmt14_ende', data_dir=str(directory))


@pytest.fixture(name='setting', scope='module')
def _setting(source, pair_dir):
  """Two buckets; the second example is for the wide one."""
  words = pairs.load(str(pair_dir / 'verifier'), None).vocabulary
  first, second, third = (len(words.encode(x.source))
                          for x in source.read(None))
  assert first == third < second
  return dict(curves=CURVES, verifier=str(pair_dir / 'verifier'), gamma=3,
              drafter=str(pair_dir / 'drafter'), seed=5,
              buckets=((first, 20), (second, 20)))


@pytest.fixture(name='run', scope='module')
def _run(source, setting, tmp_path_factory):
  """Checked; what it would write is not there."""
  where = tmp_path_factory.mktemp('run') / 'out'
  return evaluate.Run(evaluate.Evaluation(str(where), source, **setting))


@pytest.fixture(name='evaluated', scope='module')
def _evaluated(source, setting, tmp_path_factory):
  """What the script printed and wrote."""
  where = tmp_path_factory.mktemp('evaluation') / 'out'
  bindings = {
      'OUTPUT_DIR': where, 'DATASET': source.dataset, 'GAMMA': setting['gamma'],
      'sources.Public.data_dir': source.data_dir, 'SEED': setting['seed'],
      'VERIFIER': setting['verifier'], 'DRAFTER': setting['drafter'],
      'EXAMPLES': None, 'BUCKETS': setting['buckets'],
      'token/points.Curve.temperatures': (1.,),
      'evaluate.Evaluation.curves': '[@token/points.Curve()]'}
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    script.main(['--gin_file=gin/evaluate/public.gin', *(
        f'--gin.{name}={value}' for name, value in bindings.items())])
  gin.clear_config()
  return where, lines(where / evaluate.RESULTS), printed.getvalue()


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_and_tokens_are_those_of_a_sweep(
    evaluated, source, setting, tmp_path):
  where, rows, _ = evaluated
  run = sweep_lib.Run(sweep_lib.Sweep(
      str(tmp_path / 'sweep'), data=source, predicted=False, **setting))
  wanted = run(sweep_run_test.Bar).rows
  assert len(rows) == len(wanted) == 3
  journal = lines(run.directory / sweep_lib.JOURNAL)
  for row, want, key in zip(rows, wanted, run.points):
    assert (row['metrics']['BLEU'], row['examples']) == (
        want.quality, want.examples)
    assert row['setting'] == dataclasses.asdict(run.points[key])
    assert row['signatures'] == {'BLEU': want.signature}
    assert row['metrics']['faults'] == want.faults == 0
    theirs = {name: x for name, x in row['metrics'].items()
              if name not in (*TIMES, 'BLEU')}
    assert theirs == {name: pytest.approx(getattr(want, name))
                      for name in theirs} and len(theirs) > 10
    assert all(row['metrics'][name] > 0 for name in TIMES)
    logged = lines(where / f'{row["task"]}_decoding-{row["step"]:06}.jsonl')
    tokens = [r['tokens'] for r in journal if r.get('key') == key]
    assert [x['prediction'] for x in logged] == [
        run.pair.vocabulary.decode(x).strip() for x in tokens]
    assert [x['aux_emitted'] for x in logged] == [len(x) for x in tokens]


def test_programs_are_as_many_as_announced(evaluated, run):
  _, rows, printed = evaluated
  # Two models alone and one draft length, in two buckets.
  assert run.compilations == 6 and 'at most 6 programs' in printed
  assert {row['programs'] for row in rows} == {6}
  assert {row['compiled_late'] for row in rows} == {0}


def test_the_script_prints_quality_and_cost_of_each_point(evaluated):
  _, rows, printed = evaluated
  for row in rows:
    line, = [x for x in printed.splitlines() if f', {row["point"]}: ' in x]
    assert f'BLEU {row["metrics"]["BLEU"]:.4g}, tokens_per_call' in line
    assert line.endswith(', faults 0')
    (name, signature), = row['signatures'].items()
    assert signature.startswith('nrefs:1|')
    assert f'\n{row["task"]}, {name}: {signature}\n' in printed


def test_a_prediction_stands_beside_what_was_decoded(evaluated, run):
  """Of the one point that a chain drafted; from its texts, read here anew."""
  _, rows, printed = evaluated
  evaluator, = run.evaluators.values()
  dataset, = evaluator.cached_model_datasets.values()
  found, aux = run.engine.functions(run.points[-1])['predict_with_aux_fn'](
      dataset)
  rates = forced.acceptance(
      run.pair, [run.engine.row(i, x) for i, x in dataset.as_numpy_iterator()],
      [row[:n].tolist() for (_, row), n in zip(found, aux['emitted'])],
      targets.TokenV3(.4), warp.Warp(1.))
  *alone, row = rows
  assert row['predicted'] == pytest.approx(
      theory.tokens_per_call(rates, 3), rel=1e-4)
  assert f' predicted {row["predicted"]:.2f} (' in printed
  assert {x['predicted'] for x in alone} == {None}
  assert not any('predicted' in script.said(x)[0] for x in alone)


def test_a_warning_follows_where_they_disagree(evaluated, run):
  row = evaluated[1][-1]
  decoded = row['metrics']['tokens_per_call']
  said = lambda ratio: script.said(dict(row, predicted=ratio * decoded))
  assert len(said(1.04)) == 1 and '(+4.0%)' in said(1.04)[0]
  line, warning = said(.9)
  assert '(-10.0%)' in line and warning.startswith('warning: at wmt14_ende')


def test_nothing_is_predicted_of_texts_with_a_fault(run):
  evaluator, = run.evaluators.values()
  dataset, = evaluator.cached_model_datasets.values()
  found, aux = run.engine.functions(run.points[-1])['predict_with_aux_fn'](
      dataset)
  predicted = lambda **changes: run.engine.predicted(
      run.points[-1], dataset, (found, dict(aux, **changes)))
  assert predicted() > 1 and predicted(fault=[0, 1, 0]) is None


def test_texts_with_a_fault_are_named_with_their_rounds(evaluated, run):
  evaluator, = run.evaluators.values()
  dataset, = evaluator.cached_model_datasets.values()
  found, aux = run.engine.functions(run.points[-1])['predict_with_aux_fn'](
      dataset)
  assert evaluated[1][-1]['faults'] == predict.faults((found, aux)) == {}
  faults = predict.faults((found, dict(aux, fault=[0, 3, 0])))
  assert faults == {found[1][0]: 3}
  _, line = script.said(dict(evaluated[1][-1], predicted=None, faults=faults))
  assert line.endswith(f'the logits of example {found[1][0]} were not finite '
                       'in round 3; its text ends there.')


def test_a_memory_too_small_to_predict_loses_no_point(
    source, setting, tmp_path, monkeypatch):
  def full(*unused):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory.\nmore')
  monkeypatch.setattr(foretold, 'tokens_per_call', full)
  where, rows = tmp_path / 'out', []
  with pytest.raises(ValueError, match='^RESOURCE_EXHAUSTED: Out of memory. .r'
                     'eading.*predicted=False needs no such pass.$'):
    for row in evaluate.Run(evaluate.Evaluation(
        str(where), source, **setting))(lambda points, **unused: points):
      rows.append(row)
  written = lines(where / evaluate.RESULTS)
  assert len(written) == len(rows) + 1 and written[-1]['metrics']


def test_what_is_not_predicted_is_said_before_anything_is_decoded(
    source, setting, tmp_path):
  """Of drafters that are no chain of a model; the run of a chain is silent."""
  token, = CURVES
  curves = (token, dataclasses.replace(token, drafter='tree', name='Tree'),
            points_lib.Curve(baselines.TokenCascade, (.5,), (1.,)))
  said = lambda **changes: evaluate.Run(evaluate.Evaluation(
      str(tmp_path / 'out'), source, **{**setting, **changes})).unforetold
  assert said() is None
  assert said(curves=curves) == (
      'tokens a call not predicted of Tree: no chain of one model drafts '
      'there; set points.Curve.drafter to chain, skip or counts')
  assert said(predicted=False).endswith('predicted is False; set True')


def test_a_baseline_that_judges_no_draft_has_no_rejections():
  figures = dict(rejection_rate=0, tokens_per_call=np.float32(2))
  curves = (points_lib.Curve(baselines.TokenCascade, (.5,), (0.,)), *CURVES)
  told = {point.method: evaluate.told(point, figures)
          for point in points_lib.expand(curves, gamma=3)}
  assert told['TokenCascade'] == dict(tokens_per_call=2)
  assert told['TokenV3'] == dict(rejection_rate=0, tokens_per_call=2)


def test_an_evaluation_is_not_overwritten(evaluated, source, setting):
  with pytest.raises(ValueError, match='holds an evaluation; choose another'):
    evaluate.Run(evaluate.Evaluation(str(evaluated[0]), source, **setting))


def test_outputs_name_their_examples_whatever_the_order(run):
  """Statistics come in the order of the predictions; both say the same."""
  evaluator, = run.evaluators.values()
  dataset, = evaluator.cached_model_datasets.values()
  one = run.engine.functions(run.points[-1])
  found, aux = one['predict_with_aux_fn'](dataset)
  assert one['predict_fn'](dataset) is found
  batched = predict.Engine(run.pair, CURVES, run.engine.buckets, seed=5,
                           batch=2)
  others, counted = batched.functions(run.points[-1])['predict_with_aux_fn'](
      dataset)
  assert 'seconds' in aux and 'seconds' not in counted
  assert [i for i, _ in found] == [0, 1, 2]
  assert [i for i, _ in others] == [0, 2, 1]
  for indices, values in ((found, aux), (others, counted)):
    for (_, row), emitted in zip(indices, values['emitted'], strict=True):
      assert np.count_nonzero(row) == emitted
  assert {i: row.tolist() for i, row in found} == {
      i: row.tolist() for i, row in others}


def test_decoding_is_what_seqio_calls_a_metric_with_statistics(run):
  import seqio
  task = seqio.TaskRegistry.get('wmt14_ende_t5_decoding')
  assert task.predict_with_aux_metric_fns == [predict.decoding]
  assert seqio_tasks.measured(task) is task


@pytest.mark.parametrize('changes,message', [
    (dict(batch=0), 'batch is 0'), (dict(examples=-1), 'examples is -1'),
    (dict(seed=.5), 'seed is 0.5'), (dict(buckets=((1, 9),)), 'bucket'),
    (dict(seed=2**32), 'seed is 4294967296'),
    (dict(curves=CURVES[0]), 'allowed: a list of curves'),
    (dict(buckets=((9, 20),)), 'the widest bucket takes 9'),
    (dict(verifier='nowhere'), 'No checkpoint'),
    (dict(verifier=5), 'verifier=5; allowed: a path'),
    (dict(output_dir='gs://bucket/x'), 'Mount the bucket'),
    (dict(task='debian_ende'), 'seqio_tasks.Registered'),
    (dict(task=seqio_tasks.Registered('none')), "No Task or Mixture 'none'"),
    (dict(task=seqio_tasks.Registered('x', 'no.module')), 'Got the module'),
    (dict(task=sources.Public('wmt14_ende', data_dir='/nowhere')),
     'prepare_public.py')])
def test_bad_input_is_refused(source, setting, tmp_path, changes, message):
  with pytest.raises(ValueError, match=message) as caught:
    evaluate.Run(evaluate.Evaluation(**{
        'output_dir': str(tmp_path / 'out'), 'task': source, **setting,
        **changes}))
  assert '\n' not in str(caught.value) and not (tmp_path / 'out').exists()


def test_a_vocabulary_that_is_not_there_is_one_line(
    setting, tmp_path, monkeypatch):
  """TensorFlow's own errors are neither ValueError nor OSError."""
  def tasks(self, vocabulary):
    import tensorflow as tf
    tf.io.read_file(str(tmp_path / 'pieces.model'))

  monkeypatch.setattr(seqio_tasks.Registered, 'tasks', tasks)
  with pytest.raises(ValueError, match='pieces.model.*build_corpus') as caught:
    evaluate.Run(evaluate.Evaluation(
        str(tmp_path / 'out'), seqio_tasks.Registered('debian_ende'),
        **setting))
  assert '\n' not in str(caught.value)


def test_tasks_that_do_not_fit_are_refused(run):
  import seqio
  words = run.pair.vocabulary
  task = seqio.TaskRegistry.get('wmt14_ende_t5')
  seqio_tasks.check(task, 'validation', words)
  with pytest.raises(ValueError, match="no split 'none'; allowed: train"):
    seqio_tasks.check(task, 'none', words)
  scored = task.replace(metric_fns=[lambda targets, scores: {}])
  with pytest.raises(ValueError, match='metrics of scores'):
    seqio_tasks.check(scored, 'validation', words)
  other = pairs.load().vocabulary
  with pytest.raises(ValueError, match='Token [0-9]+ of the inputs'):
    seqio_tasks.check(task, 'validation', other)


def test_a_decoder_only_task_is_read_as_text(run):
  """Its tokens have no BOS: the models' own tokenizer puts it there."""
  engine = predict.Engine(
      dataclasses.replace(run.pair, verifier=dataclasses.replace(
          run.pair.verifier, lm=None)), CURVES, run.engine.buckets)
  example = dict(inputs=np.array([9]), inputs_pretokenized=b'Seite 1')
  assert engine.row(0, example) == run.pair.vocabulary.encode('Seite 1')
  with pytest.raises(ValueError, match='inputs_pretokenized is needed'):
    engine.row(0, dict(inputs=np.array([9])))
  padded = dict(encoder_input_tokens=np.array([4, 5, 1, 0, 0]))
  assert run.engine.row(0, padded) == [4, 5, 1]


def test_importing_does_not_load_tensorflow():
  code = ('import sys, spec_cascades.evaluation.evaluate\n'
          'from spec_cascades.evaluation import tensorboard\n'
          'tensorboard.check()\n'
          'assert not {"tensorflow", "seqio", "clu", "tensorboard"}'
          ' & set(sys.modules)')
  subprocess.run([sys.executable, '-c', code], check=True)


def test_costs_are_named_as_in_a_sweeps_rows(evaluated):
  names = {field.name for field in dataclasses.fields(results.Row)}
  for row in evaluated[1]:
    assert set(row['metrics']) - names == {'BLEU'}
