"""Releases laid out as redirecting sdists, places that serve their wheels, and the installers that get them."""

import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.factories.clients import UV
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.publishing.publish import publish
from vbuild.publishing.redirect.plan import Redirect
from vbuild.variants.stamp import stamped

NAME = "demo-1.0-py3-none-any.whl"
V3, V4 = "demo-1.0-py3-none-any-x86_64_v3.whl", "demo-1.0-py3-none-any-x86_64_v4.whl"
URL = "https://wheels.example.org/demo"
# WHEEL, as a split writes it
COMPANION = "Wheel-Version: 1.0\nGenerator: vbuild split\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
METADATA = """\
Summary: A demonstration of hardware variants
Author-email: A. Person <a@example.org>
Project-URL: Homepage, https://example.org/demo
Classifier: Programming Language :: Python :: 3
Requires-Python: >=3.9
Provides-Extra: test
Requires-Dist: packaging>=24; extra == 'test'
Description-Content-Type: text/markdown

# demo

Many words.
"""


def release(folder: Path, *levels: str, name: str = NAME, metadata: str = METADATA) -> Path:
    """*folder* with the plain wheel called *name*, and a variant of it for each of *levels*: ``v3``."""
    plain = wheel(folder, name, {"demo/__init__.py": "label = 'plain'\n"}, metadata=metadata)
    for level in levels:
        stamped(plain, folder, variant=variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
    return folder


def against(folder: Path, *versions: str, levels: tuple[str, ...] = (), own: str = "") -> Path:
    """*folder* with a release of demo for each of these *versions* of engine, and the engines in ``engines`` beside it.

    *own* is the beginning of their local versions.
    """
    for version in versions:
        name = f"demo-1.0+{own}engine{version}-py3-none-any.whl"
        plain = wheel(
            folder, name, {"demo/__init__.py": f"{version!r}"}, metadata=f"Requires-Dist: engine=={version}.*\n"
        )
        for level in levels:
            stamped(plain, folder, variant=variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
        for patch in ("0", "1"):
            wheel(folder.with_name("engines"), f"engine-{version}.{patch}-py3-none-any.whl", {"engine.py": ""})
    return folder


def laid_out(wheels: Path, out: Path, url: str = URL, *, by_hardware: bool = False, by_installed: bool = False) -> Path:
    """The folder of the layout that *wheels* have in *out*."""
    publish([wheels], out, layouts=[Redirect(url, by_hardware=by_hardware, by_installed=by_installed)])
    return out / "redirect"


def unpacked(laid: Path) -> Path:
    """The folder that the one sdist in *laid* holds."""
    sdist = next(laid.glob("*.tar.gz"))
    (folder := laid.with_name("unpacked")).mkdir(exist_ok=True)
    subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
    return folder / sdist.name.removesuffix(".tar.gz")


def interpreters() -> dict[str, Path]:
    """A Python of each version that is here, from 3.9 on, by its tag: ``cp311``."""
    beside = sorted(Path(sys.base_prefix).parent.glob("*3.*/bin/python3"))
    found = {tuple(map(int, path.parents[1].name.split(".")[:2])): path for path in beside}
    here = {sys.version_info[:2]: Path(sys.executable)}
    return {f"cp3{minor}": path for (_, minor), path in sorted((found or here).items()) if minor >= 9}


def environment(cache: Path, **more: str) -> dict[str, str]:
    """What an installer is started with: nothing of ours but *more*, and its cache in *cache*."""
    ours = ("UV_", "PIP_", "NV_", "VBUILD_", "REQUESTS_", "SSL_", "HTTP", "NO_PROXY", "http", "no_proxy")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_CACHE_DIR": str(cache / "pip"), "UV_CACHE_DIR": str(cache / "uv")}
    return {**clean, **own, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_CONFIG": "1", **more}


def virtual(folder: Path) -> Path:
    """The interpreter of a new, empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def ran(command: list[str | Path], cache: Path, prefix: tuple[str, ...] = (), **more: str) -> str:
    """What *command* says, on both channels, where it succeeds; *more* are variables."""
    run = subprocess.run(
        [*prefix, *command], capture_output=True, text=True, check=False, env=environment(cache, **more)
    )
    assert not run.returncode, run.stderr
    return run.stdout + run.stderr


def refusal(command: list[str | Path], cache: Path, **more: str) -> str:
    """What *command* says where it fails, in one line: uv breaks lines to fit the window."""
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(cache, **more))
    assert run.returncode
    return " ".join((run.stdout + run.stderr).split())


def pip(python: Path, *words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--python", python, *words]


def uv(python: Path, *words: str | Path) -> list[str | Path]:
    return [UV, "pip", *words, "--python", python]


def label(python: Path) -> str:
    """The variant of demo that *python* has; ``plain`` or a label."""
    found = "import demo, pathlib; print(*pathlib.Path(demo.__file__).parents[1].glob('demo-*/variant.json'))"
    path = subprocess.run([python, "-c", found], capture_output=True, text=True, check=True).stdout.strip()
    return next((word for word in ("x86_64_v4", "x86_64_v3") if path and word in Path(path).read_text()), "plain")


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, folder: Path, asked: list[tuple[str, str]]) -> None:
        self.asked = asked
        super().__init__(*args, directory=str(folder))

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


@contextmanager
def served(folder: Path, certificate: Path | None = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a server of *folder*, and what it was asked for with which login; TLS with a *certificate*."""
    asked: list[tuple[str, str]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, folder=folder, asked=asked)) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who does not trust us hangs up
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@contextmanager
def redirected(target: str) -> Iterator[str]:
    """The address of a server that sends whoever asks on to *target*, with a path of its own."""

    class _Elsewhere(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{target}{self.path}")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def dripping() -> Iterator[str]:
    """The address of a server that answers with a byte now and then, and comes to no end."""

    class _Dripping(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # who has seen enough hangs up
                while True:
                    self.wfile.write(b" ")
                    time.sleep(0.05)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), _Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def self_signed(folder: Path) -> Path:
    """The certificate of a server on 127.0.0.1 that nobody else vouches for; its key is beside it."""
    certificate = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(certificate.with_suffix(".key"))]
    subprocess.run([*command, "-out", str(certificate)], check=True, capture_output=True)
    return certificate


def closed() -> str:
    """An address on this machine where nobody answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        return f"http://127.0.0.1:{server.server_port}"
