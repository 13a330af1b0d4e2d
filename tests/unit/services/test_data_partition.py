import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.data.partition import partition

HOWS = ["iid", "dirichlet:0.1", "dirichlet:100", "by-class", "by-class:1", "by-class:0.5"]


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    num_parts=st.integers(1, 12),
    how=st.sampled_from(HOWS),
    seed=st.integers(0, 5),
)
def test_every_sample_is_in_exactly_one_part_and_no_part_is_empty(
    labels: list[int], num_parts: int, how: str, seed: int
) -> None:
    num_parts = min(num_parts, len(labels))
    parts = partition(np.array(labels), num_parts, how, seed)
    assert len(parts) == num_parts
    assert all(len(part) for part in parts)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))


def test_same_seed_gives_the_same_parts_and_another_seed_others() -> None:
    y = np.arange(100) % 10
    for how in ("iid", "dirichlet:0.1", "by-class"):
        one, same, other = (partition(y, 5, how, seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_by_class_gives_client_i_most_of_class_i() -> None:
    y = np.repeat(np.arange(4), 100)
    for client, rows in enumerate(partition(y, 4, "by-class:0.7")):
        assert (y[rows] == client).sum() == 70


def test_by_class_with_fewer_clients_than_classes_still_hands_out_every_class() -> None:
    y = np.repeat(np.arange(4), 10)
    first, second = partition(y, 2, "by-class:1")
    assert set(y[first]) == {0, 2}
    assert set(y[second]) == {1, 3}


def test_small_alpha_is_more_lopsided_than_large_alpha() -> None:
    y = np.repeat(np.arange(10), 100)

    def spread(how: str) -> float:
        counts = [np.bincount(y[part], minlength=10) for part in partition(y, 10, how)]
        return float(np.std(counts))

    assert spread("dirichlet:0.1") > 2 * spread("dirichlet:100")


def test_train_and_test_are_divided_in_like_proportions() -> None:
    train, test = np.repeat(np.arange(5), 400), np.repeat(np.arange(5), 100)
    parts = zip(partition(train, 4, "dirichlet:0.5", 3), partition(test, 4, "dirichlet:0.5", 3), strict=True)
    for of_train, of_test in parts:
        expected = np.bincount(train[of_train], minlength=5) / 4
        assert np.allclose(np.bincount(test[of_test], minlength=5), expected, atol=2)


@pytest.mark.parametrize(
    ("num_parts", "how"),
    [(0, "iid"), (11, "iid"), (2, "magic"), (2, "dirichlet"), (2, "dirichlet:-1"), (2, "by-class:2")],
)
def test_impossible_partition_is_refused(num_parts: int, how: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        partition(np.zeros(10, np.int64), num_parts, how)
