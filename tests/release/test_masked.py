"""Of what a macro is set to, others see the beginning of a hash."""

from hashlib import sha256

import pytest

from vbuild.release.masked import masked

HASH = f"sha256:{sha256(b'abc').hexdigest()[:16]}"


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("-O2 -DTOKEN=abc -fPIC", f"-O2 -DTOKEN={HASH} -fPIC"),
        ("-D TOKEN=abc", f"-D TOKEN={HASH}"),
        ("-Wp,-DTOKEN=abc", f"-Wp,-DTOKEN={HASH}"),
        ("'-DF(x)=abc'", f"'-DF(x)={HASH}'"),
        ("-O2 -DNDEBUG -DLEVEL=3 -I'a folder'", "-O2 -DNDEBUG -DLEVEL=3 -I'a folder'"),
        (f"-DTOKEN={HASH}", f"-DTOKEN={HASH}"),
        ("a value, no flags", "a value, no flags"),
        ("-DBROKEN='abc", "'-DBROKEN=sha256:" + sha256(b"'abc").hexdigest()[:16] + "'"),
    ],
)
def test_the_value_of_a_macro_is_a_hash(flags: str, shown: str) -> None:
    assert masked(flags).replace("'", "") == shown.replace("'", "")
    assert "abc" not in masked(flags)
    assert masked(masked(flags)) == masked(flags)
