"""pip's configuration where it is of no use to anyone: one line that names the setting."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.version import Version

from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.index_client.packages import download, files_of

NOWHERE = Indexes(index_url="https://127.0.0.1:9/simple")
WANTED = Wanted("demo", Version("1.0"), "0" * 64)


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (replace(NOWHERE, cert="/nope"), "cert /nope: No such file or directory"),
        (
            replace(NOWHERE, cert="{file}"),
            "cert {file}: [X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found",
        ),
        (replace(NOWHERE, client_cert="/nope"), "client-cert /nope: No such file or directory"),
        (replace(NOWHERE, client_cert="{file}"), "client-cert {file}: [SSL] PEM lib"),
        (replace(NOWHERE, trusted_hosts=("[bad",)), "trusted-host [bad: Invalid IPv6 URL"),
        (replace(NOWHERE, proxy="foo"), "proxy foo: Unknown scheme for proxy URL URL('foo')"),
        (
            replace(NOWHERE, proxy="socks9://x"),
            "proxy socks9://x: Unknown scheme for proxy URL URL('socks9://x')",
        ),
        (Indexes(index_url="http://[bad"), "index-url http://[bad: Invalid IPv6 URL"),
        (Indexes(index_url="https://me:secret@[bad"), "index-url https://****@[bad: Invalid IPv6 URL"),
        (
            replace(NOWHERE, extra_index_urls=("https://x:99999/",)),
            "index-url https://x:99999/: Port out of range 0-65535",
        ),
        (Indexes(index_url="https://☃..x/"), "index-url https://☃..x/: Invalid IDNA hostname: '☃..x'"),
        (Indexes(no_index=True, find_links=("file://a/b",)), "find-links file://a/b: non-local file URIs are not "),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_setting_that_is_of_no_use_is_one_line(indexes: Indexes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no certificate")
    places = {"file": str(tmp_path / "file")}
    given = {name: text.format_map(places) for name in ("cert", "client_cert") if (text := getattr(indexes, name))}
    for ask in (
        lambda indexes: files_of("demo", indexes=indexes),
        lambda indexes: download(WANTED, tmp_path / "got", indexes=indexes),
    ):
        with pytest.raises(FetchError) as refused:
            ask(replace(indexes, **given))
        said = str(refused.value)
        assert said.startswith(f"pip's configuration: {message.format_map(places)}")
        assert "\n" not in said
