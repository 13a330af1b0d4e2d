import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.data.data_folders import folders_of
from services.data.inputs import as_inputs
from services.data.sources import DataUnusable, load
from services.data.text import PADDING


def save_npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_digits_ship_with_the_package() -> None:
    data = load("digits")
    assert data.x_train.shape == (1437, 1, 8, 8)
    assert data.x_test.shape == (360, 1, 8, 8)
    assert data.x_train.dtype == np.float32
    assert data.x_train.min() == 0
    assert data.x_train.max() == 1
    assert set(data.y_train) == set(range(10))


def test_builtin_digits_is_the_same_as_digits() -> None:
    assert np.array_equal(load("builtin:digits").x_test, load("digits").x_test)


def test_images_are_scaled_and_get_channels_first() -> None:
    assert as_inputs(np.full((2, 4, 5), 255, np.uint8)).shape == (2, 1, 4, 5)
    colour = as_inputs(np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3))
    assert colour.shape == (2, 3, 8, 8)
    assert colour[0, 1, 0, 0] == np.float32(1) / np.float32(255)


def test_channels_first_stays_and_tables_are_not_scaled() -> None:
    assert as_inputs(np.zeros((2, 3, 8, 3), np.uint8)).shape == (2, 3, 8, 3)
    assert as_inputs(np.array([[7, 255]], np.uint8)).tolist() == [[7.0, 255.0]]
    assert as_inputs(np.full((1, 2, 2), 9.0)).max() == 9


def test_shards_of_one_source_cover_it() -> None:
    shards = [load(f"digits#part={i}/4,how=dirichlet:0.5,seed=2") for i in range(4)]
    assert sum(len(shard.y_train) for shard in shards) == 1437
    assert sum(len(shard.y_test) for shard in shards) == 360


def test_shard_with_too_few_test_samples_keeps_all_of_them(tmp_path: Path) -> None:
    source = save_npz(
        tmp_path / "d.npz", x_train=np.ones((9, 2)), y_train=np.arange(9) % 2, x_test=np.ones((2, 2)), y_test=[0, 1]
    )
    assert len(load(source + "#part=0/3").y_test) == 2


def test_npz_without_test_arrays_has_an_empty_test_set(tmp_path: Path) -> None:
    data = load(save_npz(tmp_path / "d.npz", x_train=np.ones((3, 2)), y_train=[0, 1, 0]))
    assert len(data.y_test) == 0
    assert data.x_test.shape == (0, 2)


def test_npz_with_x_and_y_holds_out_the_same_share_each_time(tmp_path: Path) -> None:
    source = save_npz(tmp_path / "d.npz", x=np.arange(20.0).reshape(10, 2), y=np.arange(10)) + "?test=0.3"
    assert len(load(source).y_test) == 3
    assert np.array_equal(load(source).y_test, load(source).y_test)


def test_csv_takes_the_label_column_by_name_or_the_last(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,age,dose\n1,40,0.5\n0,30,1.5\n")
    (tmp_path / "b.csv").write_text("age,dose,outcome\n40,0.5,1\n30,1.5,0\n")
    for name in ("a", "b"):
        data = load(f"csv:{tmp_path}/{name}.csv?test=0")
        assert data.x_train.tolist() == [[40.0, 0.5], [30.0, 1.5]]
        assert data.y_train.tolist() == [1, 0]


def test_csv_names_its_label_and_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("kind,age\nmalignant,40\nbenign,30\n")
    data = load(f"csv:{tmp_path}/a.csv?label=kind&classes=benign,malignant&test=0")
    assert data.y_train.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("parquet:a", "npz:FILE"),
        ("cifar100", "digits, mnist, fashion-mnist, cifar10"),
        ("mnist", "lethe data get mnist"),
        ("tsv:missing.tsv", "LETHE_DATA"),
        ("npz:missing.npz", "missing.npz"),
        ("csv:missing.csv", "looked in"),
        ("builtin:mnist", "digits"),
        ("digits?seed=1", "unknown options seed"),
        ("digits#part=4/4", "from 0 to 3"),
        ("digits#how=iid", "write it like"),
        ("digits#part=0/2,colour=red", "colour"),
        ("digits#part=0/2,how=magic", "dirichlet"),
        ("digits#part=0/5000", "not empty"),
    ],
)
def test_bad_source_says_what_to_do(source: str, hint: str) -> None:
    with pytest.raises(DataUnusable, match=hint):
        load(source)


@pytest.mark.parametrize(
    ("arrays", "hint"),
    [
        ({"images": np.ones((2, 2))}, "x_train and y_train"),
        ({"x": np.ones((2, 2)), "y": np.ones(2)}, "integers"),
        ({"x": np.ones((3, 2)), "y": [0, 1]}, "rows"),
        ({"x": np.ones((2, 2)), "y": [-1, 1]}, "from 0"),
        ({"x": np.full((2, 2), np.nan), "y": [0, 1]}, "NaN"),
        ({"x": np.array([["a"], ["b"]]), "y": [0, 1]}, "numbers"),
        ({"x_train": np.ones((2, 2)), "y_train": [0, 1], "x_test": np.ones((2, 2))}, "both or neither"),
        ({"x_train": np.ones((0, 2)), "y_train": np.array([], int)}, "no training samples"),
    ],
)
def test_npz_that_cannot_be_used_says_why(tmp_path: Path, arrays: dict[str, Any], hint: str) -> None:
    with pytest.raises(DataUnusable, match=hint):
        load(save_npz(tmp_path / "d.npz", **arrays))


def test_npz_holding_pickled_objects_is_refused(tmp_path: Path) -> None:
    source = save_npz(tmp_path / "d.npz", x_train=np.array([{}, {}], dtype=object), y_train=[0, 1])
    with pytest.raises(DataUnusable, match="plain"):
        load(source)


@pytest.mark.parametrize("text", ["", "a,label\n", "a,label\n1\n", "a,label\nx,1\n", "a,label\n1,yes\n"])
def test_csv_that_cannot_be_used_says_why(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataUnusable, match=r"a\.csv"):
        load(f"csv:{tmp_path}/a.csv")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04broken"])
def test_npz_that_is_not_one_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d.npz").write_bytes(content)
    with pytest.raises(DataUnusable, match="savez"):
        load(f"npz:{tmp_path}/d.npz")


def test_row_numbers_are_those_of_the_file_also_after_holding_out_and_sharding(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(20) % 2)
    for source in ("npz:{}?test=0.25", "npz:{}?test=0.25#part=1/3"):
        data = load(source.format(tmp_path / "d.npz"))
        assert (data.x_train == x[data.rows_train]).all()
        assert (data.x_test == x[data.rows_test]).all()


def test_samples_are_left_out_by_row_number_and_the_others_keep_their_order(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "d.npz",
        x_train=np.arange(8, dtype=np.float32).reshape(4, 2),
        y_train=np.array([0, 1, 0, 1]),
        x_test=np.array([[9, 9], [7, 7]], dtype=np.float32),
        y_test=np.array([1, 0]),
    )
    data = load(f"npz:{tmp_path / 'd.npz'}")
    left = data.without({1, 4, 99})
    assert (left.rows_train.tolist(), left.rows_test.tolist()) == ([0, 2, 3], [5])
    assert (left.x_train[:, 0].tolist(), left.y_train.tolist()) == ([0, 4, 6], [0, 0, 1])
    assert (left.x_test[:, 0].tolist(), left.y_test.tolist()) == ([7], [0])
    assert data.unknown({1, 4, 99, 6}) == [6, 99]


def test_files_are_looked_for_here_and_then_in_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, first, second = tmp_path / "here", tmp_path / "first", tmp_path / "second"
    for number, folder in enumerate((here, first, second)):
        folder.mkdir()
        save_npz(folder / "mnist.npz", x_train=np.full((2, 2), number), y_train=[0, 1])
    monkeypatch.chdir(here)
    folders = folders_of({"LETHE_DATA": f"{first}:{second}", "HOME": str(tmp_path)})
    assert folders == (first, second, tmp_path / ".local/share/lethe/data")
    for number, folder in enumerate((here, first, second)):
        assert load("npz:mnist.npz", folders).x_train.max() == number == load("mnist", folders).x_train.max()
        (folder / "mnist.npz").unlink()
    with pytest.raises(DataUnusable) as caught:
        load("mnist", folders)
    assert all(str(folder) in str(caught.value) for folder in (here, first, second))


def test_text_becomes_windows_of_bytes_and_the_byte_after_each(tmp_path: Path) -> None:
    text = "To be, or not to bé" * 3
    (tmp_path / "play.txt").write_text(text, encoding="utf-8")
    tokens = list(text.encode())
    data = load(f"text:{tmp_path}/play.txt?length=7&test=0")
    assert data.x_train.shape == ((len(tokens) - 1) // 7, 7)
    assert data.x_train.ravel().tolist() == tokens[: data.x_train.size]
    assert data.y_train.tolist() == [tokens[7 * (i + 1)] for i in range(len(data.y_train))]


TSV = 'split\tlang\ttext\ntrain\tde\tgrüß dich\nvalid\ten\tleft alone\ntest\ten\thello\ntrain\ten\t"quoted\n'


@pytest.mark.parametrize("compressed", [False, True])
def test_tsv_keeps_its_own_split_and_its_row_numbers(tmp_path: Path, compressed: bool) -> None:
    file = tmp_path / ("a.tsv.gz" if compressed else "a.tsv")
    file.write_bytes(gzip.compress(TSV.encode()) if compressed else TSV.encode())
    data = load(f"tsv:{file}?label=lang&classes=de,en&length=6")
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1], [1])
    assert (data.rows_train.tolist(), data.rows_test.tolist()) == ([0, 3], [2])
    assert data.x_train[0].tolist() == list("grüß".encode())
    assert data.x_test[0].tolist() == [*b"hello", PADDING]
    assert bytes(data.x_train[1].astype(np.uint8)) == b'"quote'


def test_tsv_without_a_split_holds_some_rows_out(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"row {i}\t{i % 2}\n" for i in range(10)))
    data = load(f"tsv:{tmp_path}/a.tsv?test=0.3")
    assert (len(data.y_train), len(data.y_test)) == (7, 3)


@pytest.mark.parametrize(
    ("scheme", "text", "options", "hint"),
    [
        ("tsv", "text\tlabel\n", "", "at least one row"),
        ("tsv", "text\tlang\na\tde\n", "", "columns are text, lang"),
        ("tsv", "text\tlabel\na\tde\n", "", r"\?classes=de"),
        ("tsv", "text\tlabel\na\tde\n", "?classes=en,fr", "'de'"),
        ("tsv", "text\tlabel\na\t0\tmore\n", "", "line 2"),
        ("tsv", TSV, "?label=lang&classes=de,en&test=0.5", "leave out test"),
        ("text", "short", "?length=8", "needs 9"),
        ("text", "short", "?length=none", "number of bytes"),
        ("text", "short", "?context=3", "known here: length, test"),
    ],
)
def test_text_that_cannot_be_used_says_why(tmp_path: Path, scheme: str, text: str, options: str, hint: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(DataUnusable, match=hint):
        load(f"{scheme}:{tmp_path}/a{options}")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataUnusable, match="UTF-8"):
        load(f"text:{tmp_path}/a.txt")
