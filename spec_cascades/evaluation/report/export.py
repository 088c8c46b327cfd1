"""Tables as files: Markdown, LaTeX with booktabs, CSV; the same cells in all.
"""
from __future__ import annotations

import csv
import io
import pathlib
import re
from typing import Sequence

import tabulate

from spec_cascades.data import files
from spec_cascades.evaluation.report import sections as sections_lib
from spec_cascades.evaluation.report import table as table_lib

FOLDER = 'tables'
# What Markdown gives a meaning to, within a line of a table.
SPECIAL = re.compile(r'([\\`*_\[\]<>|~&$#!])')


def write(directory: pathlib.Path, sections: Sequence[sections_lib.Section]
          ) -> pathlib.Path:
  """Three files for each table that has a line; returns their folder.

  Those of tables that only an earlier analysis had are removed; where --output
  is a paper's, the folder has other files, too.
  """
  folder, written = directory / FOLDER, set()
  folder.mkdir(parents=True, exist_ok=True)
  for section in sections:
    if section.table[1]:
      for ending, made in FORMS.items():
        path = folder / f'{section.name}{ending}'
        files.write_atomically(path, made(section.table))
        written.add(path)
  for path in list(folder.iterdir()):
    if ours(path) and path not in written:
      path.unlink(missing_ok=True)
  return folder


def ours(path: pathlib.Path) -> bool:
  """Whether a file has the name of a table of some sweep."""
  return sections_lib.known(path.stem) and path.suffix in FORMS


def markdown(table: table_lib.Table) -> str:
  """A table with pipes."""
  head, body = (_each(x, lambda cell: SPECIAL.sub(r'\\\1', cell))
                for x in ([table[0]], table[1]))
  return _drawn(head[0], body, 'pipe')


def latex(table: table_lib.Table) -> str:
  """A tabular; needs the package booktabs."""
  head, body = _each([table[0]]), _each(table[1])
  drawn = _drawn(head[0], body, 'latex_booktabs')
  # After a line's end, these would be an option of it.
  return re.sub(r'^(\s*)(?=[\[*])', r'\1{}', drawn, flags=re.MULTILINE)


def comma(table: table_lib.Table) -> str:
  """Comma-separated values, quoted where needed."""
  out = io.StringIO()
  csv.writer(out, lineterminator='\n').writerows(
      [*_each([table[0]]), *_each(table[1])])
  return out.getvalue()


FORMS = {'.md': markdown, '.tex': latex, '.csv': comma}


def _each(lines, change=lambda cell: cell) -> list[list[str]]:
  """Every cell changed, on one line."""
  return [[change(' '.join(cell.split())) for cell in line] for line in lines]


def _drawn(head, body, form) -> str:
  aligned = ['left'] + ['right'] * (len(head) - 1)
  return tabulate.tabulate(body, head, form, disable_numparse=True,
                           colalign=aligned) + '\n'
