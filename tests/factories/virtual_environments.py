"""A virtual environment with pip and uv, and an index that has nothing else to install."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from tests.factories.clients import UV

# what `pip --python` starts in that Python, after pip has started in its own
_RUNNER = resources.files("pip").joinpath("__pip-runner__.py")
_PIP = f'#!/bin/sh\nexec "{{own}}" "{_RUNNER}" "$@"\n'


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class VirtualEnvironment:
    """Somebody with a virtual environment in *folder*, and ``pip`` and ``uv`` that install into it."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> "VirtualEnvironment":
        """A new one; *folder* is made."""
        made = cls(folder)
        (folder / "bin").mkdir(parents=True)
        (folder / "nothing").mkdir()
        (folder / "nothing" / "index.html").write_text("<!DOCTYPE html><html><body></body></html>")
        command = [UV, "venv", "--quiet", "--no-config", "--python", sys.executable, str(folder / "venv")]
        subprocess.run(command, check=True, capture_output=True)
        pip = folder / "bin" / "pip"
        pip.write_text(_PIP.format(own=folder / "venv" / "bin" / "python"))
        pip.chmod(0o755)
        (folder / "bin" / "uv").symlink_to(UV)
        return made

    @property
    def site(self) -> Path:
        """Where packages are."""
        return next((self.folder / "venv" / "lib").glob("python*/site-packages"))

    @property
    def environment(self) -> dict[str, str]:
        others = ("PIP_", "UV_", "PYTHON", "NV_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        nothing = f"file://{self.folder}/nothing"
        return {
            **clean,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "PATH": f"{self.folder}/bin:{self.folder}/venv/bin:{clean['PATH']}",
            "VIRTUAL_ENV": str(self.folder / "venv"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": nothing,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_DEFAULT_INDEX": nothing,
            "UV_CACHE_DIR": str(self.folder / "cache"),
            "UV_PYTHON": str(self.folder / "venv" / "bin" / "python"),
        }

    def tries(self, command: str, *, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """What comes of the shell *command*, in *folder*."""
        return subprocess.run(
            ["sh", "-euc", command],
            cwd=folder or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def runs(self, command: str, *, folder: Path | None = None) -> str:
        """What the shell *command* prints, which does not fail."""
        ran = self.tries(command, folder=folder)
        assert not ran.returncode, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout.strip()

    def python(self, program: str) -> str:
        """What *program* prints in the environment."""
        run = [str(self.folder / "venv" / "bin" / "python"), "-c", program]
        return subprocess.run(run, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def installed(self) -> dict[str, str]:
        """Version by project, as importlib.metadata has it."""
        program = "from importlib.metadata import distributions\nfor d in distributions(): print(d.name, d.version)"
        lines = (line.split() for line in self.python(program).splitlines())
        return {name: version for name, version in lines if not name.startswith("_")}


@contextmanager
def serving_folder(folder: Path) -> Iterator[str]:
    """The address of a plain file server over *folder*, without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
