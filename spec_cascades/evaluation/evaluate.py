"""Evaluates points on seqio Tasks: `seqio.Evaluator` drives, we decode.

Points come one after the other, as training loops evaluate: what they are
compared by is quality and counts. For latencies that can be compared take
`sweep`, which lets points take turns.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Callable, Iterator, Mapping, Sequence

from spec_cascades import check
from spec_cascades.data import files
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import host_tensorflow
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import predict
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import seqio_tasks
from spec_cascades.evaluation import sweep
from spec_cascades.evaluation import timing

RESULTS = 'evaluation.jsonl'
READ = ('make it (scripts/build_corpus.py, scripts/prepare_public.py), or '
        'change what it says is wrong.')


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What to evaluate, and on what.

  Attributes:
    output_dir: For the results, and for what loggers write.
    task: `seqio_tasks.Registered`, `sources.Public`, or one like them.
    curves: Rules and thresholds; both models alone are always run.
    verifier: Checkpoint of the large model.
    drafter: Checkpoint of the small model; None: curves need none.
    dtype: Of both models' weights, activations and caches, in `pairs.DTYPES`.
    examples: Take the first so many; None takes all.
    end: What ends an answer beside EOS, as in `asking.Asking`.
    gamma: Tokens drafted a round.
    top_p: Of every point; 1 is off.
    top_k: Of every point; 0 is off.
    batch: Rows decoded together; latency is measured at 1 only.
    seed: Of the samples.
    buckets: (input width, output cap) pairs; each costs its own programs.
    loggers: Classes such as `seqio.JSONLogger`; the step is the point's number.
    predicted: Whether to predict tokens a verifier call, too, by one pass over
      the texts of each point that a chain drafted.
  """
  output_dir: str
  task: Any
  curves: Sequence[points_lib.Curve] = ()
  verifier: str = str(pairs.SHIPPED / 'verifier')
  drafter: str | None = str(pairs.SHIPPED / 'drafter')
  dtype: str = 'float32'
  examples: int | None = None
  end: str | None = None
  gamma: int = 5
  top_p: float = 1.0
  top_k: int = 0
  batch: int = 1
  seed: int = 0
  buckets: Sequence[tuple[int, int]] = ((48, 72),)
  loggers: Sequence[Any] = ()
  predicted: bool = True

  def __post_init__(self):
    points_lib.check_curves(self.curves)
    sweep.check_paths(self)
    if isinstance(self.task, str) or not hasattr(self.task, 'tasks'):
      raise ValueError(f'Got task={self.task!r}; allowed: '
                       '@seqio_tasks.Registered() or @sources.Public().')
    count = lambda name, value: check.interval(
        name, value, 1, 2**31 - 1, whole=True, hint='It is a whole number.')
    count('batch', self.batch)
    check.interval('seed', self.seed, 0, 2**32 - 1, whole=True)
    if self.examples is not None:
      count('examples', self.examples)
    if type(self.predicted) is not bool:
      raise ValueError(f'Got predicted={self.predicted!r}; allowed: True or '
                       'False.')
    sweep.check_buckets(self.buckets)


class Run:
  """An evaluation whose every input has been checked; nothing is compiled."""

  def __init__(self, chosen: Evaluation,
               loading: Callable[..., Any] | None = None):
    """Reads models and data.

    Args:
      chosen: What to evaluate.
      loading: `tqdm` or something called like it, for the bytes of the models.

    Raises:
      ValueError: Anything cannot run.
    """
    self.chosen = chosen
    self.directory = pathlib.Path(chosen.output_dir).expanduser()
    if (self.directory / RESULTS).exists():
      raise ValueError(f'{self.directory} holds an evaluation; choose another '
                       'OUTPUT_DIR or move it away.')
    alone = (points_lib.VERIFIER, points_lib.DRAFTER)
    self.points = points_lib.expand(
        chosen.curves, gamma=chosen.gamma, top_p=chosen.top_p,
        top_k=chosen.top_k, alone=alone[:1 + bool(chosen.drafter)])
    self.pair = drafting.supplied(
        pairs.load(chosen.verifier, chosen.drafter, dtype=chosen.dtype,
                   progress=loading),
        points_lib.drafts(self.points, chosen.curves))
    self.engine = predict.Engine(
        self.pair, chosen.curves,
        [programs_lib.Bucket(*sizes) for sizes in chosen.buckets],
        seed=chosen.seed, batch=chosen.batch, end=chosen.end)
    with host_tensorflow.readable('What the Task needs', READ):
      tasks, self.split = chosen.task.tasks(self.pair.vocabulary)
      for task in tasks:
        seqio_tasks.check(task, self.split, self.pair.vocabulary)
      self.evaluators = {task.name: self._evaluator(task) for task in tasks}
    self.compilations = sum(
        len(self.engine.compilations(self.points, _model_data(evaluator)))
        for evaluator in self.evaluators.values())

  def __call__(self, progress: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Decodes point by point; yields the rows as they are written.

    Args:
      progress: `tqdm` or something called like it.
    """
    self.directory.mkdir(parents=True, exist_ok=True)
    done = []
    for name, evaluator in self.evaluators.items():
      dataset = _model_data(evaluator)
      compiled = self.engine.compile(self.points, dataset)
      common = self._common(evaluator)
      for step, point in enumerate(progress(self.points, unit='point',
                                            desc=name)):
        functions = self.engine.functions(point)
        future, _ = evaluator.evaluate(
            compute_metrics=True, step=step, **functions)
        metrics, = future.result().values()
        outputs = functions['predict_with_aux_fn'](dataset)   # as it was kept
        done.append(dict(
            task=name, step=step, point=point.label,
            metrics=told(point, metrics), predicted=None,
            faults=predict.faults(outputs), setting=dataclasses.asdict(point),
            programs=compiled.programs, compile_seconds=compiled.seconds,
            compiled_late=self.engine.late, **common))
        self._write(done)
        if self.chosen.predicted:
          with foretold.reading('evaluate.Evaluation.predicted=False needs no '
                                'such pass'):
            done[-1]['predicted'] = self.engine.predicted(
                point, dataset, outputs)
          self._write(done)
        yield done[-1]

  @property
  def unforetold(self) -> str | None:
    """A line on points whose tokens a call are not predicted, and why."""
    drafted = [point for point in self.points if point.judged]
    if not self.chosen.predicted and drafted:
      return ('tokens a call not predicted: evaluate.Evaluation.predicted is '
              'False; set True')
    names = dict.fromkeys(point.method for point in drafted
                          if not self.engine.foreseen(point))
    return (f'tokens a call not predicted of {", ".join(names)}: no chain of '
            'one model drafts there; set points.Curve.drafter to chain, skip '
            'or counts') if names else None

  def _write(self, rows: list[dict[str, Any]]) -> None:
    files.write_atomically(self.directory / RESULTS, ''.join(
        json.dumps(row, ensure_ascii=False) + '\n' for row in rows))

  def _evaluator(self, task: Any) -> Any:
    import seqio  # pylint: disable=g-import-not-at-top
    return seqio.Evaluator(
        seqio_tasks.measured(task).name, seqio_tasks.unconverted(),
        eval_split=self.split, sequence_length=self.chosen.task.lengths,
        num_examples=self.chosen.examples, logger_cls=self.chosen.loggers,
        log_dir=str(self.directory), async_compute_metrics=False)

  def _common(self, evaluator) -> dict[str, Any]:
    """What all rows of a Task share."""
    drafter, (task,) = self.pair.drafter, evaluator.eval_tasks
    return dict(
        signatures=seqio_tasks.signatures(
            task, evaluator.cached_task_datasets[task.name]),
        split=self.split, examples=int(_model_data(evaluator).cardinality()),
        verifier=self.pair.verifier.name, drafter=drafter and drafter.name,
        dtype=self.chosen.dtype, seed=self.chosen.seed, batch=self.chosen.batch,
        buckets=[list(sizes) for sizes in self.chosen.buckets],
        device=timing.device(), machine=timing.machine(),
        versions=environment.versions())


def told(point: points_lib.Point, metrics: Mapping[str, Any]
         ) -> dict[str, float]:
  """The figures of a point; without rejections where no draft is judged."""
  return {name: float(x) for name, x in metrics.items()
          if point.judged or name != 'rejection_rate'}


def _model_data(evaluator: Any) -> Any:
  """The enumerated data set that the functions are called with."""
  dataset, = evaluator.cached_model_datasets.values()
  return dataset
