"""seqio Tasks on the public data sets, and their texts for any tokenizer.

  public.register('gsm8k', vocabulary, style='few_shot')  # 'gsm8k_few_shot'

registers a Task; its metrics are in `evaluation.public_examples`, which reads
texts for sweeps, too. `public_datasets` is the table of data sets. Nothing is
downloaded but by `prepare`: a data set that is not there is refused with the
command that fetches it. Importing this module loads TensorFlow.
"""
from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pathlib
from typing import Any, Callable, Iterator, Mapping, Sequence

import requests
import seqio
from spec_cascades.data import public_datasets
from spec_cascades.data import shots as shots_lib
from spec_cascades.data import templates
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import download_manager
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.core.download import util as download_util

Path = str | os.PathLike | None
# What TFDS raises where a download fails, or is not what was published.
FAILED = (
    download_util.DownloadError, download_manager.NonMatchingChecksumError,
    extractor.ExtractError, extractor.UnsafeArchiveError,
    requests.RequestException)


@dataclasses.dataclass(frozen=True)
class Text:
  """A prompt with the answers that count as right."""
  id: str
  prompt: str
  references: tuple[str, ...]


def register(
    name: str,
    vocabulary: seqio.Vocabulary,
    *,
    style: str,
    shots: int | None = None,
    seed: int = 0,
    tfds_data_dir: Path = None,
    metric_fns: Sequence[Callable] = (),
    task_name: str | None = None,
) -> seqio.Task:
  """Registers a Task.

  Its examples have the features `inputs`, `targets`, `references` and `id`.
  Prompts of style 't5' are trimmed to their length and end with EOS, as T5's
  do. Those of 'few_shot' end where the answer begins, so they are never
  trimmed: one that is too long ends reading with an error. BOS is the model's.

  Args:
    name: Of the data set, see `public_datasets.DATASETS`.
    vocabulary: Of inputs and targets.
    style: 't5' or 'few_shot'.
    shots: Solved records in a prompt; None takes the data set's number.
    seed: Of the draw of solved records.
    tfds_data_dir: Where TFDS has the data set; the default is that of TFDS.
    metric_fns: Metrics of seqio; targets are tuples of references.
    task_name: Name of the Task; the default joins `name` and `style`.

  Raises:
    ValueError: A name is unknown, a number too small, or the data set missing.
  """
  source, prompts, template = _pipeline(name, style, shots, seed, tfds_data_dir)
  require(name, tfds_data_dir=tfds_data_dir)
  return seqio.TaskRegistry.add(
      task_name or f'{name}_{style}',
      source=source,
      preprocessors=[
          prompts,
          seqio.preprocessors.tokenize,
          *([] if template.eos else [_refuse_long]),
          seqio.preprocessors.append_eos_after_trim,
      ],
      output_features={
          'inputs': seqio.Feature(vocabulary, add_eos=template.eos),
          'targets': seqio.Feature(vocabulary, add_eos=True),
      },
      postprocess_fn=functools.partial(_answers, template),
      metric_fns=list(metric_fns),
  )


class Texts:
  """The prompts and references of a Task, untokenised, in order of records.

  Records without an answer that counts as right are left out.
  """

  def __init__(self, name: str, *, style: str, split: str | None = None,
               shots: int | None = None, seed: int = 0,
               tfds_data_dir: Path = None):
    """Reads no record but the solved ones.

    Args:
      name: As in `register`, and so are the others.
      style: 't5' or 'few_shot'.
      split: The default is the one whose scores are published.
      shots: Solved records in a prompt; None takes the data set's number.
      seed: Of the draw of solved records.
      tfds_data_dir: Where TFDS has the data set.

    Raises:
      ValueError: As in `register`; or there is no such split.
    """
    source, self._prompts, _ = _pipeline(
        name, style, shots, seed, tfds_data_dir)
    self._split = split or public_datasets.find(name).evaluated
    require(name, split=self._split, tfds_data_dir=tfds_data_dir)
    self._tfds = source.tfds_dataset
    found = self._tfds.builder.info
    self.records = found.splits[self._split].num_examples
    self.identity = [found.full_name, self._split, self.records,
                     found.splits[self._split].num_bytes]

  def between(self, start: int, stop: int) -> Iterator[Text]:
    """Those of records start to stop - 1.

    Files before them are not opened; in a file TFDS skips what is before them.
    """
    if start >= stop:                   # TFDS has no word for no records
      return iter(())
    files_in_turn = dataclasses.replace(
        self._tfds.read_config, interleave_cycle_length=1)
    records = self._tfds.builder.as_dataset(
        split=tfds.core.ReadInstruction(self._split, start, stop, unit='abs'),
        read_config=files_in_turn)
    return (Text(x['id'].decode(), x['inputs'].decode(),
                 tuple(y.decode() for y in x['references']))
            for x in self._prompts(records).as_numpy_iterator())

  def __iter__(self) -> Iterator[Text]:
    return self.between(0, self.records)


def require(name: str, *, split: str | None = None,
            tfds_data_dir: Path = None) -> None:
  """Says in one line if a split can't be read, and what makes it readable.

  Raises:
    ValueError: There is no such split, or TFDS has not prepared the data set.
  """
  dataset = public_datasets.find(name)
  split = split or dataset.evaluated
  if split not in dataset.splits:
    raise ValueError(f'{name} has no split {split!r} with answers; allowed: '
                     f'{", ".join(dataset.splits)}.')
  # A data directory that T5X was given goes first, as in seqio.
  given = _source(dataset, tfds_data_dir).tfds_dataset.data_dir
  where = pathlib.Path(given or tfds.core.constants.DATA_DIR).expanduser()
  try:
    builder = tfds.builder(dataset.tfds_name, data_dir=given)
    found = builder.is_prepared() and {split, dataset.solved} <= set(
        builder.info.splits)
  except tfds.core.DatasetNotFoundError:
    found = False
  if not found:
    raise ValueError(
        f'No TFDS data set {dataset.tfds_name} with splits {split} and '
        f'{dataset.solved} in {where}; prepare it: python scripts/'
        f'prepare_public.py {name} --data_dir={where}')


def prepare(name: str, *, tfds_data_dir: Path = None) -> tfds.core.DatasetInfo:
  """Downloads a data set and writes it as TFDS does, unless it is there.

  Raises:
    ValueError: The name is unknown, files have to be fetched by hand, or a
      download failed.
  """
  dataset = public_datasets.find(name)
  if dataset.module:
    importlib.import_module(dataset.module)
  builder = tfds.builder(dataset.tfds_name, data_dir=tfds_data_dir)
  try:
    builder.download_and_prepare()
  except AssertionError as error:  # From TFDS, with what has to go where.
    raise ValueError(f'{name}: {" ".join(str(error).split())}') from error
  except FAILED as error:
    raise ValueError(
        f'{name} could not be downloaded: {type(error).__name__}: '
        f'{" ".join(str(error).split())} The same command tries again, with '
        'what has been fetched.') from error
  return builder.info


def _source(dataset: public_datasets.Dataset,
            tfds_data_dir: Path) -> seqio.TfdsDataSource:
  place = tfds_data_dir and str(pathlib.Path(tfds_data_dir).expanduser())
  return seqio.TfdsDataSource(dataset.tfds_name, tfds_data_dir=place,
                              splits=dataset.splits, read_only=True)


def _pipeline(name, style, shots, seed, tfds_data_dir):
  """Source, preprocessor and template of a Task, all arguments checked."""
  dataset = public_datasets.find(name)
  template = dataset.template(style)
  shots = template.shots if shots is None else shots
  if shots < 0 or seed < 0:
    raise ValueError(f'Got {shots} shots and seed {seed}; both are at least 0.')
  if shots and template.eos:
    raise ValueError(f'Got {shots} shots for style {style!r}, which is '
                     "zero-shot; use style 'few_shot'.")
  source = _source(dataset, tfds_data_dir)
  solved = functools.cache(functools.partial(
      _solved, dataset, template, source, shots, seed))

  def prompts(examples: tf.data.Dataset) -> tf.data.Dataset:
    def ask(fields):
      return {'inputs': templates.prompt(template, fields, shots, drawn),
              'targets': templates.render(template.answer, fields),
              'references': fields['references'], 'id': fields['id']}
    drawn = solved()
    fields = _read(dataset, examples)
    return fields.map(ask, num_parallel_calls=tf.data.AUTOTUNE)

  return source, prompts, template


def _solved(dataset, template, source, shots,
            seed) -> list[tuple[bytes, bytes]]:
  """One more than asked for, so that a record needn't show its own answer."""
  if not shots:
    return []
  examples = source.get_dataset(dataset.solved, shuffle=False)
  if dataset.pool:
    examples = examples.take(dataset.pool)
  return shots_lib.draw(_read(dataset, examples), template, shots + 1, seed)


def _read(dataset: public_datasets.Dataset,
          examples: tf.data.Dataset) -> tf.data.Dataset:
  fields = examples.map(dataset.read, num_parallel_calls=tf.data.AUTOTUNE)
  return fields.filter(lambda x: tf.size(x['references']) > 0)


def _refuse_long(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None = None) -> tf.data.Dataset:
  """Ends reading at a prompt that would have to be cut."""
  limit = (sequence_length or {}).get('inputs')
  if limit is None:
    return dataset

  def check(x):
    fits = tf.Assert(tf.size(x['inputs']) <= limit, [
        f'A prompt has more than {limit} tokens; give fewer shots, or more '
        "room for 'inputs'. Tokens and id:", tf.size(x['inputs']), x['id']])
    with tf.control_dependencies([fits]):
      return x | {'inputs': tf.identity(x['inputs'])}

  return dataset.map(check, num_parallel_calls=tf.data.AUTOTUNE)


def _answers(template: templates.Template, text: str, *,
             example: Mapping[str, Any] | None = None, is_target: bool = False,
             **unused) -> str | tuple[str, ...]:
  """Postprocessor: references for a target, else the answer in a text."""
  del unused
  if not is_target:
    return template.clean(text)
  return tuple(tf.compat.as_str(x) for x in example['references'])
