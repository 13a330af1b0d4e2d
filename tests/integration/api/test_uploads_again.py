"""A coordinator that died between the last byte of an upload and its record takes the same upload again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import numpy as np
import pytest
from safetensors.numpy import save

from coordinator.runtime.uploads import UploadRequest
from services.core import digests
from tests.integration.api.site import Site

pytestmark = pytest.mark.anyio


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.parametrize("share", [0.3, 1.0], ids=["part", "whole"])
@pytest.mark.parametrize("num_floats", [1000, 200_000, 400_000])
async def test_a_whole_upload_is_taken_again_after_one_that_was_never_recorded(
    site: Site, num_floats: int, share: float
) -> None:
    data = save({"x": np.arange(num_floats, dtype=np.float32)})
    digest, arrived = digests.of_bytes(data), data[: int(len(data) * share)]
    blob = await site.coordinator.uploads.announce(
        UploadRequest(UUID(site.federation_id), None, None, digest, len(data))
    )
    await site.coordinator.receiver.receive(blob, len(data), once(arrived), 0)
    path, params = f"/v1/blobs/{digest}", {"federation_id": site.federation_id}
    again = await site.admin.call("PUT", path, content=data, params=params)
    assert (again.status_code, again.json()["bytes"]) == (201, len(data))
    assert (await site.admin.call("GET", path, params=params)).content == data
