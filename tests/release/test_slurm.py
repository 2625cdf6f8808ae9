"""The script for Slurm: sound to shellcheck, each task one part, and carried out by a real cluster where one is up."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.factories.clusters import cluster, needs_slurm
from tests.factories.emitted_recipes import recipes_of_every_kind, values, written_recipe
from tests.factories.projects import KERNEL, c_project, tree
from tests.factories.tools import needs
from tests.factories.workflows import environment, words
from vbuild.recipe.model import Recipe
from vbuild.release.emit import CiSystem, emitted
from vbuild.release.emit_jobs import parts

# the folder of a submission; the script makes one
WORK = ".vbuild-slurm/a $b"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a blank in its name."""
    here = tmp_path / "my work"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def task(script: str, number: int, *, first: int = 0) -> list[list[str]]:
    """What task *number* of the array that begins with part *first* starts."""
    return words(
        f"set -- part '{WORK}' {first}\n{script}",
        SLURM_ARRAY_TASK_ID=str(number),
        PATH=os.environ["PATH"],
        HOME="/root",
    )


def test_each_task_runs_exactly_the_command_of_its_part(folder: Path) -> None:
    for source in recipes_of_every_kind(folder)[:2]:
        found = parts(Recipe.load(source))
        script = emitted(source, CiSystem.SLURM)
        called = [task(script, number) for number in range(len(found))]
        assert called == [[[*part.command(str(source), f"{WORK}/parts")[1:]]] for part in found]


@pytest.mark.nightly
def test_tasks_of_a_later_array_go_on_where_the_one_before_ended(folder: Path) -> None:
    source = written_recipe(folder, values(1500))
    found, script = parts(Recipe.load(source)), emitted(source, CiSystem.SLURM)
    for number in (0, 498):
        assert task(script, number, first=1001) == [[*found[1001 + number].command("demo.toml", f"{WORK}/parts")[1:]]]
    with pytest.raises(subprocess.CalledProcessError) as failure:
        task(script, 499, first=1001)
    assert "no part 1500" in failure.value.stderr


def test_collecting_takes_all_parts(folder: Path) -> None:
    script = emitted(written_recipe(folder, values(3)), CiSystem.SLURM)
    (folder / WORK / "parts").mkdir(parents=True)
    called = words(f"set -- collect '{WORK}'\n{script}", PATH=os.environ["PATH"])
    assert called == [["collect", f"{WORK}/parts", "-o", "dist", "--recipe", "demo.toml"]]
    assert list((folder / WORK).iterdir()) == []


def test_what_could_not_be_collected_stays_where_it_is(folder: Path) -> None:
    script = emitted(written_recipe(folder, values(3)), CiSystem.SLURM)
    (folder / WORK / "parts").mkdir(parents=True)
    failing = f"vbuild() {{ return 1; }}\nset -- collect '{WORK}'\n{script}"
    ran = subprocess.run(["bash", "-c", failing], capture_output=True, check=False)
    assert ran.returncode == 1
    assert (folder / WORK / "parts").is_dir()


def submission(folder: Path, *options: str) -> list[str]:
    """The calls of sbatch by the script that is emitted with *options*, as a shell's words."""
    script = emitted(written_recipe(folder, values(3)), CiSystem.SLURM, options=options)
    (folder / "release.sh").write_text(script)
    told = 'sbatch() { printf "%s\\n" "$*" >> calls; echo 7; }; scontrol() { :; }; export -f sbatch scontrol'
    subprocess.run(
        ["bash", "-c", f"{told}; bash release.sh --qos=low"], env=environment(), capture_output=True, check=True
    )
    calls = (folder / "calls").read_text().splitlines()
    (folder / "calls").unlink()
    return calls


def test_nothing_is_submitted_with_the_vbuild_of_another_project(folder: Path) -> None:
    (folder / "release.sh").write_text(emitted(written_recipe(folder, values(3)), CiSystem.SLURM))
    other = "vbuild() { echo 'vbuild 1.2.3'; }; sbatch() { touch called; }; export -f vbuild sbatch; bash release.sh"
    ran = subprocess.run(["bash", "-c", other], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "vbuild is missing or another project's; expected vbuild-wheels\n")
    assert {path.name for path in folder.iterdir()} == {"demo.toml", "release.sh"}


def test_a_task_gets_the_processors_that_its_options_use(folder: Path) -> None:
    array, collect = submission(folder, "--fresh", "--jobs", "4", "--schema", "825/0.1.1")
    assert " --cpus-per-task=4 --qos=low --array=0-2 " in array
    assert "--cpus-per-task" not in collect
    array, _ = submission(folder, "--fresh")
    assert "--cpus-per-task" not in array


def test_each_submission_has_a_folder_of_its_own(folder: Path) -> None:
    places = set()
    for _ in range(2):
        array, collect = submission(folder)
        work = array.split()[-2]
        assert collect.split()[-1] == work
        assert f"--output={work}/logs/" in array
        places.add(work)
    assert {str(path) for path in Path(".vbuild-slurm").iterdir()} == places
    assert len(places) == 2


def test_a_script_that_is_piped_to_bash_says_that_it_is_submitted_as_a_file(folder: Path) -> None:
    script = emitted(written_recipe(folder, values(3)), CiSystem.SLURM)
    ran = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "this is submitted as a file: bash FILE [OPTIONS OF SBATCH]\n")


@pytest.mark.nightly
@needs("shellcheck")
def test_shellcheck_takes_what_is_emitted(folder: Path) -> None:
    for source in recipes_of_every_kind(folder):
        (folder / "release.sh").write_text(emitted(source, CiSystem.SLURM))
        ran = subprocess.run(
            ["shellcheck", "--severity=warning", "release.sh"], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stdout) == (0, "")


def submitted(folder: Path, variables: dict[str, str], *, times: int = 1) -> tuple[str, dict[str, str]]:
    """What the script beside *folder* said when it was submitted, and what each job said until all had ended."""
    submit = ["bash", "../my release.sh", "--time=10"]
    said = ""
    for _ in range(times):
        ran = subprocess.run(submit, env=variables, capture_output=True, text=True, check=True, timeout=60)
        said += "".join(line for line in ran.stdout.splitlines(keepends=True) if not line.startswith("logs: "))
    for _ in range(240):
        queue = subprocess.run(["squeue", "-h"], env=variables, capture_output=True, text=True, check=True)
        if not queue.stdout.strip():
            break
        time.sleep(0.5)
    logs = sorted(folder.glob(".vbuild-slurm/*/logs/*"), key=lambda log: log.name)
    return said, {log.name: log.read_text() for log in logs}


def project(folder: Path, levels: list[str], *, kernel: str = KERNEL) -> None:
    """A project in the working folder itself, its recipe beside it, and the script in the folder above."""
    c_project(folder, kernel=kernel)
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "."\n[matrix]\ncpu = {levels}\n'})
    (folder.parent / "my release.sh").write_text(emitted(Path("demo.toml"), CiSystem.SLURM))


@pytest.mark.nightly
@pytest.mark.network
@needs_slurm()
def test_a_cluster_carries_the_script_out_in_arrays_of_its_own_size(folder: Path, tmp_path: Path) -> None:
    project(folder, ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
    with cluster(tmp_path / "cluster", most=3) as found:
        said, logs = submitted(folder, {**environment(), **found})
    assert said == "builds: 1 2\nrelease: 3\n"
    assert list(logs) == ["1-0.log", "1-1.log", "1-2.log", "2-0.log", "collect-3.log"]
    assert len(list((folder / "dist").glob("*.whl"))) == 4, "\n".join(logs.values())
    assert (folder / "dist" / "demo-1.0-variants.json").is_file()
    assert list(folder.glob(".vbuild-slurm/*/parts")) == []


@pytest.mark.nightly
@pytest.mark.network
@needs_slurm()
def test_a_second_submission_leaves_the_parts_of_the_first(folder: Path, tmp_path: Path) -> None:
    project(folder, ["x86-64", "x86-64-v2", "x86-64-v3"])
    with cluster(tmp_path / "cluster") as found:
        said, logs = submitted(folder, {**environment(), **found}, times=2)
    assert said == "builds: 1\nrelease: 2\nbuilds: 3\nrelease: 4\n"
    assert not any("fail" in log for log in logs.values()), "\n".join(logs.values())
    assert len(list((folder / "dist").glob("*.whl"))) == 3


@pytest.mark.nightly
@pytest.mark.network
@needs_slurm()
def test_what_was_built_is_a_release_also_where_a_build_failed(folder: Path, tmp_path: Path) -> None:
    project(folder, ["x86-64", "x86-64-v2", "x86-64-v3"], kernel=f"#ifdef __AVX2__\n#error no AVX2\n#endif\n{KERNEL}")
    with cluster(tmp_path / "cluster") as found:
        _, logs = submitted(folder, {**environment(), **found})
    assert "1 of 1 targets failed" in logs["1-2.log"]
    assert "1 of 3 targets failed" in logs["collect-2.log"]
    assert len(list((folder / "dist").glob("*.whl"))) == 2
