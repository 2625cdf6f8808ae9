"""Where consumers find a layout: URLs that are fit to be told, and options that work in any folder."""

import pytest

from vbuild.errors import RepackageError
from vbuild.publishing.model import folder_url, install_commands


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.org", "/srv/whl", "ftp://example.org/", "https://", "https:///a", "file:", "http://["),
        *(
            "https://example.org/a b",
            "https://example.org/?q",
            "https://example.org/#a",
            'https://example.org/"',
            "http://é",
            "http://example.org:99999/",
        ),
    ],
)
def test_what_is_no_url_of_a_folder_is_refused(url: str) -> None:
    with pytest.raises(RepackageError) as refusal:
        folder_url(url)
    assert str(refusal.value) == (
        f"{url!r}: expected the URL of a folder, https, http or file, as in https://example.org/whl"
    )


def test_a_login_is_not_told_to_everyone() -> None:
    with pytest.raises(RepackageError) as refusal:
        folder_url("https://me:secret@example.org/whl")
    assert str(refusal.value) == "example.org: a URL with a login, which everyone could read; leave that out"


def test_commands_are_words_of_the_shell() -> None:
    assert install_commands("demo==1.0", url=None) == (
        "pip install --find-links . demo==1.0\nuv pip install --index ./simple demo==1.0"
    )
    assert install_commands("demo==1.0", url=None, folder="plain", has_rivals=True) == (
        'pip install --extra-index-url "file://$PWD/plain/simple" demo==1.0\n'
        "uv pip install --index ./plain/simple demo==1.0"
    )
    assert install_commands("demo==1.0", url="https://example.org/a&b", folder="v3") == (
        "pip install --extra-index-url 'https://example.org/a&b/v3/simple' demo==1.0\n"
        "uv pip install --index 'https://example.org/a&b/v3/simple' demo==1.0"
    )
