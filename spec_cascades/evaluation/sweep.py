"""Runs a sweep: every point on every example, interleaved, resumable."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Callable, Sequence

from spec_cascades import check
from spec_cascades import hosts
from spec_cascades.evaluation import asking as asking_lib
from spec_cascades.evaluation import choosing
from spec_cascades.evaluation import dealing
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import details
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import examples as examples_lib
from spec_cascades.evaluation import executors
from spec_cascades.evaluation import forced
from spec_cascades.evaluation import foretold
from spec_cascades.evaluation import journal as journal_lib
from spec_cascades.evaluation import measured
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import programs as programs_lib
from spec_cascades.evaluation import publishing
from spec_cascades.evaluation import qualities
from spec_cascades.evaluation import results
from spec_cascades.evaluation import sources
from spec_cascades.evaluation import summary
from spec_cascades.evaluation import tensorboard
from spec_cascades.evaluation import text
from spec_cascades.evaluation import work
from spec_cascades.evaluation import worker

JOURNAL, RESULTS = 'examples.jsonl', 'results.jsonl'
SCORES = 'scores.jsonl'


@dataclasses.dataclass(frozen=True)
class Sweep:
  """What to decode, how, and where results go.

  Attributes:
    output_dir: For the journal, the results and the report.
    curves: Rules and thresholds; both models alone are always run.
    verifier: Checkpoint of the large model.
    drafter: Checkpoint of the small model; None: curves need none.
    dtype: Of both models' weights, activations and caches, in `pairs.DTYPES`.
    asking: How a source becomes a prompt, for decoder-only models.
    data: Path of a tab-separated file, or one of `sources`.
    examples: Take the first so many; None takes all.
    quality: What texts are measured by, a name in `qualities.QUALITIES`.
    gamma: Tokens drafted a round.
    top_p: Of every point; 1 is off.
    top_k: Of every point; 0 is off.
    batch: Rows decoded together where quality is measured apart.
    timed: Time the first so many texts, and measure quality on all apart from
      it; None times all, and measures quality on that.
    timed_batch: Rows of one bucket that are timed together, in equal shares.
    trials: How often each of these is timed.
    validation: Share of the texts to choose settings on; the others report.
    seed: Of samples, of the order of points, of the resamples and of the texts
      to choose on.
    buckets: (input width, output cap) pairs; each costs its own programs.
    tensorboard: Write each finished point for TensorBoard, too, through clu.
    split: Whether to time the parts of a decode, too: more programs to compile.
    inspected: How many texts to show with the origin of every token, too.
    predicted: Whether to predict tokens a verifier call, too, by one pass over
      the texts of each point that a chain drafted; None: unless workers of Ray
      decode, or several processes on a mesh, where it can't be done.
    mesh: Devices of each process, or of all, that decode together. Part of
      the configuration if it is not one device.
    executor: Who decodes: this process, or workers on other machines. It is no
      part of the configuration: one may go on where another was stopped.
  """
  output_dir: str
  curves: Sequence[points_lib.Curve]
  verifier: str = str(pairs.SHIPPED / 'verifier')
  drafter: str | None = str(pairs.SHIPPED / 'drafter')
  dtype: str = 'float32'
  asking: asking_lib.Asking = asking_lib.Asking()
  data: Any = str(examples_lib.SOFTWARE_DOCS)
  examples: int | None = None
  quality: str = 'BLEU'
  gamma: int = 5
  top_p: float = 1.0
  top_k: int = 0
  batch: int = 1
  timed: int | None = None
  timed_batch: int = 1
  trials: int = 1
  validation: float = choosing.VALIDATION
  seed: int = 0
  buckets: Sequence[tuple[int, int]] = ((48, 72),)
  tensorboard: bool = False
  split: bool = False
  inspected: int = 0
  predicted: bool | None = None
  mesh: meshes.Mesh = meshes.Mesh()
  executor: executors.Executor = executors.InProcess()

  def __post_init__(self):
    check.interval('seed', self.seed, 0, 2**32 - 1, whole=True)
    points_lib.check_curves(self.curves)
    check_paths(self)
    if not isinstance(self.data, str) and (
        isinstance(self.data, type) or not hasattr(self.data, 'read')):
      raise ValueError(f'Got data={self.data!r}; allowed: the path of a table, '
                       '@sources.Corpus() or @sources.Public().')
    for name, allowed, kind in (('asking', 'asking', asking_lib.Asking),
                                ('mesh', 'meshes', meshes.Mesh)):
      if not isinstance(value := getattr(self, name), kind):
        raise ValueError(f'Got {name}={value!r}; allowed: '
                         f'@{allowed}.{kind.__name__}().')
    if not isinstance(self.top_p, (int, float)):
      raise ValueError(f'Got top_p={self.top_p!r}; allowed: a number up to 1.')
    choosing.check_share(self.validation)
    for name in ('examples', 'timed', 'timed_batch', 'batch', 'trials'):
      value = getattr(self, name)
      if not ((type(value) is int and value > 0)
              or (value is None and name in ('examples', 'timed'))):
        raise ValueError(f'Got {name}={value!r}; allowed: a whole number from '
                         '1, or for examples and timed None, which is all.')
    for name in ('split', 'predicted', 'tensorboard'):
      if (type(value := getattr(self, name)) is not bool
          and (value, name) != (None, 'predicted')):
        raise ValueError(f'Got {name}={value!r}; allowed: True or False.')
    if type(self.inspected) is not int or self.inspected < 0:
      raise ValueError(f'Got inspected={self.inspected!r}; allowed: a whole '
                       'number of texts from 0.')
    if self.mesh.size > 1 and (self.split or self.inspected or (
        self.predicted and hosts.count() > 1)):
      raise ValueError(f'Got mesh={self.mesh} and {self.asked}; allowed on '
                       'several devices: predicted=True in one process.')
    if not isinstance(self.top_k, int):
      raise ValueError(f'Got top_k={self.top_k!r}; allowed: whole numbers.')
    if isinstance(self.executor, type) or not hasattr(self.executor, 'check'):
      raise ValueError(f'Got executor={self.executor!r}; allowed: '
                       '@executors.InProcess() or @executors.Ray().')
    check_buckets(self.buckets)

  @property
  def asked(self) -> str:
    """The details that are wanted, for messages."""
    return ', '.join(f'{name}={getattr(self, name)}'
                     for name in ('split', 'inspected', 'predicted')
                     if getattr(self, name))

  @property
  def predicts(self) -> bool:
    """Whether tokens a verifier call are predicted."""
    if self.predicted is None:
      return self.executor.joins and 1 in (self.mesh.size, hosts.count())
    return self.predicted


class Run:
  """A sweep whose every input has been checked; nothing is compiled yet."""
  CLAIMS = 'claims'

  def __init__(self, sweep: Sweep, loading: Callable[..., Any] | None = None):
    """Reads models and data.

    Args:
      sweep: What to run.
      loading: `tqdm` or something called like it, for the bytes of the models.

    Raises:
      ValueError: Anything cannot run, or not resume.
    """
    self.sweep = sweep
    sweep.executor.check(sweep)      # says who may use this machine's device
    self.directory = pathlib.Path(sweep.output_dir).expanduser()
    if self.directory.exists() and not self.directory.is_dir():
      raise ValueError(f'{self.directory} is no directory; choose another '
                       'OUTPUT_DIR.')
    alone = (points_lib.VERIFIER, points_lib.DRAFTER)[:1 + bool(sweep.drafter)]
    if sweep.tensorboard:
      tensorboard.load()
    self.quality = qualities.make(sweep.quality)
    points = points_lib.expand(sweep.curves, gamma=sweep.gamma, alone=alone,
                               top_p=sweep.top_p, top_k=sweep.top_k)
    self.source = (sources.Table(sweep.data) if isinstance(sweep.data, str)
                   else sweep.data)
    hosts.alike('the texts to take', repr((
        type(self.source).__name__, vars(self.source), sweep.examples)))
    self.examples = self.source.read(sweep.examples)
    count = len(self.examples)
    self.plan = work.Plan(count, min(sweep.timed or count, count), sweep.trials,
                          sweep.batch, sweep.timed_batch)
    # Refuses now what can't be measured here, rather than after the decoding.
    self.quality.parts([''], [self.examples[0].references])
    self.pair = drafting.supplied(
        pairs.load(sweep.verifier, sweep.drafter, dtype=sweep.dtype,
                   mesh=sweep.executor.here(sweep.mesh), progress=loading),
        points_lib.drafts(points, sweep.curves))
    self.buckets = [programs_lib.Bucket(*pair) for pair in sweep.buckets]
    words, texts = self.pair.vocabulary, self.examples
    self.eos = sweep.asking.ends(words)
    self.rows = hosts.parted(count, lambda i: examples_lib.encode(
        words, sweep.asking(words, texts[i].source), self.pair.max_input_length,
        what=f'Example {texts[i].id}', cut=self.source.cut))
    one_text = self.pair.prompt is text.prefix_prompt
    self.starts = [len(row) if one_text else 1 for row in self.rows]
    for example, row in zip(texts, self.rows):
      programs_lib.check_room(example.id, len(row), self.buckets, self.pair)
    self.inputs = self._inputs()
    self.points = {results.content_key(
        dict(self.inputs, point=dataclasses.asdict(p))): p for p in points}
    self.configuration = dict(
        self.inputs, **sweep.executor.environment(sweep.mesh),
        points=[dataclasses.asdict(p) for p in points])
    journal_lib.check(self.directory / JOURNAL, self.configuration)
    journal_lib.check_rows(self.directory / RESULTS, self.configuration)
    measured.check(self.directory / SCORES, self.configuration)
    details.check(self)

  def _inputs(self) -> dict[str, Any]:
    """What every point's content key covers besides the point itself."""
    own = results.rules_digest(curve.rule for curve in self.sweep.curves)
    return dict(
        **({'rules': own} if own else {}),
        **self.sweep.executor.inputs(self.sweep.mesh),
        schema=results.SCHEMA, code=results.code_digest(),
        data=examples_lib.digest(self.examples),
        verifier=self.pair.verifier.sha256,
        drafter=self.pair.drafter and self.pair.drafter.sha256,
        parts={name: x.sha256 for name, x in self.pair.parts.items()},
        dtype=self.sweep.dtype, cut=self.source.cut,
        asking=dataclasses.asdict(self.sweep.asking), quality=self.quality.name,
        vocabulary=self.pair.vocabulary_sha256, seed=self.sweep.seed,
        **dataclasses.asdict(self.plan),
        buckets=[list(b) for b in self.sweep.buckets])

  def __call__(self, progress: Callable[..., Any]) -> summary.Summary:
    """Decodes what is missing; a row is written when its point is done.

    Args:
      progress: `tqdm` or something called like it.

    Raises:
      ValueError: Not one point could be decoded.
    """
    dealing.agree(self.configuration)
    journal = journal_lib.Journal(self.directory / JOURNAL, self.configuration)
    try:
      if not any(note['kind'] == 'started' for note in journal.notes):
        journal.note('started')
      programs = programs_lib.Programs(self.pair, self.sweep.curves,
                                       eos=self.eos)
      figures = summary.Figures(self.points, self.examples, self.read,
                                self.sweep.seed, self.quality, self.plan)
      failed, spent = {}, {}
      if self.missing(journal):
        publish = publishing.Publisher(self, journal, programs, figures,
                                       self.directory / RESULTS)
        at_work = worker.Worker(self, journal, publish, progress)
        at_work()
        failed, spent = at_work.failed, at_work.spent
      else:
        dealing.skip()
      with journal.locked():           # as `publishing` does, and why
        out = summary.summarise(
            figures, journal.records, self.common(journal),
            self.costs(journal, programs), summary.compilations(journal.notes),
            [f'{self.points[key].label}: {error}'
             for key, error in failed.items()], self.sweep.validation)
        if out.rows:
          results.write_rows(self.directory / RESULTS, out.rows)
          measured.write(self.directory / SCORES, out.measured,
                         self.configuration)
      if out.rows:
        out = details.added(self, journal, programs, figures, out, progress)
      if self.sweep.tensorboard:       # also of a sweep that was run without
        with journal.locked():
          tensorboard.write(self.directory, self.points, out.rows)
    finally:
      journal.close()
    if not out.rows:
      raise ValueError(f'No point could be decoded. {out.failures[0]}')
    return dataclasses.replace(out, spent=spent and {**spent, **out.spent})

  def help_out(self) -> int:
    """Decodes for the first process, which calls the sweep; how many units."""
    dealing.agree(self.configuration)
    return dealing.help_out(self.job)

  def job(self) -> decoding.Job:
    """What an executor needs to decode."""
    return decoding.Job(
        self.pair, tuple(self.sweep.curves), self.points, self.rows,
        self.starts, self.buckets, self.plan, self.sweep.seed, self.eos,
        self.sweep.mesh)

  def read(self, tokens: Sequence[int]) -> str:
    """The answer in what a model has written."""
    return self.source.clean(
        self.sweep.asking.answer(self.pair.vocabulary, tokens))

  def finished(self) -> summary.Records:
    """All records; ValueError if the sweep is not finished."""
    if not (self.directory / JOURNAL).exists():
      raise ValueError(f'No {JOURNAL} in {self.directory}; its texts are '
                       'needed. Run the sweep there.')
    journal = journal_lib.Journal(self.directory / JOURNAL, self.configuration)
    try:
      if missing := self.missing(journal):
        raise ValueError(f'{missing} decodes of the sweep in '
                         f'{self.directory} are missing; finish it first.')
      return journal.records
    finally:
      journal.close()

  def acceptance(self, progress: Callable[..., Any],
                 measure: Callable[..., Any] = forced.acceptance
                 ) -> dict[str, Any]:
    """By key of every point that a chain drafted, what `measure` finds.

    Args:
      progress: As `tqdm.tqdm`.
      measure: `forced.acceptance` or `by_rank`, or what is called like them.

    Raises:
      ValueError: The sweep is not finished.
    """
    records = self.finished()
    texts = {key: [records[key, i, 0].tokens
                   for i in range(len(self.examples))] for key in self.points}
    programs = programs_lib.Programs(self.pair, self.sweep.curves, eos=self.eos)
    drafted = [key for key, point in self.points.items()
               if foretold.fits(point, programs)]
    return {key: measure(
        self.pair, self.rows, texts[key], *programs.chosen(self.points[key]))
            for key in progress(drafted, desc='reading texts', unit='point')}

  def missing(self, journal: journal_lib.Journal) -> int:
    """How many decodes are not in a journal yet."""
    return sum(decode not in journal.records for key in self.points
               for decode in self.plan.decodes(key))

  def most_programs(self) -> int:
    """How many programs all of it takes; fewer where some is done."""
    return programs_lib.Programs(self.pair, self.sweep.curves).most(
        self.points.values(), [programs_lib.bucket_of(len(row), self.buckets)
                               for row in self.rows], self.plan)

  def common(self, journal) -> dict[str, Any]:
    """The columns that all rows share."""
    started = next(n['at'] for n in journal.notes if n['kind'] == 'started')
    finished = [n['at'] for n in journal.notes if n['kind'] == 'decoded']
    return dict(
        sweep=results.content_key(self.configuration), seed=self.sweep.seed,
        verifier=self.pair.verifier.name,
        drafter=self.pair.drafter.name if self.pair.drafter else '',
        dtype=self.sweep.dtype,
        batch=self.plan.batch, data=self.source.name,
        **{name: self.configuration[name]
           for name in ('device', 'machine', 'versions')},
        started=started, finished=finished[-1] if finished else '')

  def costs(self, journal, programs) -> dict[str, dict[str, Any]]:
    """Per point, the columns about programs and compilation."""
    return {key: _cost(journal, str(programs.name(point)))
            for key, point in self.points.items()}


def _cost(journal, program: str) -> dict[str, Any]:
  """Programs of a point, one a bucket and batch, and seconds to compile."""
  notes = [n for n in journal.notes
           if n['kind'] == 'compiled' and n['program'] == program]
  last = {(*n['bucket'], n['rows']): n for n in notes}
  return dict(programs=sum(n['programs'] for n in last.values()),
              compile_seconds=sum(n['seconds'] for n in last.values()))


def check_paths(chosen: Any) -> None:
  """Raises ValueError for an output or a checkpoint that is no local path."""
  for name in ('output_dir', 'verifier', 'drafter'):
    path = getattr(chosen, name)
    if not isinstance(path, str) and (path, name) != (None, 'drafter'):
      raise ValueError(f'Got {name}={path!r}; allowed: a path.')
    if path and '://' in path:
      raise ValueError(f'Got {name}={path}; allowed: a path. Mount the '
                       'bucket (gcsfuse, say), and give where.')


def check_buckets(buckets: Sequence[tuple[int, int]]) -> None:
  """Raises ValueError for what can't be (input width, output cap) pairs."""
  is_list = isinstance(buckets, (tuple, list)) and buckets
  for bucket in buckets if is_list else [buckets]:
    is_pair = (is_list and isinstance(bucket, (tuple, list))
               and len(bucket) == 2 and all(type(x) is int for x in bucket))
    if not is_pair or min(bucket) < 2:
      raise ValueError(f'Got the bucket {bucket!r}; allowed: one or more pairs '
                       'of an input width and an output cap, at least 2 each, '
                       'such as ((48, 72),).')
