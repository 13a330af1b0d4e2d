"""Run files: YAML or JSON, checked here with the coordinator's own specification before anything is sent.

Two keys may name local things instead of digests; they are uploaded first and replaced by their digest:
`validation.data` a data source (`builtin:digits`, `npz:test.npz`, …), `init` a safetensors file. Paths are relative to
the working directory, like those on a command line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from lethe.failures import UNUSABLE, CommandFailed
from services.core.digests import is_digest
from services.core.errors import Rejected
from services.models.fitting import check_init, check_validation
from services.models.spec import validate as validate_model
from services.tensors.layout import read_header
from services.tensors.streams import StoredFile
from services.wire.v1.runs import ModelSpec, RunSpec

PLACEHOLDER = "sha256:" + "0" * 64


class RunFileUnusable(CommandFailed):
    def __init__(self, path: Path, faults: Sequence[str]) -> None:
        lines = [f"{path} is not a run:", *(f"       {fault}" for fault in faults)]
        super().__init__("\n".join(lines), next_step="docs/run-file.md lists every key", exit_code=UNUSABLE)


def read(path: Path) -> dict[str, Any]:
    """The file's document, checked in everything but what its local references contain."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML, too
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"cannot read {path}: {error}", exit_code=UNUSABLE) from error
    except yaml.YAMLError as error:
        raise RunFileUnusable(path, [f"not YAML or JSON: {error}"]) from error
    if not isinstance(document, dict):
        raise RunFileUnusable(path, [f"found {type(document).__name__}; a mapping with `name` and `model` is needed"])
    check(path, document)
    return document


def check(path: Path, document: dict[str, Any]) -> None:
    stand_in = dict(document)
    if _is_local(document.get("init")):
        stand_in["init"] = PLACEHOLDER
    if isinstance(document.get("validation"), dict) and _is_local(document["validation"].get("data")):
        stand_in["validation"] = {**document["validation"], "data": PLACEHOLDER}
    try:
        validate_model(RunSpec.model_validate(stand_in).model)
    except ValidationError as error:
        raise RunFileUnusable(path, [describe(fault, RunSpec) for fault in error.errors()]) from error
    except Rejected as error:
        raise RunFileUnusable(path, [f"model: {error.detail}"]) from error


@contextmanager
def prepared(spec: BaseModel | Mapping[str, Any] | str | Path) -> Iterator[tuple[dict[str, Any], list[Path]]]:
    """What to post for a specification or a run file, and the files to upload before: local references are replaced by
    the digests of their files, which may be gone after the block."""
    match spec:
        case BaseModel():
            document = spec.model_dump(mode="json", exclude_unset=True)
        case Mapping():
            document = dict(spec)
        case _:
            document = read(Path(spec))
    files: list[Path] = []
    validation = document.get("validation")
    with TemporaryDirectory(prefix="lethe-validation-") as directory:
        if _is_local(document.get("init")):
            file = Path(document["init"]).expanduser()
            if not file.is_file():
                raise CommandFailed(
                    f"init: no file {file} (looked in {Path.cwd()})",
                    next_step="draw the weights of a task of your own with: lethe models init FILE --task TASK",
                    exit_code=UNUSABLE,
                )
            document = {**document, "init": _digest(file)}
            files.append(file)
        if isinstance(validation, dict) and _is_local(validation.get("data")):
            file = Path(directory) / "validation.safetensors"
            _write_set(validation["data"], file)
            document = {**document, "validation": {**validation, "data": _digest(file)}}
            files.append(file)
        yield document, files


def check_files(document: Mapping[str, Any]) -> None:
    """Whether the local files that a run file names would be taken, without a coordinator."""
    model = ModelSpec.model_validate(document["model"])
    with prepared(document) as (spec, files):
        for file in files:
            try:
                with closing(StoredFile(file).open()) as readable:
                    layout = read_header(readable).layout
                if _digest(file) == spec.get("init"):
                    check_init(model, layout)
                else:
                    check_validation(layout)
            except Rejected as error:
                raise CommandFailed(f"{file}: {error.detail}", exit_code=UNUSABLE) from error


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def _is_local(value: Any) -> bool:
    return isinstance(value, str) and not is_digest(value) and not value.startswith("sha256:")


def _write_set(source: str, file: Path) -> None:
    """The test part of a source, or all of a file that is not divided, as a blob with tensors x and y."""
    from services.data.data_folders import folders_of
    from services.data.sources import DataUnusable, load
    from services.tensors import codec

    try:
        data = load(_undivided(source), folders_of(os.environ))
    except DataUnusable as error:
        raise CommandFailed(f"validation.data: {error}", exit_code=UNUSABLE) from error
    x, y = (data.x_test, data.y_test) if len(data.y_test) else (data.x_train, data.y_train)
    codec.write_file(file, {"x": x, "y": y})


def _undivided(source: str) -> str:
    """Hold nothing out of a file of test data, unless told to."""
    address, hash_, shard = source.partition("#")
    if address.startswith(("npz:", "csv:", "text:")) and "test=" not in address.partition("?")[2]:
        address += ("&" if "?" in address else "?") + "test=0"
    return address + hash_ + shard


def describe(fault: Any, root: type[BaseModel]) -> str:
    """The key, what was found, what is allowed; `root`: what the whole document should be."""
    path = [str(part) for part in fault["loc"]]
    model, shown = _walk(path, root)
    key = ".".join(shown)
    if fault["type"] == "extra_forbidden" and model is not None:
        known = sorted(model.model_fields)
        close = get_close_matches(path[-1], known, n=1)
        return f"{key}: unknown key{f', did you mean {close[0]}?' if close else ';'} known here: {', '.join(known)}"
    if fault["type"] == "missing":
        return f"{key}: missing"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: found {_shorten(fault['input'])}; {message[:1].lower()}{message[1:]}"


def _walk(path: Sequence[str], root: type[BaseModel]) -> tuple[type[BaseModel] | None, list[str]]:
    """The model that the last key belongs to, and the path without the tags that pydantic adds for unions."""
    models: list[type[BaseModel]] = [root]
    owner: type[BaseModel] | None = root
    shown: list[str] = []
    for part in path:
        if part.isdigit():  # an item of a list: of the same kind as the list
            shown.append(part)
            continue
        if not part.isidentifier():
            continue
        field = next((model.model_fields[part] for model in models if part in model.model_fields), None)
        tagged = [model for model in models if _has_tag(model, part)]
        if field is None and tagged:
            models, owner = tagged, tagged[0]
            continue
        shown.append(part)
        owner = models[0] if models else None
        models = _nested(field.annotation) if field is not None else []
    return owner, shown


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    return any(tag in get_args(field.annotation) for field in model.model_fields.values())


def _nested(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _nested(part)]


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
