"""Of what a macro is set to, others see the beginning of a hash."""

from hashlib import sha256

import pytest

from vbuild.recipe.variables import masked, masked_setting

HASH = f"sha256:{sha256(b'abc').hexdigest()[:16]}"


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("-O2 -DTOKEN=abc -fPIC", f"-O2 -DTOKEN={HASH} -fPIC"),
        ("-D TOKEN=abc", f"-D TOKEN={HASH}"),
        ("-Wp,-DTOKEN=abc", f"-Wp,-DTOKEN={HASH}"),
        ("'-DF(x)=abc'", f"'-DF(x)={HASH}'"),
        ("-O2 -DNDEBUG -DLEVEL=3 -I'a folder'", "-O2 -DNDEBUG -DLEVEL=3 -I'a folder'"),
        ("-DSIMD=ON -DTESTS:BOOL=off", "-DSIMD=ON -DTESTS:BOOL=off"),
        (f"-DTOKEN={HASH}", f"-DTOKEN={HASH}"),
        ("a value, no flags", "a value, no flags"),
        ("--define TOKEN=abc --define-macro=TOKEN=abc", f"--define TOKEN={HASH} --define-macro=TOKEN={HASH}"),
        ("/DTOKEN=abc /D TOKEN=abc", f"/DTOKEN={HASH} /D TOKEN={HASH}"),
        ("-DTOKEN:STRING=abc", f"-DTOKEN:STRING={HASH}"),
        ("-Dpart.option=abc", f"-Dpart.option={HASH}"),
        ("--cfg=token=abc --cfg 'token=abc'", f"--cfg=token={HASH} --cfg token={HASH}"),
        ("-Wl,--password,abc --api-token=abc API_KEY=abc", f"-Wl,--password,{HASH} --api-token={HASH} API_KEY={HASH}"),
        ("--token abc -O2", f"--token {HASH} -O2"),
        ("-fpass-plugin=x.so -Wl,-z,relro", "-fpass-plugin=x.so -Wl,-z,relro"),
        ("-I https://me:abc@host/", "-I https://****@host/"),
        ("-DBROKEN='abc", "'-DBROKEN=sha256:" + sha256(b"'abc").hexdigest()[:16] + "'"),
    ],
)
def test_the_value_of_a_macro_is_a_hash(flags: str, shown: str) -> None:
    assert masked(flags).replace("'", "") == shown.replace("'", "")
    assert "abc" not in masked(flags)
    assert masked(masked(flags)) == masked(flags)


def test_a_setting_whose_name_speaks_of_a_secret_is_a_hash() -> None:
    assert masked("abc", name="cmake.define.API_TOKEN") == HASH
    assert masked("1", name="cmake.define.API_TOKEN") == "1"
    assert masked_setting("setup-args", ("-DTOKEN=abc", "-O2")) == (f"-DTOKEN={HASH}", "-O2")
