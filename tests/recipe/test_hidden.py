"""Which of a user's values and flags no log of a build may show."""

from pathlib import Path

import pytest

from vbuild.process.masking import Mask, hiding
from vbuild.recipe.hidden import hiding_secrets, of_settings, of_variables, too_short
from vbuild.recipe.model import Recipe
from vbuild.recipe.variables import hashed

WORD = "correct-horse-battery"
HASH = hashed("abc")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (WORD, {WORD}),
        (f" {WORD}\n", {WORD}),
        (f"-----BEGIN KEY-----\n{WORD}\n1234", {"-----BEGIN KEY-----", "-----BEGIN%20KEY-----", WORD}),
        ("correct/horse", {"correct/horse", "correct%2Fhorse"}),
        ("seven77", set()),
        ("20261128", set()),
        ("2026.11.28", set()),
        ("/usr/bin", set()),
        ("/usr/bin:/usr", set()),
        ("/usr/bin/no-such-thing", {"/usr/bin/no-such-thing", "%2Fusr%2Fbin%2Fno-such-thing"}),
        ("-O3 -funroll-loops", set()),
    ],
)
def test_a_value_that_is_passed_on_is_hidden_unless_it_would_be_everywhere(text: str, hidden: set[str]) -> None:
    assert set(of_variables({"DEMO_ONE": text, "OTHER": f"not {WORD}"}, ["DEMO_*"])) == hidden


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("four", {"four"}),
        ("one", set()),
        ("true", set()),
        ("20261128", {"20261128"}),
        ("2026112", set()),
        ("/usr/bin", set()),
    ],
)
def test_where_the_name_speaks_of_a_secret_less_is_enough(text: str, hidden: set[str]) -> None:
    assert set(of_variables({"DEMO_TOKEN": text}, ["DEMO_*"])) == hidden


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("DEMO_TOKEN", "one", 1),
        ("DEMO_TOKEN", "2026112", 1),
        ("DEMO_TOKEN", "four", 0),
        ("DEMO_TOKEN", "on", 0),
        ("DEMO_TOKEN", "-----BEGIN KEY-----\nabc\n-", 0),
        ("DEMO_LEVEL", "one", 0),
        ("OTHER_TOKEN", "one", 0),
    ],
)
def test_a_secret_that_is_too_short_is_named(tmp_path: Path, name: str, text: str, said: int) -> None:
    recipe = Recipe.load(demo(tmp_path))
    line = f"{name}: its value is too short to be hidden in logs; expected 4 characters or more, 8 of a number"
    assert [*too_short(recipe, recipe.targets, {name: text})] == [line] * said


def test_of_variables_that_builds_see_anyway_secrets_in_flags_are_hidden_alone() -> None:
    environment = {"CFLAGS": f"-O2 -DTOKEN=abc -DLONG={WORD}", "CMAKE_PREFIX_PATH": f"/opt/{WORD}"}
    found = of_variables(environment, [])
    assert found["TOKEN=abc"] == f"TOKEN={HASH}"
    assert found[WORD] == hashed(WORD)
    assert not {"abc", f"/opt/{WORD}"} & found.keys()


@pytest.mark.parametrize(
    ("flags", "said", "shown"),
    [
        ("-DTOKEN=abc", "gcc -DTOKEN=abc -c x.c", f"gcc -DTOKEN={HASH} -c x.c"),
        ("-DTOKEN=abc", "abc.c: no TOKEN", "abc.c: no TOKEN"),
        ("'-DTOKEN=\"abc\"'", 'gcc -DTOKEN=\\"abc\\" x.c', f"gcc -DTOKEN={hashed(chr(34) + 'abc' + chr(34))} x.c"),
        ("-DTOKEN:STRING=abc", "-DTOKEN:STRING=abc", f"-DTOKEN:STRING={HASH}"),
        ("/DTOKEN=abc", "cl /DTOKEN=abc", f"cl /DTOKEN={HASH}"),
        ("-Xcompiler -DTOKEN=abc,-O2", "gcc -DTOKEN=abc -O2", f"gcc -DTOKEN={hashed('abc,-O2')} -O2"),
        ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "is RelWithDebInfo", "is RelWithDebInfo"),
        ("-DLEVEL=3", "-DLEVEL=3", "-DLEVEL=3"),
    ],
)
def test_what_a_macro_is_set_to_is_a_hash(flags: str, said: str, shown: str) -> None:
    texts = {text.encode(): one.encode() for text, one in of_settings([("cmake.args", flags)]).items()}
    mask = Mask(texts)
    assert (mask.shown(said.encode()) + mask.rest()).decode() == shown


def demo(folder: Path) -> Path:
    """A recipe in *folder* with secrets that passes DEMO_* on."""
    (folder / "project").mkdir()
    recipe = folder / "demo.toml"
    recipe.write_text(
        'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64"]\n'
        f'[build]\nenv = {{ API_TOKEN = "{WORD}-1" }}\npass-env = ["DEMO_*"]\n'
        f'config-settings = {{ "cmake.define.PASSWORD" = "{WORD}-2", "cmake.args" = ["-DONE={WORD}-3"] }}\n'
    )
    return recipe


def test_settings_whose_name_speaks_of_a_secret_are_hidden(tmp_path: Path) -> None:
    loaded = Recipe.load(demo(tmp_path))
    with hiding_secrets(loaded, loaded.targets, {"DEMO_ONE": f"{WORD}-4"}), hiding({}):
        mask = Mask()
    shown = mask.shown("".join(f"{WORD}-{number} " for number in range(1, 6)).encode()) + mask.rest()
    assert shown.decode() == f"**** **** {hashed(WORD + '-3')} **** {WORD}-5 "
    assert Mask().shown(WORD.encode()) == WORD.encode()
