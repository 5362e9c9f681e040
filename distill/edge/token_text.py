"""The text of tokens that arrive one after the other: never half a character, and none of a stop string.

text = TokenText(tokenizer, stop=["\\n"])
for token in tokenizer.encode("a film\\nand more").ids:
    text.add(token)
text.end()
text.read(), text.is_stopped  # ('a film', True)
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # Bytes that are no character.
LONGEST_PART = 3  # Bytes, and so tokens, that are part of a character in UTF-8 and not all of it, at most.
CONTEXT = 8  # Tokens of a prompt that decide how its first new tokens are written, such as with a space.


class TokenText:
    """The text of tokens that are added one by one.

    Special tokens have no text.

    Args:
        prompt: ids that the tokens continue. The text is what they add to that of the prompt.
        stop: texts before which the text ends.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.longest = max(map(len, self.stop), default=0)
        self.is_stopped = False
        # The text of the new tokens is that of both lists without that of the first one.
        self._context, self._new = list(prompt[-CONTEXT:]), list[int]()
        self._taken = 0  # Characters of the new tokens that are in `_whole`.
        self._whole = ""  # All whole characters.
        self._ready = 0  # Of these, those that are in no stop string.
        self._read = 0

    @property
    def text(self) -> str:
        """The text so far, without the characters that a stop string may begin with."""
        return self._whole[: self._ready]

    def add(self, token: int) -> None:
        """Appends a token. After a stop string, tokens add no text."""
        if self.is_stopped:
            return
        self._new.append(token)
        text = self._decode(self._context + self._new)[len(self._decode(self._context)) :]
        whole = text.rstrip(REPLACEMENT)
        if len(self._new) > LONGEST_PART:  # A character would be whole: bytes before the last ones are none.
            whole += text[len(whole) : -LONGEST_PART]
        self._extend(whole[self._taken :])
        self._taken = max(self._taken, len(whole))
        if text and len(whole) == len(text):
            self._context, self._new, self._taken = self._new, [], 0

    def end(self) -> None:
        """Makes the rest ready, which may look like the beginning of a stop string. Half a character is left out."""
        self._ready = len(self._whole)

    def read(self) -> str:
        """Returns the text that was added since the last call."""
        piece, self._read = self._whole[self._read : self._ready], self._ready
        return piece

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens)
        return text

    def _extend(self, text: str) -> None:
        begin = max(0, len(self._whole) + 1 - self.longest)
        self._whole += text
        places = [place for stop in self.stop if (place := self._whole.find(stop, begin)) >= 0]
        if places:
            self._whole, self.is_stopped = self._whole[: min(places)], True
        self._ready = len(self._whole) - (0 if places else self._count_held())

    def _count_held(self) -> int:
        """Returns how many last characters may be the beginning of a stop string."""
        for size in range(min(self.longest - 1, len(self._whole)), 0, -1):
            end = self._whole[-size:]
            if any(stop.startswith(end) for stop in self.stop if len(stop) > size):
                return size
        return 0
