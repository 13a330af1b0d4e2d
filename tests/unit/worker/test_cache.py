from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from worker.cache import ModelCache

pytestmark = pytest.mark.anyio


class Store:
    """Where models come from; counts how often it is asked."""

    def __init__(self, *models: bytes) -> None:
        self.models = {digest_of(model): model for model in models}
        self.fetched: list[str] = []

    async def fetch(self, digest: str, num_bytes: int, path: Path) -> None:
        self.fetched.append(digest)
        await asyncio.sleep(0)
        path.write_bytes(self.models[digest])


def digest_of(model: bytes) -> str:
    return "sha256:" + hashlib.sha256(model).hexdigest()


async def get(cache: ModelCache, store: Store, model: bytes) -> bytes:
    async with cache.hold(digest_of(model), len(model), store.fetch) as path:
        return path.read_bytes()


async def test_a_model_is_fetched_once(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 100), Store(b"model")
    assert await get(cache, store, b"model") == await get(cache, store, b"model") == b"model"
    assert len(store.fetched) == 1


async def test_agents_that_ask_together_share_one_fetch(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 100), Store(b"model")
    await asyncio.gather(*(get(cache, store, b"model") for _ in range(5)))
    assert len(store.fetched) == 1


async def test_the_least_recently_used_model_goes_first(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 10), Store(b"aaaa", b"bbbb", b"cccc")
    for age, model in enumerate((b"bbbb", b"aaaa")):
        await get(cache, store, model)
        [path] = tmp_path.glob(f"{digest_of(model).removeprefix('sha256:')}*")
        os.utime(path, (age, age))
    await get(cache, store, b"cccc")
    await get(cache, store, b"aaaa")
    assert store.fetched.count(digest_of(b"aaaa")) == 1
    await get(cache, store, b"bbbb")
    assert store.fetched.count(digest_of(b"bbbb")) == 2


async def test_a_model_in_use_is_never_removed(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 4), Store(b"aaaa", b"bbbb")
    async with cache.hold(digest_of(b"aaaa"), 4, store.fetch) as path:
        await get(cache, store, b"bbbb")
        assert path.exists()


async def test_a_damaged_file_of_an_earlier_process_is_fetched_again(tmp_path: Path) -> None:
    store = Store(b"model")
    await get(ModelCache(tmp_path, 100), store, b"model")
    [path] = tmp_path.iterdir()
    path.write_bytes(b"m0del")
    assert await get(ModelCache(tmp_path, 100), store, b"model") == b"model"


async def test_a_failed_fetch_leaves_nothing_behind(tmp_path: Path) -> None:
    async def fail(digest: str, num_bytes: int, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError

    with pytest.raises(OSError):
        async with ModelCache(tmp_path, 100).hold(digest_of(b"model"), 5, fail):
            pass
    assert not list(tmp_path.iterdir())


async def test_a_model_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 10), Store(b"small", b"larger than the bound")
    await get(cache, store, b"small")
    async with cache.hold(digest_of(b"larger than the bound"), 21, store.fetch) as path:
        assert path.read_bytes() == b"larger than the bound"
    assert list(tmp_path.iterdir()) == []


async def test_the_bound_holds_again_when_models_that_were_used_together_are_done(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 10), Store(b"aaaaaa", b"bbbbbb")
    async with cache.hold(digest_of(b"aaaaaa"), 6, store.fetch), cache.hold(digest_of(b"bbbbbb"), 6, store.fetch):
        assert len(list(tmp_path.iterdir())) == 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 6


async def test_what_a_killed_process_left_unfinished_is_deleted(tmp_path: Path) -> None:
    old, young = tmp_path / "a.safetensors.1.part", tmp_path / "b.safetensors.2.part"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    await get(ModelCache(tmp_path, 100), Store(b"model"), b"model")
    assert not old.exists() and young.exists()


async def test_models_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "models"
    before = os.umask(0)
    try:
        await get(ModelCache(directory, 100), Store(b"model"), b"model")
        [model] = directory.iterdir()
        assert [path.stat().st_mode & 0o777 for path in (directory.parent, directory, model)] == [0o700, 0o700, 0o600]
        directory.chmod(0o755)
        model.chmod(0o644)
        ModelCache(directory, 100)
        assert [path.stat().st_mode & 0o777 for path in (directory, model)] == [0o700, 0o600]
    finally:
        os.umask(before)


async def test_models_that_are_superseded_go_and_the_others_stay(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 100), Store(b"old", b"new")
    await get(cache, store, b"old")
    await get(cache, store, b"new")
    part = tmp_path / f"{digest_of(b'old').removeprefix('sha256:')}.safetensors.dead.part"
    part.write_bytes(b"ol")
    assert cache.drop([digest_of(b"old"), digest_of(b"never seen")])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


async def test_a_superseded_model_that_is_in_use_goes_when_its_task_is_done(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 100), Store(b"old")
    async with cache.hold(digest_of(b"old"), 3, store.fetch) as path:
        assert not cache.drop([digest_of(b"old")])
        assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == []
    assert cache.drop([digest_of(b"old")])


async def test_a_model_that_is_not_to_be_kept_goes_with_its_last_holder(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 100), Store(b"before")
    async with cache.hold(digest_of(b"before"), 6, store.fetch):
        async with cache.hold(digest_of(b"before"), 6, store.fetch, keeps=False):
            pass
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    await get(cache, store, b"before")
    assert len(list(tmp_path.iterdir())) == 1, "a later task may keep it"


async def test_an_erased_client_leaves_an_empty_cache(tmp_path: Path) -> None:
    cache, store = ModelCache(tmp_path, 100), Store(b"one", b"two")
    await get(cache, store, b"one")
    async with cache.hold(digest_of(b"two"), 3, store.fetch):
        assert not cache.drop_all()
    assert list(tmp_path.iterdir()) == []
    assert cache.drop_all()
