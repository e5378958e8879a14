from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from diurnal.train.ahead import Ahead


def test_what_is_made_comes_in_order_and_is_waited_for_once() -> None:
    go_on = threading.Event()

    def source() -> Iterator[int]:
        yield from (1, 2)
        go_on.wait(30)
        yield 3

    ahead = Ahead(source())
    assert ahead.take(30)[0] == 1
    ahead.take(0.0)
    assert ahead.take(0.01) == []
    assert not ahead.is_done
    go_on.set()
    assert ahead.take(30) == [3]
    assert ahead.take(30) == []
    assert ahead.is_done


def test_an_error_comes_after_what_was_made_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    ahead = Ahead(source())
    assert ahead.take_all() == [1]
    with pytest.raises(ValueError, match="the second"):
        ahead.take(30)
    assert ahead.is_done


def test_who_closes_it_waits_for_what_is_being_made_alone() -> None:
    made: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        for number in range(5):
            begun.set()
            go_on.wait(30)
            made.append(number)
            yield number

    ahead = Ahead(source())
    begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    ahead.close()
    assert made[0] == 0
    assert len(made) <= 2
