"""Which variables of the user's environment a build sees, and what others may see of flags and settings.

    the project's own code: backend, native steps,    the table, and what is asked for
    before-build, repair command, tests
    uv and pip, which install for them                the same, and their own settings, indexes with logins among them
    keys of builds                                    what the project's code sees

Asked for are names, or patterns such as ``DEMO_*``: a recipe's ``build.pass-env``. Others of the table are held back if
their name speaks of a secret, or their value has a login in a URL.

HOME is the user's own: compilers live there (``~/.cargo``), and another one would hide no file.

Of what may be a secret in flags, others see the beginning of a hash:

    -DTOKEN=abc  "-D TOKEN=a b"  -Wp,-DTOKEN=abc  /DTOKEN=abc      -DTOKEN=sha256:ba7816bf8f01cfea ...
    --define TOKEN=abc  -DTOKEN:STRING=abc  --cfg token="abc"      the same
    --api-token=abc  -Wl,--password,abc  API_TOKEN=abc             the same, by the name
    -DPLACE=https://me:abc@host/  https://me:abc@host/             https://****@host/
    -DNDEBUG  -DLEVEL=3  -D_FORTIFY_SOURCE=2  -O3                  as they are
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import pairwise

from vbuild.config.table import Setting
from vbuild.errors import RecipeError
from vbuild.process.masking import without_logins

# parts of names of variables, settings or options whose value is a secret
SECRET = re.compile(
    r"(?:^|[^A-Za-z0-9])"
    r"(?:TOKENS?|PASS|PASSWORDS?|PASSWD|PASSPHRASE|SECRETS?|CREDENTIALS?|API_?KEY|KEY|AUTH|LOGIN|USERNAME)"
    r"(?:[^A-Za-z0-9]|$)",
    re.IGNORECASE,
)
# numbers and switches are not secrets, and a hash stays one
PLAIN = re.compile(r"\d{1,4}|(?i:on|off|true|false|yes|no)|sha256:[0-9a-f]{16}")
# after which a macro may come as a word of its own
_DEFINING = {"-D", "/D", "--define", "--define-macro", "--cfg"}
_MACRO = re.compile(r"(?P<name>(?:.*,)?(?:[-/]D\s*|--define(?:-macro)?=|--cfg=)[^=,]+=)(?P<value>.+)", re.DOTALL)
_DEFINED = re.compile(r"(?P<name>[^=]+=)(?P<value>.+)", re.DOTALL)
_LONG = re.compile(r"--[\w.-]+")
_OPTION = re.compile(r"(?P<name>(?:.*,)?[\w.-]+[=,])(?P<value>.+)", re.DOTALL)


def hashed(value: str) -> str:
    return f"sha256:{sha256(value.encode(errors='surrogateescape')).hexdigest()[:16]}"


def secrets_in(flags: str) -> Iterator[tuple[str, str, str]]:
    """The words of *flags*, each whole, and in two parts: what may be seen, and what may be a secret."""
    try:
        words = shlex.split(flags)
    except ValueError:  # a quotation mark alone
        words = flags.split()
    for before, word in pairwise(("", *words)):
        match = _MACRO.fullmatch(word) or (_DEFINED.fullmatch(word) if before in _DEFINING else None)
        if match is None and (option := _OPTION.fullmatch(word)) and SECRET.search(option["name"]):
            match = option
        if match and not PLAIN.fullmatch(match["value"]):
            yield word, match["name"], match["value"]
        elif _LONG.fullmatch(before) and SECRET.search(before) and not (word.startswith("-") or PLAIN.fullmatch(word)):
            yield word, "", word
        else:
            yield word, word, ""


def masked_words(flags: str) -> Iterator[tuple[str, str]]:
    for word, seen, secret in secrets_in(flags):
        yield word, without_logins(seen) + (hashed(secret) if secret else "")


def masked(value: str, *, name: str = "") -> str:
    """The *value* of the variable or setting *name* as others may see it."""
    if value and SECRET.search(name) and not PLAIN.fullmatch(value):
        return hashed(value)
    words = [*masked_words(value)]
    return shlex.join(shown for _, shown in words) if any(word != shown for word, shown in words) else value


def masked_setting(name: str, value: Setting) -> Setting:
    return masked(value, name=name) if isinstance(value, str) else tuple(masked(word, name=name) for word in value)


# what processes, shells and their libraries need: where they are, how they speak, what time it is
_SURROUNDINGS = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "LANG", "LANGUAGE", "TZ", "TERM"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
        *("SOURCE_DATE_EPOCH", "ZERO_AR_DATE", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS"),
    }
)
# proxies and certificates, for what a build fetches
_NETWORK = frozenset(
    {
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
        *(
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "NIX_SSL_CERT_FILE",
        ),
    }
)
# compilers, linkers and their flags, as make, autoconf, CMake, setuptools and Meson name them
_COMPILERS = frozenset(
    {
        *("CC", "CXX", "CPP", "FC", "F77", "F90", "OBJC", "OBJCXX", "CC_FOR_BUILD", "CXX_FOR_BUILD", "HOSTCC"),
        *("AS", "AR", "LD", "NM", "RANLIB", "STRIP", "OBJCOPY", "OBJDUMP", "READELF", "CC_LD", "CXX_LD", "PATCHELF"),
        *("CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "FCFLAGS", "LDFLAGS", "ARFLAGS", "OBJCFLAGS", "LIBS", "OPT"),
        *("LDSHARED", "LDCXXSHARED", "BLDSHARED", "CCSHARED", "ARCHFLAGS", "MACOSX_DEPLOYMENT_TARGET", "SDKROOT"),
        *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_RUN_PATH", "LD_ORIGIN_PATH", "GLIBC_TUNABLES"),
        *("MAKE", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAX_JOBS", "NINJA", "NINJA_STATUS", "MESON", "CONFIG_SITE"),
        *("ACLOCAL", "ACLOCAL_PATH", "AUTOCONF", "AUTOMAKE", "AUTOHEADER", "LIBTOOL", "LIBTOOLIZE", "M4", "PERL"),
        *("BISON", "FLEX", "YACC", "LEX", "SWIG", "NASM", "YASM", "CONDA_BUILD_SYSROOT"),
        *("BLAS", "LAPACK", "ATLAS", "OPENBLAS", "JAVA_HOME"),
        *("CARGO", "CARGO_HOME", "CARGO_ENCODED_RUSTFLAGS", "CARGO_INCREMENTAL", "RUSTC", "RUSTDOC", "RUSTFLAGS"),
        *("GOFLAGS", "GOPATH", "GOROOT", "GOCACHE", "GOPROXY", "GOTOOLCHAIN"),
    }
)
_COMPILER_PREFIXES = (
    *("LC_", "GCC_", "CLANG_", "COLLECT_", "CCACHE_", "DISTCC_", "ZIG_", "PKG_CONFIG", "CMAKE_", "MESON_"),
    *("CARGO_BUILD_", "CARGO_HTTP_", "CARGO_NET_", "CARGO_PROFILE_", "CARGO_REGISTRIES_", "CARGO_TARGET_"),
    *("RUSTC_", "RUSTUP_", "RUST_", "CGO_", "OMP_", "MKL_", "OPENBLAS_"),
)
# backends of builds, and what they compile with
_BACKEND_PREFIXES = (
    *("PYTHON", "SETUPTOOLS_", "DISTUTILS_", "SKBUILD_", "MESONPY_", "MATURIN_PEP517_", "PYO3_", "HATCH_BUILD_"),
    *("PDM_BUILD_", "VCS_VERSIONING_", "CYTHON_", "NPY_", "PYBIND11_", "NANOBIND_", "AUDITWHEEL_"),
)
_CUDA = frozenset({"FORCE_CUDA", "TORCH_CUDA_ARCH_LIST", "TORCH_NVCC_FLAGS"})
_CUDA_PREFIXES = ("CUDA", "NVCC_", "NVIDIA_", "CUDNN_", "CUTENSOR_", "NCCL_")
# our own, those that say what hardware there is, and those of our tests
_OURS = ("VBUILD_", "NV_VARIANT_PROVIDER_", "COVERAGE_PROCESS_")

NAMES = _SURROUNDINGS | _NETWORK | _COMPILERS | _CUDA
PREFIXES = (*_COMPILER_PREFIXES, *_BACKEND_PREFIXES, *_CUDA_PREFIXES, *_OURS)

# the settings of installers, and of the programs that give them their passwords
_INSTALLER = frozenset({*_NETWORK, "NETRC", "SSL_CLIENT_CERT", "DBUS_SESSION_BUS_ADDRESS"})
_INSTALLER_PREFIXES = ("UV_", "PIP_", "KEYRING_")
_NOT_INSTALLER = ("UV_PUBLISH_",)

_LEAD_ELSEWHERE = frozenset(
    {
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES"),
        *("UV_PYTHON", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON"),
        *("PIP_DRY_RUN", "PIP_NO_DEPS", "PIP_QUIET", "PIP_LOG"),
    }
)
_LOGIN = re.compile(r"://[^\s/?#@]+@")
_PATTERN = re.compile(r"[A-Za-z_*?\[][A-Za-z0-9_*?\[\]!-]*")


def passed(environment: Mapping[str, str], patterns: Iterable[str] = ()) -> dict[str, str]:
    """What the project's own code sees of *environment*: the table's variables and those *patterns* for."""
    patterns = tuple(patterns)
    return {
        name: text
        for name, text in environment.items()
        if is_asked(name, patterns)
        or ((name in NAMES or name.startswith(PREFIXES)) and not (SECRET.search(name) or _LOGIN.search(text)))
    }


def for_installers(environment: Mapping[str, str], patterns: Iterable[str] = ()) -> dict[str, str]:
    """What uv and pip see of *environment*: also their own settings with logins."""
    own = {
        name: text
        for name, text in environment.items()
        if name in _INSTALLER or (name.startswith(_INSTALLER_PREFIXES) and not name.startswith(_NOT_INSTALLER))
    }
    return own | passed(environment, patterns)


def undisturbed(before: Mapping[str, str]) -> dict[str, str]:
    """*before* without what leads Python or an installer to other packages."""
    return {name: text for name, text in before.items() if name not in _LEAD_ELSEWHERE}


def is_asked(name: str, patterns: Iterable[str]) -> bool:
    """Whether names or patterns have *patterns* for *name*; capitals count."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def variable_pattern(text: str) -> str:
    """*text* if it can be the name of a variable, or a pattern of names; `RecipeError` for others."""
    if not _PATTERN.fullmatch(text):
        raise RecipeError(f"{text!r} is not the name of a variable; expected a name, or a pattern such as 'DEMO_*'")
    return text
