"""Work on the parts of a stream in several threads, its results in the order of the parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
Worked = tuple[int, T | None, Exception | None]


class Ahead:
    """Threads that work ahead of the caller's, which takes what they have made.

    Args:
        threads: of them; with one there is none, and the work is done when its result is asked for.
    """

    def __init__(self, threads: int):
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._most = 2 * threads

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def in_order(self, work: Callable[..., T], parts: Iterator[Any]) -> Iterator[Worked[T]]:
        """(number, result, problem) of each part; two for each thread are begun before they are asked for.

        Args:
            work: given a part without its number; may run on several at once.
            parts: (number of the part, what else it has ...), read by the caller's thread. What it raises
                follows the results of all parts before, as a problem with the number of the last.
        """
        waiting: deque[Future[Worked[T]] | Worked[T]] = deque()
        for entry in self._begun(work, parts):
            waiting.append(entry)
            if self._pool is None or len(waiting) > self._most:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())

    def _begun(self, work: Callable[..., T], parts: Iterator[Any]) -> Iterator[Future[Worked[T]] | Worked[T]]:
        def attempt(number: int, *part: Any) -> Worked[T]:
            try:
                return number, work(*part), None
            except Exception as error:
                return number, None, error

        number = -1
        try:
            for number, *part in parts:
                yield self._pool.submit(attempt, number, *part) if self._pool else attempt(number, *part)
        except Exception as error:
            yield number, None, error  # what was read before comes first


def _result(entry: Future[Worked[T]] | Worked[T]) -> Worked[T]:
    return entry.result() if isinstance(entry, Future) else entry
