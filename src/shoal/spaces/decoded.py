"""Text and OneOf: spaces whose values are decoded at each read."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from shoal.errors import SpaceError, SpaceIndexError, SpaceKeyError
from shoal.memory import Segment
from shoal.spaces.memory import LeafMemory, Memory, Staged, TupleMemory

__all__ = ["OneOfMemory", "TextMemory"]


class TextMemory(LeafMemory):
    """The indexes of characters in the charset, padded with the charset's length."""

    def __init__(self, segment: Segment, path: str, characters: Sequence[str]) -> None:
        super().__init__(segment, path)
        self._characters = tuple(characters)
        self._padding = [len(characters)] * self.shape[0]
        self._numbers = {character: number for number, character in enumerate(characters)}

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        (longest,) = self.shape
        if not isinstance(value, str):
            raise SpaceError(f"{self.path}: expected a str, found {type(value).__name__}")
        if len(value) > longest:
            raise SpaceIndexError(
                f"{self.path}: expected at most {longest} characters, found {len(value)}: {value[:80]!r}"
            )
        try:
            data = [self._numbers[character] for character in value]
        except KeyError as error:
            raise SpaceKeyError(
                f"{self.path}: the character {error.args[0]!r} of {value!r} is not in the charset "
                f"{''.join(self._characters)!r} of the space"
            ) from None
        data.extend(self._padding[len(value) :])
        staged.append((self.array, row, data))

    def stage_rows(self, lo: int, limit: int, batch: Any, staged: Staged) -> int:
        return Memory.stage_rows(self, lo, limit, batch, staged)

    def tree(self) -> Any:
        return None

    def read(self, lo: int, hi: int) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.read_one(row) for row in range(lo, hi))

    def read_one(self, row: int) -> str:
        characters = self._characters
        return "".join([characters[n] for n in self.array[row].tolist() if 0 <= n < len(characters)])

    def __reduce__(self) -> tuple[Any, ...]:
        return TextMemory, (self.segment, self.path, self._characters)


class OneOfMemory(TupleMemory):
    """The index of the subspace in use, then the memory of every subspace."""

    def stage(self, row: int, value: Any, staged: Staged) -> None:
        choices = len(self.children) - 1
        try:
            chosen, item = value
            chosen = operator.index(chosen)
        except (TypeError, ValueError):
            raise SpaceError(f"{self.path}: expected (index, value), found {value!r}") from None
        if not 0 <= chosen < choices:
            raise SpaceIndexError(f"{self.path}: expected an index from 0 to {choices - 1}, found {chosen}")
        self.children[1 + chosen].stage(row, item, staged)
        self.children[0].stage(row, chosen, staged)

    def stage_rows(self, lo: int, limit: int, batch: Any, staged: Staged) -> int:
        return Memory.stage_rows(self, lo, limit, batch, staged)

    def tree(self) -> Any:
        return None

    def read(self, lo: int, hi: int) -> tuple[Any, ...]:
        return tuple(self.read_one(row) for row in range(lo, hi))

    def read_one(self, row: int) -> tuple[Any, Any]:
        chosen = self.children[0].read_one(row)
        return chosen, self.children[1 + int(chosen)].read_one(row)
