"""English and German messages of programs, from their gettext catalogues."""

from collections.abc import Iterator
import pathlib
import re

import polib
from spec_cascades.data import align

ORIGIN = 'gettext'
PACKAGES = tuple(
    'akregator anjuta-common aptitude-common ark audacity-data bluefish-data '
    'brasero-common caja-common calligra-data calligrasheets-data cantor '
    'cervisia claws-mail-i18n coreutils darktable deja-dup dia-common '
    'digikam-data dolphin e2fsprogs-l10n eog epiphany-browser-data '
    'evince-common evolution-common file-roller filezilla-common '
    'fontforge-common gbrainy gcc-12-locales geany-common gedit-common '
    'gimp-data git gnome-builder gnome-calculator gnome-control-center-data '
    'gnome-software-common gnome-system-monitor gnome-terminal-data gnote '
    'gnucash-common gnumeric-common gnupg-l10n gramps grisbi-common '
    'grub-common gthumb-data gutenprint-locales gwenview inkscape juk '
    'k3b-i18n kajongg kalarm kate5-data kbibtex-data kbruch '
    'kde-cli-tools-data kdenlive-data kdesvn kdevelop-l10n kgpg kig kile-l10n '
    'kio kleopatra kmail kmplot kmymoney-common kolourpaint konqueror konsole '
    'konversation-data korganizer kphotoalbum krita-l10n krusader ksirk '
    'ktorrent-data ktouch-data kturtle kwave kwin-data kwordquiz labplot-data '
    'libc-l10n libglib2.0-data libgtk-3-common libreoffice-l10n-de '
    'libsane-common lokalize lyx-common mc-data meld mercurial-common '
    'mkvtoolnix network-manager okular orca parley-data partitionmanager '
    'pidgin-data plasma-desktop-data plasma-workspace-data postgresql-15 '
    'postgresql-client-15 remmina-common rkward-data rocs seahorse '
    'shotwell-common skrooge-common subversion sylpheed-i18n tellico-data '
    'totem-common umbrello-data util-linux-locales vlc-l10n wxmaxima '
    'zenity-common'.split()
)
# Placeholders, markup and layout: what a program fills in, or a terminal shows.
_NOT_PROSE = re.compile(r'%[^ %]|[{}<>\\|$]|\S\n\s*\S')
# A letter that a menu entry is called by: '_File', '&File', '~File'.
_MARK = re.compile(r'(?<!\w)[_&~](?=\w)')
_MARK_IN_WORD = re.compile(r'(?<=\w)[_&~](?=\w)')


def _prose(text: str) -> str:
  """Text without its mnemonic; '' if it is not plain text."""
  if _NOT_PROSE.search(text) or _MARK_IN_WORD.search(text):
    return ''
  return _MARK.sub('', text)


def read_pairs(root: pathlib.Path) -> Iterator[align.Pair]:
  """Translated messages of every German catalogue below a directory.

  Messages with plural forms, placeholders, markup or several lines are left
  out. The group is the catalogue.

  Args:
    root: root of an unpacked package.

  Raises:
    OSError: a catalogue is damaged.
  """
  for path in sorted(root.rglob('de/LC_MESSAGES/*.mo')):
    for entry in polib.mofile(str(path), encoding='utf-8'):
      if not entry.msgid_plural:
        yield from align.align_blocks(
            _prose(entry.msgid),
            _prose(entry.msgstr),
            origin=ORIGIN,
            group=path.stem,
        )
