"""Plugins in real wheels that do all but answer: each is installed, run and refused; what is held, and what is not."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from tests.factories.plugins import HONEST, plugin, release, toaster
from tests.factories.variants import machine
from tests.factories.wheels import wheel
from vbuild.errors import VariantError
from vbuild.hardware.machine import Features
from vbuild.index_client.configuration import Indexes
from vbuild.variants import plugins as running
from vbuild.variants.document import Document
from vbuild.variants.metadata import VariantProvider
from vbuild.variants.plugins import Plugins


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are made in the test's own folder, so that what runs there can be told from other tests'."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def said(folder: Path, *, timeout: float = 10.0, provider: VariantProvider | None = None) -> Features:
    """What the plugin among the wheels in *folder* says."""
    dist = release(folder / "dist", provider)
    document = Document.parse((dist / "demo-1.0-variants.json").read_bytes())
    indexes = Indexes(no_index=True, find_links=(folder.as_uri(),))
    (found,) = Plugins(timeout, lambda: indexes)(document, machine())
    return found.features


def refusal(folder: Path, *, timeout: float = 10.0, provider: VariantProvider | None = None) -> str:
    """Why there is no answer, without the plugin's name, version and hash."""
    with pytest.raises(VariantError) as refused:
        said(folder, timeout=timeout, provider=provider)
    assert not left_running(folder)
    assert list(folder.glob("vbuild-plugin-*")) == []
    place, _, what = str(refused.value).partition("): ")
    assert place.startswith("plugin of toaster: toaster-provider>=1: toaster-provider 1.5 (sha256 ")
    return what


def left_running(folder: Path) -> bool:
    """Whether a process of an environment in *folder* goes on: one that was killed may take a moment to end."""
    deadline = time.monotonic() + 3
    while found := [path for path in Path("/proc").glob("[0-9]*/cmdline") if names(path, folder)]:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.02)
    return bool(found)


def names(path: Path, folder: Path) -> bool:
    try:
        return f"{folder}/vbuild-plugin-".encode() in path.read_bytes()
    except OSError:
        return False


def test_an_honest_plugin_is_heard(tmp_path: Path) -> None:
    plugin(tmp_path)
    assert said(tmp_path) == (("arch", ("k2", "k1")), ("board", ("b.1",)))


HOSTILE: dict[str, tuple[str, str]] = {
    "raises": ('raise ValueError("no toaster")', "failed with status 1: ValueError: no toaster"),
    "raises at the terminal": (
        'raise ValueError("one\\n\\x1b[2J" + "x" * 999)',
        f"failed with status 1: \x1b[2J{'x' * 196}",
    ),
    "exits 0 without an answer": ("os._exit(0)", "ended without an answer"),
    "prints": ("print('toast'); return []", "printed 'toast\\n'; expected nothing on stdout"),
    "prints from a child": ("os.system('echo toast'); return []", "printed 'toast\\n'; expected nothing on stdout"),
    "logs for ever": ("while True: os.write(2, bytes(65536))", "took more than 0.5 s, and was ended"),
    "hangs, deaf": (
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)",
        "took more than 0.5 s, and was ended",
    ),
    "hangs at its end": (
        "import atexit, time; atexit.register(time.sleep, 600); return []",
        "took more than 0.5 s, and was ended",
    ),
    "is slow with children": (
        "import time\nif os.fork() == 0: os.setsid(); os.fork()\ntime.sleep(600)",
        "took more than 0.5 s, and was ended",
    ),
    "kills itself": ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    "kills its guard": (
        "import time; os.kill(os.getppid(), 9); time.sleep(600)",
        "the process that watches over it was ended by SIGKILL; what it has started may go on",
    ),
    "leaves a daemon": (
        "import time\nif os.fork() == 0:\n    os.setsid(); os.fork() or time.sleep(600)\n    os._exit(0)\nreturn []",
        "left processes running behind it, which were ended; expected none",
    ),
    "answers hugely": (
        "return [Config(f'a{n}', ['x' * 100]) for n in range(20000)]",
        "answers more than 1048576 bytes",
    ),
    "takes much memory": ("x = bytearray(1 << 33); return []", "failed with status 1: MemoryError"),
    "takes much disk": (
        "with open('toast', 'wb') as file:\n    for _ in range(64): file.write(bytes(1 << 20))",
        "failed with status 1: OSError: [Errno 27] File too large",
    ),
    "opens many files": (
        "files = [open(os.devnull) for _ in range(1000)]; return []",
        "failed with status 1: OSError: [Errno 24] Too many open files: '/dev/null'",
    ),
    "has no such object": ("pass", "failed with status 1: TypeError: 'NoneType' object is not iterable"),
    "answers a set": (
        "return [Config('arch', {'k1'})]",
        "failed with status 1: TypeError: Object of type set is not JSON serializable",
    ),
    "answers an invalid name": (
        "return [Config('Arch', ['k1'])]",
        "its answer: feature 'Arch' may only hold a-z, 0-9 and _ (PEP 825, variant properties)",
    ),
    "answers twice": (
        "os.write(int(sys.argv[1]), b'{}'); return []",
        "its answer: not JSON: Extra data at line 1, column 3",
    ),
    "answers by itself for another": (
        'os.write(int(sys.argv[1]), b\'{"namespace": "x86_64", "features": []}\'); os._exit(0)',
        "its answer: namespace: found 'x86_64'; expected 'toaster', which it was asked for",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("body", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_plugin_that_does_anything_else_is_refused_and_leaves_nothing_running(
    tmp_path: Path, body: str, why: str
) -> None:
    plugin(tmp_path, body)
    begun = time.monotonic()
    assert refusal(tmp_path, timeout=0.5 if "took" in why else 10.0) == why
    assert time.monotonic() - begun < 60


@pytest.mark.nightly
def test_a_plugin_that_breeds_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child a session of its own; few of them, as no limit of the system would hold more where root runs this."""
    monkeypatch.setitem(running._MOST, "processes", 3)  # noqa: SLF001 - else this would start 65
    plugin(
        tmp_path,
        "import time\nfor _ in range(4):\n    if os.fork() == 0: os.setsid(); time.sleep(600)\ntime.sleep(600)",
    )
    assert refusal(tmp_path) == "started more than 3 processes, which were ended"


def test_a_plugin_that_declares_another_namespace_is_refused(tmp_path: Path) -> None:
    plugin(tmp_path, attributes='    namespace = "nvidia"')
    what = "its answer: namespace: found 'nvidia'; expected 'toaster', which it was asked for"
    assert refusal(tmp_path) == what


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("toaster_provider.oven:Plugin", "ModuleNotFoundError: No module named 'toaster_provider.oven'"),
        ("toaster_provider.plugin:Oven", "AttributeError: module 'toaster_provider.plugin' has no attribute 'Oven'"),
        ("os:path", "AttributeError: module 'posixpath' has no attribute 'get_supported_configs'"),
    ],
)
def test_a_plugin_that_is_not_there_is_refused(tmp_path: Path, endpoint: str, why: str) -> None:
    plugin(tmp_path)
    provider = VariantProvider(requires=("toaster-provider>=1",), plugin_api=endpoint)
    assert refusal(tmp_path, provider=provider) == f"failed with status 1: {why}"


@pytest.mark.nightly
def test_a_module_that_stops_its_guard_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vbuild.variants.plugins._GRACE", 2)
    body = "import time\nguard = os.getppid()\nif os.fork() == 0: os.setsid(); time.sleep(600)\n"
    plugin(tmp_path, f"{body}os.kill(guard, 19); time.sleep(600)")
    assert refusal(tmp_path, timeout=0.5) == "stopped the process that watches over it"


# what a plugin sees, told by a name: the one feature that it says the machine supports
SEEN = "return [Config('saw_' + '_'.join(sorted(found)), ['x'])]"


def seen(folder: Path, body: str) -> set[str]:
    """The names in what the plugin puts into the list ``found``."""
    plugin(folder, f"{body}\n{SEEN}")
    ((name, _),) = said(folder)
    return set(name.removeprefix("saw_").split("_")) - {""}


def test_a_plugin_sees_no_secret_among_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "PYTHONPATH", "LD_PRELOAD", "UV_INDEX_HOME_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TOASTER_VARIANT_PROVIDER_FORCE_ARCH", "k1")
    body = "found = [name.replace('_', '').lower() for name in os.environ]"
    given = {"toastervariantproviderforcearch", "path", "lang", "home", "tmpdir"}
    found = seen(tmp_path, body) - {"ldlibrarypath", "lcctype"}
    assert found == given


def test_a_plugin_inherits_no_descriptor_and_reads_no_input(tmp_path: Path) -> None:
    with Path(os.devnull).open() as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - os has no other spelling
        body = (
            "assert sys.stdin.read() == ''\n"
            "known = {'0', '1', '2', sys.argv[1]}\n"
            "found = [n for n in os.listdir('/proc/self/fd') if n not in known]\n"
            "found = [n for n in found if os.path.exists(f'/proc/self/fd/{n}')]"
        )
        assert seen(tmp_path, body) == set()


def test_a_plugin_leads_a_session_of_its_own_in_an_empty_folder(tmp_path: Path) -> None:
    body = (
        "found = ['leader'] if os.getsid(0) == os.getpid() else []\n"
        "found += os.listdir() + os.listdir(os.path.expanduser('~'))\n"
        "found += ['isolated'] if sys.flags.isolated else []"
    )
    assert seen(tmp_path, body) == {"leader", "isolated"}


def test_what_a_plugin_writes_to_its_home_is_gone_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    plugin(tmp_path, "with open(os.path.expanduser('~/toast'), 'w') as file: file.write('burnt')\n" + HONEST)
    assert said(tmp_path)
    assert list(home.rglob("toast")) == []


def test_a_plugin_is_the_user_and_no_sandbox_holds_it(tmp_path: Path) -> None:
    """Not contained, and README says so: what the user may write, the plugin may; and it has the network."""
    body = (
        f"open({str(tmp_path / 'toast')!r}, 'w').close()\n"
        "import socket; server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
    )
    plugin(tmp_path, body + HONEST)
    assert said(tmp_path)
    assert (tmp_path / "toast").exists()


def test_a_plugin_answers_once_in_a_command_for_all_releases_that_are_looked_at(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    plugin(tmp_path, f"open({str(ran)!r}, 'a').write('1')\nreturn [Config('arch', ['k' + open({str(ran)!r}).read()])]")
    document = Document.parse((release(tmp_path / "dist") / "demo-1.0-variants.json").read_bytes())
    plugins = Plugins(indexes=lambda: Indexes(no_index=True, find_links=(tmp_path.as_uri(),)))
    first = plugins(document, machine())
    assert plugins.telling(print)(document, machine()) == first
    assert [found.features for found in first] == [(("arch", ("k1",)),)]
    assert ran.read_text() == "1"


def test_an_optional_plugin_is_not_run(tmp_path: Path) -> None:
    plugin(tmp_path, "raise ValueError")
    dist = release(tmp_path / "dist", toaster("toaster-provider>=1", optional=True))
    document = Document.parse((dist / "demo-1.0-variants.json").read_bytes())
    assert Plugins()(document, machine()) == ()


def test_a_plugin_cannot_answer_where_the_machine_or_vbuild_does(tmp_path: Path) -> None:
    document = Document.parse((release(tmp_path / "dist") / "demo-1.0-variants.json").read_bytes())
    assert Plugins()(document, machine(supported={"toaster": {"arch": ("k1",)}})) == ()


def test_code_that_runs_at_the_start_of_python_is_held_to_the_same(tmp_path: Path) -> None:
    plugin(tmp_path)
    wheel(tmp_path, "oven-1.0-py3-none-any.whl", {"oven.pth": "import sys; sys.stdout.write('hot')"})
    provider = toaster("toaster-provider>=1", "oven")
    with pytest.raises(VariantError, match=r"printed '(hot)+'; expected nothing on stdout$"):
        said(tmp_path, provider=provider)
