"""A certificate of erasure with what belongs to it, as it was downloaded. Verifying it needs no network."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.client.files import write_whole
from lethe.client.rendering import as_html
from lethe.errors import Unusable

if TYPE_CHECKING:
    from services.audit.verification import Verdict


@dataclass(frozen=True)
class Certificate:
    """`content` is the signed envelope, byte for byte; `artefacts` its list, None when there is none beside it."""

    content: bytes = field(repr=False)
    artefacts: bytes | None = field(default=None, repr=False)
    why_no_artefacts: str | None = None
    opening: bytes | None = field(default=None, repr=False)
    """What shows whom it is about; only with `erasure.certificate(opening=True)`."""

    @property
    def statement(self) -> Mapping[str, Any]:
        """What it says, unverified."""
        import base64
        import json

        document: Mapping[str, Any] = json.loads(base64.b64decode(json.loads(self.content)["payload"]))
        return document

    def verify(self, key: str | bytes | Path, *, client: str | None = None, model: str | None = None) -> Verdict:
        """Whether it holds, check by check. `key`: the issuer's public key (PEM, or a file with it), from a place that
        you trust. `client`: it must be about this one; that needs the opening. `model`: a digest it must speak of."""
        if find_spec("cryptography") is None:
            raise Unusable(
                "verifying needs the package cryptography, which is not installed here",
                next_step="install the extra verify, or cryptography itself",
            )
        verification = import_module("services.audit.verification")
        pem = key.read_bytes() if isinstance(key, Path) else key.encode() if isinstance(key, str) else key
        beside = verification.Beside(
            list=io.BytesIO(self.artefacts) if self.artefacts is not None else None,
            client=client,
            opening=self.opening if client is not None else None,
        )
        verdict: Verdict = verification.check(self.content, pem, model_digest=model, beside=beside)
        return verdict

    def save(self, path: str | Path) -> None:
        """Write it, and its list of artefacts under the name that `lethe verify` looks for."""
        from services.audit.artefact_list import path_beside

        file = Path(path)
        if self.artefacts is not None:
            write_whole(path_beside(file), self.artefacts)
        else:
            path_beside(file).unlink(missing_ok=True)  # that of an earlier certificate would not fit this one
        write_whole(file, self.content)

    def _repr_html_(self) -> str:
        predicate = self.statement.get("predicate", {})
        return as_html("Certificate (not verified here: certificate.verify(key))", predicate)
