from __future__ import annotations

import pytest

from services.core.errors import Rejected
from worker.answers import Refused
from worker.failures import MAX_LOG_TAIL, WorkFailed, failure_of


def failing(error: BaseException) -> BaseException:
    """The error with a traceback, raised while another was handled."""
    try:
        try:
            raise KeyError("row of Jane Doe".upper())
        except KeyError:
            raise error  # noqa: B904
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (MemoryError(), True),
        (OSError("disk"), True),
        (ConnectionResetError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})(), True),
        (Refused("not-found", "the model is gone"), True),
        (FileNotFoundError("x"), False),
        (PermissionError("x"), False),
        (ValueError("x"), False),
        (WorkFailed("the loss became nan"), False),
        (Rejected("invalid-run", "no such model"), False),
    ],
)
def test_only_what_may_heal_is_worth_another_try(error: BaseException, retryable: bool) -> None:
    assert failure_of(error, "lease").retryable is retryable


def test_messages_of_foreign_exceptions_stay_home() -> None:
    failure = failure_of(failing(ValueError("could not convert 'Jane Doe'".upper())), "lease")
    assert "JANE" not in failure.model_dump_json()
    assert "ValueError" in failure.log_tail
    assert "KeyError" in failure.log_tail
    assert "in failing" in failure.log_tail


def test_our_own_words_travel() -> None:
    assert "no such model" in failure_of(Rejected("invalid-run", "no such model"), "lease").reason


def test_the_log_tail_is_bounded() -> None:
    def dig(depth: int) -> None:
        if depth == 0:
            raise ValueError
        (dig if depth % 2 else dig_on)(depth - 1)  # two functions: Python folds the lines of simple recursion

    def dig_on(depth: int) -> None:
        dig(depth)

    with pytest.raises(ValueError) as caught:
        dig(300)
    assert len(failure_of(caught.value, "lease").log_tail) == MAX_LOG_TAIL


def test_a_long_reason_is_cut() -> None:
    assert len(failure_of(WorkFailed("x" * 9000), "lease").reason) == 2000
