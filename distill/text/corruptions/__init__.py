"""Corruptions of text for the pre-training of encoder-decoders, each in a file of its own."""

from distill.text.corruptions.corruptor import CORRUPTIONS as CORRUPTIONS
from distill.text.corruptions.corruptor import Corruption as Corruption
from distill.text.corruptions.corruptor import Corruptor as Corruptor
from distill.text.corruptions.symbols import Symbols as Symbols
