"""``vbuild select --run-plugins`` as a user runs it, and every command that runs no plugin."""

import ast
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.plugins import HONEST, PluginWorkdir, plugin, release
from vbuild.files.hashing import sha256_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workdir(tmp_path: Path) -> PluginWorkdir:
    return PluginWorkdir.at(tmp_path)


def test_the_result_says_which_plugin_said_what(workdir: PluginWorkdir) -> None:
    own = plugin(workdir.packages)
    ran = workdir.select()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "demo-1.0-py3-none-any-k1.whl",
        "  1. demo-1.0-py3-none-any-k1.whl",
        "     toaster :: arch :: k1 is number 2 of 2 that the machine supports",
        "  2. demo-1.0-py3-none-any.whl",
        "     no variant: after every variant that fits",
        "  3. demo-1.0-py3-none-any-k9.whl",
        "     toaster :: arch :: k9 is not supported: the machine has k2, k1",
        "plugin of toaster: toaster-provider 1.5 says that this machine supports arch k2 > k1; board b.1",
        f"     toaster_provider-1.5-py3-none-any.whl from {own.as_uri()}, sha256 {sha256_of(own)}",
    ]


@pytest.mark.nightly
def test_json_says_it_too_and_a_machine_file_remembers_it(workdir: PluginWorkdir, tmp_path: Path) -> None:
    own, file = plugin(workdir.packages), tmp_path / "machine.toml"
    told = json.loads(workdir.select("--json", "--write-machine", file).stdout)
    assert told["wheel"] == "demo-1.0-py3-none-any-k1.whl"
    assert told["plugins"] == [
        {
            "namespace": "toaster",
            "plugin": "toaster_provider.plugin:Plugin",
            "packages": [
                {
                    "name": "toaster-provider",
                    "version": "1.5",
                    "wheel": own.name,
                    "sha256": sha256_of(own),
                    "url": own.as_uri(),
                }
            ],
            "features": [{"name": "arch", "values": ["k2", "k1"]}, {"name": "board", "values": ["b.1"]}],
        }
    ]
    assert file.read_text().startswith("# plugin of toaster: toaster-provider 1.5 says that this machine supports arch")
    again = workdir.vbuild("select", "demo", "-f", workdir.dist, "--machine", file, "--json")
    assert json.loads(again.stdout)["wheel"] == "demo-1.0-py3-none-any-k1.whl"


def test_a_plugin_that_knows_no_such_hardware_leaves_the_plain_wheel(workdir: PluginWorkdir, tmp_path: Path) -> None:
    plugin(workdir.packages, "return []")
    told = workdir.select("--write-machine", tmp_path / "machine.toml").stdout.splitlines()
    assert told[0] == "demo-1.0-py3-none-any.whl"
    assert "     toaster :: arch :: k1 is not supported: the machine has no toaster :: arch" in told
    assert "plugin of toaster: toaster-provider 1.5 says that this machine supports nothing" in told
    again = workdir.vbuild("select", "demo", "-f", workdir.dist, "--machine", tmp_path / "machine.toml")
    assert again.stdout.splitlines() == told[:-2]


@pytest.mark.nightly
def test_where_nothing_fits_the_refusal_says_what_the_plugin_said(workdir: PluginWorkdir) -> None:
    plugin(workdir.packages, "return []")
    (workdir.dist / "demo-1.0-py3-none-any.whl").unlink()
    ran = workdir.select()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "vbuild: demo: none of 2 wheels fits this machine: "
        "demo-1.0-py3-none-any-k1.whl: toaster :: arch :: k1 is not supported: the machine has no toaster :: arch; "
        "demo-1.0-py3-none-any-k9.whl: toaster :: arch :: k9 is not supported: the machine has no toaster :: arch; "
        "toaster: toaster-provider 1.5 says that this machine supports nothing\n"
    )


@pytest.mark.nightly
def test_a_plugin_that_does_not_answer_is_one_line_and_no_result(workdir: PluginWorkdir, tmp_path: Path) -> None:
    own = plugin(workdir.packages, "print('\\x1b[2Jtoast'); import time; time.sleep(600)")
    ran = workdir.select("--json", "--plugin-timeout", 0.5, "--write-machine", tmp_path / "machine.toml")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"vbuild: plugin of toaster: toaster-provider>=1: toaster-provider 1.5 (sha256 {sha256_of(own)}): "
        "took more than 0.5 s, and was ended\n"
    )
    assert not (tmp_path / "machine.toml").exists()


@pytest.mark.nightly
def test_a_plugin_that_cannot_be_had_is_one_line_and_no_result(workdir: PluginWorkdir) -> None:
    ran = workdir.select()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("vbuild: plugin of toaster: toaster-provider>=1: cannot be installed: uv: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("demo", "-f", "dist", "--plugin-timeout", "3"),
            "--plugin-timeout goes with --run-plugins only",
        ),
        (
            ("--run-plugins", "--write-machine", "machine.toml"),
            "--run-plugins runs what a release of wheels names; expected the NAME of a project",
        ),
        (
            ("oci:images", "--run-plugins"),
            "--run-plugins runs what a release of wheels names; expected the NAME of a project",
        ),
        (
            ("demo", "-f", "dist", "--run-plugins", "--machine", "machine.toml"),
            "--run-plugins asks this machine, not another; expected no --machine",
        ),
    ],
    ids=["no plugins", "no release", "an image", "another machine"],
)
def test_options_that_do_not_go_together_are_usage_mistakes(
    workdir: PluginWorkdir, arguments: tuple[str, ...], message: str
) -> None:
    ran = workdir.vbuild("select", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"vbuild select: {message}\n'vbuild select --help' explains its options.\n"


COMMANDS = (
    ("select", "demo", "-f", "{dist}"),
    ("select", "demo", "-f", "{dist}", "--json", "--write-machine", "{home}/machine.toml"),
    ("select", "--doctor"),
    ("index", "{dist}", "--simple", "{home}/site"),
    ("inspect", "{dist}/demo-1.0-py3-none-any-k1.whl"),
    ("verify", "{dist}/demo-1.0-py3-none-any-k1.whl"),
    ("verify", "{dist}/demo-1.0-py3-none-any-k1.whl", "--run"),
    ("check", "{dist}"),
    (
        "stamp",
        "{dist}/demo-1.0-py3-none-any.whl",
        "-p",
        "toaster :: arch :: k3",
        "--label",
        "k3",
        "-o",
        "{home}/stamped",
    ),
    ("publish", "{dist}", "--layout", "variants", "-o", "{home}/published"),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:1] + command[2:][-1:]) for command in COMMANDS])
def test_unasked_nothing_runs_or_installs_a_plugin(workdir: PluginWorkdir, command: tuple[str, ...]) -> None:
    """The plugin is at hand, and would leave a mark; neither it nor what runs it is loaded, and no uv is started."""
    marker = workdir.home / "ran"
    plugin(workdir.packages, f"open({str(marker)!r}, 'w').close()\n{HONEST}")
    arguments = [part.format(dist=workdir.dist, home=workdir.home) for part in command]
    watched = (
        "import sys, vbuild.cli.main\n"
        "started = []\n"
        "def hear(event, given):\n"
        "    if event == 'subprocess.Popen': started.append(str(given[1]))\n"
        "sys.addaudithook(hear)\n"
        "try: vbuild.cli.main.main(sys.argv[1:])\n"
        "finally: print('PLUGINS', [n for n in sys.modules if n.startswith('vbuild.variants.plugin')],"
        " [c for c in started if 'toaster' in c])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", watched, *arguments],
        env=workdir.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.stdout.splitlines()[-1] == "PLUGINS [] []", ran.stderr
    assert ran.returncode in {0, 1}
    assert not marker.exists()
    assert "toaster_provider" not in ran.stdout + ran.stderr


def test_unasked_a_variant_of_a_plugin_is_not_chosen_and_select_says_so(workdir: PluginWorkdir) -> None:
    plugin(workdir.packages)
    told = workdir.vbuild("select", "demo", "-f", workdir.dist).stdout.splitlines()
    assert told[0] == "demo-1.0-py3-none-any.whl"
    assert (
        told[-1]
        == "     toaster :: arch :: k9 is not supported: vbuild has no answer for its provider, toaster-provider>=1"
    )


def test_one_function_alone_leads_to_the_plugins() -> None:
    """Every import of the room from outside it, by file and function."""
    found = set()
    for file in (ROOT / "vbuild").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "vbuild.variants.plugins" not in text:
            continue
        found.add(file.name)
        for function in [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]:
            imports = [ast.unparse(node) for node in function.body if isinstance(node, ast.ImportFrom)]
            if any("vbuild.variants.plugins" in line for line in imports):
                found.add(f"{file.name}: {function.name}")
    assert found == {"arguments.py", "arguments.py: plugins_of"}


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_plugin_does_not_outlive_vbuild(workdir: PluginWorkdir, number: signal.Signals) -> None:
    begun = workdir.home / "begun"
    child = f"if os.fork() == 0: os.setsid()\nopen({str(begun)!r} + str(os.getpid()), 'w').close()\ntime.sleep(600)"
    plugin(workdir.packages, f"import time\n{child}")
    command = [sys.executable, "-m", "vbuild", "select", "demo", "-f", str(workdir.dist), "--run-plugins"]
    with subprocess.Popen(command, env=workdir.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as vbuild:
        wait_for(lambda: len(list(workdir.home.glob("begun*"))) == 2)
        vbuild.send_signal(number)
        vbuild.communicate(timeout=30)
    assert vbuild.returncode != 0
    processes = [int(path.name.removeprefix("begun")) for path in workdir.home.glob("begun*")]
    wait_for(lambda: not any(map(is_running, processes)))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.nightly
def test_each_release_is_asked_about_until_one_fits(workdir: PluginWorkdir) -> None:
    plugin(workdir.packages)
    release(workdir.dist)
    (workdir.dist / "demo-2.0-cp27-none-any.whl").write_bytes((workdir.dist / "demo-1.0-py3-none-any.whl").read_bytes())
    told = json.loads(workdir.select("--json").stdout)
    assert (told["version"], len(told["plugins"])) == ("1.0", 1)
    assert list(workdir.home.iterdir()) == []
