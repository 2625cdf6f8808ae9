"""The shared cache: complete entries or none, made once, made again where they are damaged."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.factories.sources import sha256
from tests.factories.toolkits import CORE, VERSION, core, laid_out, places
from tests.factories.wheels import dist_info_of, everything, record_of, wheel
from vbuild.errors import BuildError, FetchError, WheelError
from vbuild.files.hashing import unseal
from vbuild.index_client.configuration import Indexes
from vbuild.toolchain import toolkit_cache as integrity
from vbuild.toolchain.toolkit import ToolkitPin, identity_of
from vbuild.toolchain.toolkit_cache import SEEN, STAMP, ToolkitCache, component_name, is_complete

NOWHERE = Indexes(no_index=True)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


def _entries(store: Path) -> list[str]:
    """What is in the store, locks excepted."""
    return sorted(path.relative_to(store).as_posix() for path in _made(store))


def _made(store: Path) -> Iterator[Path]:
    for place in (store, store / "components"):
        yield from (path for path in place.glob("*") if path.name not in {".locks", "components", "pins"})


def test_a_toolkit_is_fetched_once_and_then_taken_from_the_cache(tmp_path: Path, wheels: Path) -> None:
    pins = core(wheels)
    first = laid_out(tmp_path / "store", pins, places(wheels))
    assert first.is_new
    assert first.pins == pins
    assert first.root.name == f"cuda-13.0-{first.identity[:16]}"
    assert subprocess.run([first.nvcc], capture_output=True, check=True).stdout == b"nvcc\n"

    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        again = laid_out(tmp_path / "store", pins, NOWHERE)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.05
    assert not again.is_new
    assert (again.root, again.identity) == (first.root, first.identity)


def test_programs_may_be_run_and_nothing_may_be_changed(tmp_path: Path, wheels: Path) -> None:
    root = laid_out(tmp_path / "store", core(wheels), places(wheels)).root
    modes = {path: (root / path).stat().st_mode & 0o777 for path in ("bin/nvcc", "bin/ptxas", "bin/nvcc.profile")}
    assert modes == {"bin/nvcc": 0o555, "bin/ptxas": 0o555, "bin/nvcc.profile": 0o444}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["truncated", "missing", "no stamp", "no JSON", "a list", "no keys"])
def test_a_damaged_toolkit_is_noticed_and_made_again(tmp_path: Path, wheels: Path, how: str) -> None:
    pins = core(wheels)
    root = laid_out(tmp_path / "store", pins, places(wheels)).root
    library = root / "lib/libcudart.so.13"
    match how:
        case "truncated":
            # the component that it is a hard link to is damaged with it
            library.chmod(0o644)
            library.write_bytes(library.read_bytes()[:-1])
        case "missing":
            (root / "include/cuda_runtime_api.h").unlink()
        case "no stamp":
            (root / STAMP).unlink()
        case _:
            (root / STAMP).write_text({"no JSON": "{", "a list": "[]", "no keys": '{"large": {}}'}[how])
    again = laid_out(tmp_path / "store", pins, places(wheels))
    assert again.is_new
    assert library.stat().st_size == len(CORE["nvidia-cuda-runtime"]["nvidia/cu13/lib/libcudart.so.13"])
    assert is_complete(root)
    assert len(_entries(tmp_path / "store")) == len(pins) + 1


def test_what_a_disk_has_lost_by_itself_is_noticed_within_a_week(tmp_path: Path, wheels: Path) -> None:
    root = laid_out(tmp_path / "store", core(wheels), places(wheels)).root
    library, sound = root / "lib/libcudart.so.13", (root / "lib/libcudart.so.13").read_bytes()
    library.chmod(0o644)
    # as the file system sees it, nothing has happened since all was hashed: with the sound bytes, that is so
    library.write_bytes(b"\x7e" + sound[1:])
    contents = json.loads(unseal((root / STAMP).read_bytes()))["contents"]
    (root / SEEN).write_text(integrity._state(root, contents))  # noqa: SLF001 - what the file system says
    assert is_complete(root)
    week = time.time() - integrity.AGAIN - 1
    os.utime(root / SEEN, (week, week))
    assert not is_complete(root)


def test_what_somebody_put_beside_is_no_damage(tmp_path: Path, wheels: Path) -> None:
    pins = core(wheels)
    (laid_out(tmp_path / "store", pins, places(wheels)).root / "notes.txt").write_text("mine")
    assert not laid_out(tmp_path / "store", pins, NOWHERE).is_new


LAYING_OUT = """
import sys
from pathlib import Path
from tests.factories.toolkits import laid_out, places
from vbuild.toolchain.toolkit import ToolkitPin

store, wheels = map(Path, sys.argv[1:])
pins = tuple(ToolkitPin(*line.split()) for line in sys.stdin)
print(laid_out(store, pins, places(wheels)).is_new)
"""


def _process(
    store: Path, wheels: Path, pins: tuple[ToolkitPin, ...], *, script: str = LAYING_OUT
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, str(store), str(wheels)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin
    process.stdin.write("".join(f"{pin.project} {pin.version} {pin.file} {pin.sha256}\n" for pin in pins))
    process.stdin.close()
    process.stdin = None
    return process


@pytest.mark.nightly
def test_processes_at_once_lay_out_one_toolkit_and_all_get_it(tmp_path: Path, wheels: Path) -> None:
    pins = core(wheels)
    processes = [_process(tmp_path / "store", wheels, pins) for _ in range(4)]
    said = [process.communicate(timeout=60) for process in processes]
    assert sorted(out for out, _ in said) == ["False\n"] * 3 + ["True\n"], said
    assert len(_entries(tmp_path / "store")) == len(pins) + 1


def test_what_a_killed_process_left_is_taken_away(tmp_path: Path, wheels: Path) -> None:
    pins = core(wheels)
    identity = identity_of(VERSION, pins)
    part = tmp_path / "store" / f".cuda-13.0-{identity[:16]}.part"
    (part / "bin").mkdir(parents=True)
    (part / "bin/nvcc").write_text("half")
    assert laid_out(tmp_path / "store", pins, places(wheels)).is_new
    assert not part.exists()


class _Slow(BaseHTTPRequestHandler):
    """Lists one wheel of every project, which comes at a kilobyte at a time and has no end."""

    def do_GET(self) -> None:
        project = self.path.strip("/").replace("-", "_")
        page = f'<a href="{project}-13.0.1-py3-none-any.whl">x</a>'.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        is_wheel = self.path.endswith(".whl")
        self.send_header("Content-Length", str(1 << 40 if is_wheel else len(page)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(b"" if is_wheel else page)
            while is_wheel:
                self.wfile.write(bytes(1000))
                time.sleep(0.02)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


@pytest.fixture
def slow() -> Iterator[str]:
    """The URL of an index whose downloads never end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.nightly
def test_an_error_in_one_download_ends_the_others_at_once(slow: str, tmp_path: Path) -> None:
    endless = ToolkitPin("a-slow", "13.0.1", "a_slow-13.0.1-py3-none-any.whl", "0" * 64)
    bad = ToolkitPin("b-bad", "13.0.1", "b_bad-13.0.2-py3-none-any.whl", "0" * 64)
    begin = time.monotonic()
    with pytest.raises(FetchError, match=rf"^b-bad==13\.0\.1: no {bad.file} on {slow}$"):
        laid_out(tmp_path / "store", (endless, bad), Indexes(index_url=slow))
    assert time.monotonic() - begin < 3
    assert not list(tmp_path.glob("store/components/*"))


@pytest.mark.nightly
def test_an_interruption_ends_downloads_and_waiting_for_other_processes_at_once(slow: str, tmp_path: Path) -> None:
    endless, waiting = (
        ToolkitPin(name, "13.0.1", f"{name}-13.0.1-py3-none-any.whl", "0" * 64) for name in ("one", "two")
    )
    script = LAYING_OUT.replace("places(wheels)", f"Indexes(index_url={slow!r})")
    script = f"from vbuild.index_client.configuration import Indexes\n{script}"
    store = ToolkitCache.at(tmp_path / "store")
    with store.locked(component_name(waiting)):
        process = _process(tmp_path / "store", tmp_path, (endless, waiting), script=script)
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size for path in tmp_path.glob("store/components/*.fetched/*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - begin < 3
    assert said.endswith("KeyboardInterrupt\n")
    assert not list(tmp_path.glob("store/components/*"))


def test_unpacking_is_given_up_as_well(tmp_path: Path, wheels: Path) -> None:
    pin, stop = core(wheels)[0], Event()

    def told(step: str) -> None:
        if step == f"unpacking {pin}":
            stop.set()

    with pytest.raises(BuildError, match=f"^{pin.file}: stopped$"):
        ToolkitCache.at(tmp_path / "store").component(pin, places=lambda: places(wheels), on_progress=told, stop=stop)
    assert _entries(tmp_path / "store") == []


def test_a_wheel_whose_record_does_not_fit_is_refused_and_nothing_is_left(tmp_path: Path, wheels: Path) -> None:
    cicc, name = "nvidia/cu13/nvvm/bin/cicc", "nvidia_nvvm-13.0.1-py3-none-any.whl"
    files = everything(name, {cicc: "cicc"})
    record = record_of({**files, cicc: b"CICC"}, dist_info_of(name))
    pin = ToolkitPin("nvidia-nvvm", "13.0.1", name, sha256(wheel(wheels, name, files, record=record)))
    with pytest.raises(WheelError) as refused:
        ToolkitCache.at(tmp_path / "store").component(pin, places=lambda: places(wheels))
    assert str(refused.value) == f"{name}: {cicc}: does not match its hash in RECORD"
    assert _entries(tmp_path / "store") == []


@pytest.mark.nightly
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, wheels: Path) -> None:
    pins = core(wheels)
    largest = max(path.stat().st_size for path in wheels.iterdir())
    # room for each wheel, but not for what is in the largest
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {resource.RLIM_INFINITY}))\n"
    caught = LAYING_OUT.replace("print(", "from vbuild.errors import VbuildError\ntry: print(")
    program = f"{limit}{caught}except VbuildError as error: sys.exit(str(error))\n"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    ran = subprocess.run(
        [sys.executable, "-B", "-c", program, str(tmp_path / "store"), str(wheels)],
        input="".join(f"{pin.project} {pin.version} {pin.file} {pin.sha256}\n" for pin in pins),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    advice = "point XDG_CACHE_HOME at a folder that can be"
    assert ran.stderr == f"{tmp_path}/store/components: cannot be written: File too large; {advice}\n"
    assert not [entry for entry in _entries(tmp_path / "store") if "runtime" in entry or "cuda-13.0" in entry]


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(BuildError) as refused:
        laid_out(tmp_path / "store", core(wheels), places(wheels))
    why = "cannot be written: Not a directory; point XDG_CACHE_HOME at a folder that can be"
    assert str(refused.value) == f"{tmp_path}/store/.locks: {why}"
