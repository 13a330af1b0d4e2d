"""Clean environments that hold the built wheel with one extra and nothing else, outside the source tree."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.deployment import wait_until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Installation:
    """`lethe[extra]` in an environment of its own; its commands run in `directory`."""

    python: Path
    directory: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.command, *arguments],
            cwd=self.directory,
            env=_environment(**environment),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def succeed(self, *arguments: str, **environment: str) -> str:
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, f"lethe {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def run_python(self, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-c", code], cwd=cwd, env=_environment(), capture_output=True, text=True, check=False
        )

    @contextlib.contextmanager
    def started(self, *arguments: str, until: str | None = None, **environment: str) -> Iterator[str]:
        """A process of the command, ended afterwards. Gives what follows `until` on the line that begins with it."""
        log = self.directory / f"{arguments[0]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.command, *arguments],
                cwd=self.directory,
                env=_environment(PYTHONUNBUFFERED="1", **environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        try:
            yield self._line(process, log, until) if until is not None else ""
        finally:
            process.terminate()
            process.wait(60)

    @property
    def command(self) -> str:
        return str(self.python.with_name("lethe"))

    def _line(self, process: subprocess.Popen[bytes], log: Path, beginning: str) -> str:
        found: list[str] = []

        def is_there() -> bool:
            assert process.poll() is None, log.read_text()
            found[:] = re.findall(rf"^{beginning}(.*)$", log.read_text(), re.MULTILINE)
            return bool(found)

        wait_until(is_there, START_TIMEOUT_S, f"{beginning!r} in {log}", log.read_text)
        return found[0].strip()


@dataclass
class Installer:
    """Builds the wheel of what the images are made of, once, and installs it as often as wanted."""

    directory: Path
    made: dict[str, Installation] = field(default_factory=dict)

    def install(self, extra: str = "") -> Installation:
        if extra not in self.made:
            home = self.directory / (extra or "none")
            home.mkdir()
            python = home / "environment" / "bin" / "python"
            uv("venv", "--python", sys.executable, str(home / "environment"))
            wanted = f"lethe{f'[{extra}]' if extra else ''} @ {self._wheel().as_uri()}"
            uv("pip", "install", "--python", str(python), "-c", str(ROOT / "constraints.txt"), wanted)
            uv("pip", "check", "--python", str(python))
            _lend_bytecode(home / "environment")
            self.made[extra] = Installation(python, home)
        return self.made[extra]

    def add(self, installation: Installation, package: Path) -> None:
        """Install another package, from its folder, beside Lethe."""
        uv("pip", "install", "--python", str(installation.python), "--no-deps", str(package))

    def _wheel(self) -> Path:
        built = self.directory / "dist"
        if not built.exists():
            source = self.directory / "source"
            dockerfile = (ROOT / "deploy" / "Dockerfile.coordinator").read_text("utf-8")
            for names in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE):
                for name in names.split():
                    _copy(ROOT / name, source / name)
            uv("build", "--wheel", "--python", sys.executable, "--out-dir", str(built), str(source))
        [wheel] = built.glob("*.whl")
        return wheel


def _lend_bytecode(environment: Path) -> None:
    """What this environment has compiled (torch, transformers) need not be compiled again. Python itself passes over
    compiled modules whose source has another size or time."""
    ours, [theirs] = Path(sysconfig.get_path("purelib")), environment.glob("lib/python*/site-packages")
    for folder, _, _ in os.walk(theirs):
        compiled = ours / Path(folder).relative_to(theirs) / "__pycache__"
        if compiled.is_dir() and not (lent := Path(folder) / "__pycache__").exists():
            lent.mkdir()
            for file in compiled.iterdir():
                shutil.copyfile(file, lent / file.name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def uv(*arguments: str) -> None:
    """From the cache that the set-up filled; else as the set-up does, from where pip finds its packages."""
    pip = [str(BIN / "pip"), "config", "get", "global.find-links"]
    links = os.environ.get("PIP_FIND_LINKS") or subprocess.run(pip, capture_output=True, text=True).stdout.strip()
    environment = _environment(**({"UV_FIND_LINKS": links} if links else {}))
    command = [str(BIN / "uv"), "--quiet", *arguments]
    if subprocess.run([*command, "--offline"], env=environment, capture_output=True, check=False).returncode != 0:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"uv {' '.join(arguments)}: {done.stdout}{done.stderr}"


def _environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LETHE_", "PYTHON")) and name != "VIRTUAL_ENV"
    }
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **changes}
