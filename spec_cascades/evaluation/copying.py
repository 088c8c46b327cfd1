"""Prompts for prompt lookup: some whose answer copies, some with new words.

Written for this project. A model that only continues text copies, too, where
the copy has begun.
"""
from __future__ import annotations

PASSAGES = (
    'The harbour master keeps three ledgers. The green ledger lists every boat '
    'that enters before noon, the brown ledger lists repairs to the eastern '
    'pier, and the third, which nobody else may open, lists debts.',
    'Before you replace the filter, switch off the pump and close both valves. '
    'Unscrew the four bolts of the lid, lift it straight up, and take out the '
    'cartridge. Rinse the housing twice before the new cartridge goes in.',
    'Marta Lindqvist, born in Uppsala, measured glaciers for nineteen summers. '
    'Her notebooks, which fill two shelves, record depth, colour and '
    'temperature of the ice at forty-one marked stones.')
PROGRAM = '''def merge(left, right):
    result = []
    while left and right:
        if left[0] <= right[0]:
            result.append(left.pop(0))
        else:
            result.append(right.pop(0))
    return result + left + right
'''
# The answer repeats the prompt.
COPIED = (
    *(f'Text: {passage}\n\nThe same text again: {" ".join(passage.split()[:4])}'
      for passage in PASSAGES),
    f'# First version\n{PROGRAM}\n# The same function, unchanged\n'
    'def merge(left, right):\n')
# The answer goes on with other words.
FRESH = (
    'The old lighthouse had been empty for years when',
    'Three reasons why rivers bend:',
    'Dear Professor, I am writing to you because',
    'On her first day as a pilot she')
