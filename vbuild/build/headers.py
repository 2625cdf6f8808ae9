"""What a build lacks, and what has it: headers, programs and libraries, in Debian or the CUDA toolkit; sources."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath

_MISSING = re.compile(r"fatal error: '?(?P<header>[^\s':]+)'?(?:: No such file or directory| file not found)")
_PACKAGES = {
    "zlib.h": "zlib1g-dev",
    "bzlib.h": "libbz2-dev",
    "lzma.h": "liblzma-dev",
    "zstd.h": "libzstd-dev",
    "lz4.h": "liblz4-dev",
    "snappy.h": "libsnappy-dev",
    "brotli/": "libbrotli-dev",
    "openssl/": "libssl-dev",
    "ffi.h": "libffi-dev",
    "jpeglib.h": "libjpeg-dev",
    "png.h": "libpng-dev",
    "tiff.h": "libtiff-dev",
    "webp/": "libwebp-dev",
    "freetype/": "libfreetype-dev",
    "ft2build.h": "libfreetype-dev",
    "libxml/": "libxml2-dev",
    "libxslt/": "libxslt1-dev",
    "expat.h": "libexpat1-dev",
    "sqlite3.h": "libsqlite3-dev",
    "libpq-fe.h": "libpq-dev",
    "mysql.h": "default-libmysqlclient-dev",
    "curl/": "libcurl4-openssl-dev",
    "hdf5.h": "libhdf5-dev",
    "netcdf.h": "libnetcdf-dev",
    "cblas.h": "libopenblas-dev",
    "lapacke.h": "liblapacke-dev",
    "fftw3.h": "libfftw3-dev",
    "gmp.h": "libgmp-dev",
    "mpfr.h": "libmpfr-dev",
    "mpi.h": "libopenmpi-dev",
    "boost/": "libboost-dev",
    "Eigen/": "libeigen3-dev",
    "tbb/": "libtbb-dev",
    "yaml.h": "libyaml-dev",
    "uuid/": "uuid-dev",
    "geos_c.h": "libgeos-dev",
    "proj.h": "libproj-dev",
    "gdal.h": "libgdal-dev",
    "X11/": "libx11-dev",
    "GL/": "libgl-dev",
    "alsa/": "libasound2-dev",
    "portaudio.h": "portaudio19-dev",
    "sndfile.h": "libsndfile1-dev",
    "libusb.h": "libusb-1.0-0-dev",
    "numa.h": "libnuma-dev",
    "krb5.h": "libkrb5-dev",
    "ldap.h": "libldap-dev",
    "sodium.h": "libsodium-dev",
    "sasl/": "libsasl2-dev",
    "librdkafka/": "librdkafka-dev",
    "systemd/": "libsystemd-dev",
    "graphviz/": "libgraphviz-dev",
    "cairo.h": "libcairo2-dev",
    "glib.h": "libglib2.0-dev",
    "event.h": "libevent-dev",
    "ncurses.h": "libncurses-dev",
    "readline/": "libreadline-dev",
    "leveldb/": "libleveldb-dev",
    "rocksdb/": "librocksdb-dev",
    "re2/": "libre2-dev",
    "magic.h": "libmagic-dev",
    "sqlfront.h": "freetds-dev",
    "sybdb.h": "freetds-dev",
    "sql.h": "unixodbc-dev",
    "libmemcached/": "libmemcached-dev",
    "olm/": "libolm-dev",
    "enchant.h": "libenchant-2-dev",
    "cups/": "libcups2-dev",
    "dbus/": "libdbus-1-dev",
    "lmdb.h": "liblmdb-dev",
    "zmq.h": "libzmq3-dev",
    "libvirt/": "libvirt-dev",
    "pcap.h": "libpcap-dev",
    "unicode/": "libicu-dev",
    "hs/": "libhyperscan-dev",
    "xmlsec/": "libxmlsec1-dev",
    "gpgme.h": "libgpgme-dev",
    "git2.h": "libgit2-dev",
    "seccomp.h": "libseccomp-dev",
    "sys/acl.h": "libacl1-dev",
    "bluetooth/": "libbluetooth-dev",
    "opus/": "libopus-dev",
    "libavformat/": "libavformat-dev",
    "libssh2.h": "libssh2-1-dev",
    "secp256k1.h": "libsecp256k1-dev",
    "tesseract/": "libtesseract-dev",
}
# of repositories that builds clone, by their last name; what the package index has has a CMake package, too
_CLONED = {
    "eigen": "libeigen3-dev",
    "json": "nlohmann-json3-dev",
    "fmt": "libfmt-dev",
    "spdlog": "libspdlog-dev",
    "abseil-cpp": "libabsl-dev",
    "yaml-cpp": "libyaml-cpp-dev",
    "zstd": "libzstd-dev",
    "lz4": "liblz4-dev",
    "zlib": "zlib1g-dev",
}
# programs that builds call, and what some call their library
_PROGRAMS = {
    **dict.fromkeys(("mpicc", "mpicxx", "mpic++", "mpirun", "openmpi"), "libopenmpi-dev"),
    **{name: name for name in ("swig", "flex", "bison", "nasm", "yasm", "gfortran", "pkg-config", "patchelf", "git")},
    "autoreconf": "autoconf",
    "libtoolize": "libtool",
    "protoc": "protobuf-compiler",
    "pg_config": "libpq-dev",
    "mysql_config": "default-libmysqlclient-dev",
    "gdal-config": "libgdal-dev",
    "geos-config": "libgeos-dev",
    "h5cc": "libhdf5-dev",
    "nc-config": "libnetcdf-dev",
    "krb5-config": "libkrb5-dev",
    "llvm-config": "llvm-dev",
}
_NO_PROGRAM = re.compile(
    r"No such file or directory: '(?:[^'\n]*/)?(?P<called>[\w+-]+)'"
    r"|(?:sh|bash): (?:line )?\d+: (?P<shell>[\w+-]+): (?:command )?not found"
    r"|\b(?P<said>[\w+-]+)(?: binary| executable| program)? (?:could not be located|could not be found|was not found)"
    r"|Program '?(?P<meson>[\w+-]+)'?[^\n]* found: NO",
)
# what libraries are called by pkg-config and CMake, where that is neither the name of a header nor of the package
_ALSO = {
    "bzip2": "libbz2-dev",
    "blas": "libopenblas-dev",
    "lapack": "libopenblas-dev",
    "postgresql": "libpq-dev",
    "mariadb": "default-libmysqlclient-dev",
    "libavcodec": "libavcodec-dev",
    "libavdevice": "libavdevice-dev",
    "libavfilter": "libavfilter-dev",
    "libavutil": "libavutil-dev",
    "libswresample": "libswresample-dev",
    "libswscale": "libswscale-dev",
    "gsl": "libgsl-dev",
    "harfbuzz": "libharfbuzz-dev",
    "protobuf": "libprotobuf-dev",
    "nlohmann_json": "nlohmann-json3-dev",
    "absl": "libabsl-dev",
    "openjp2": "libopenjp2-7-dev",
    "openjpeg": "libopenjp2-7-dev",
    "lcms2": "liblcms2-dev",
    "libturbojpeg": "libturbojpeg0-dev",
    "libdeflate": "libdeflate-dev",
    "blosc": "libblosc-dev",
    "opencv": "libopencv-dev",
    "suitesparse": "libsuitesparse-dev",
    "cgal": "libcgal-dev",
    "samplerate": "libsamplerate0-dev",
    "soxr": "libsoxr-dev",
    "flac": "libflac-dev",
    "vorbis": "libvorbis-dev",
    "ogg": "libogg-dev",
    "sdl2": "libsdl2-dev",
    "gobject-introspection": "libgirepository1.0-dev",
    "pango": "libpango1.0-dev",
    "vips": "libvips-dev",
    "uv": "libuv1-dev",
    "nghttp2": "libnghttp2-dev",
    "cares": "libc-ares-dev",
    "xxhash": "libxxhash-dev",
    "isa-l": "libisal-dev",
    "pkgconfig": "pkg-config",
}
_SPELLING = re.compile(r"^lib|(?<=[a-z])[-_.\d]*$")
# without which a build does not go on: by Meson, CMake, pkg-config, and the crate of that name
_REQUIRED = re.compile(
    r"ERROR: Dependency (?:lookup for )?\"?(?P<meson>[\w.+-]+)\"? (?:not found|with method)"
    r"|CMake Error[^\n]*\n\s*Could NOT find (?P<found>[\w.+-]+)"
    r"|package configuration file provided by\s+\"(?P<config>[\w.+-]+)\""
    r"|required packages were not found:\s+- (?P<module>[\w.+-]+)"
    r"|[Ss]ystem library `(?P<crate>[\w.+-]+)` required by crate"
    r"|Package '?(?P<package>[\w.+-]+)'?"
    r"(?:, required by [^\n]*, not found| was not found in the pkg-config search path)"
)
# and those that it goes on without
_TRIED = re.compile(
    r"ependency (?P<meson>[\w.+-]+) (?:\([^\n]*\) )?found: NO\b|Could NOT find (?P<found>[\w.+-]+)"
    r"|No package '(?P<package>[\w.+-]+)' found"
)
# of assembly that is chosen at run time
ASSEMBLERS = frozenset({"nasm", "yasm"})
# the first error is in a header of Python, which has changed since the source was written
# of cudafe++ and of gcc; the release notes of CUDA 13.0 list what went
_NO_FIELD = re.compile(r"cudaDeviceProp\W+ has no member (?:named )?\W(?P<name>\w+)")
_IN_PYTHON = re.compile(r"/include/python(?P<version>3\.\d+)\w*/[\w/]+\.h:\d+:\d+: error: ")
# what CMake's FindPythonInterp says of the Python that the build runs in
_INTERPRETER = re.compile(r"-- Found PythonInterp: \S+ \(found (?:suitable )?version \"(?P<version>3\.\d+)")
# macros of numpy's C that 2.2 is the last release to have; some write them of their own accord where they are missing
# of cudafe++, which compiles the C++ of nvcc's sources
_OF_NVCC = re.compile(r"^(?P<error>\S+\(\d+\): (?:catastrophic )?error: [^\n]+)$", re.MULTILINE)
_LEFT_OUT = re.compile(
    r"^[^$\n]*?\b(?:without|no|not|disabl\w+|skip\w*)\b[^\n]*\b(?:cuda|nvcc|gpu)\b[^\n]*$"
    r"|^[^$\n]*?\b(?:cuda|nvcc|gpu)\b[^\n]*(?:\b(?:not|disabled|skipp\w+|off)\b|\bcpu[- ]only\b)[^\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST = 160  # characters of a line that is shown

_ON_INDEX = frozenset({"pybind11", "nanobind"})
_UNREACHED = re.compile(r"(?:unable to access|Failed to clone repository:) '(?P<url>[^']+?)(?:\.git)?/?'")
# what a script downloads by itself: requests, curl, and urllib, which does not say from where
_NO_DOWNLOAD = re.compile(
    r"HTTPS?Connection(?:Pool)?\(host='(?P<host>[\w.-]+)'[^\n]*?(?:with url: (?P<path>[^\s(]+)[^\n]*)?Failed to resolve"
    r"|Could not resolve host: (?P<said>[\w.-]+)"
    r"|urlopen error \[Errno -[235]\]|gaierror\(-[235],|Temporary failure in name resolution"
)
_NO_FOLDER = re.compile(
    r"add_subdirectory given source\s+\"(?P<given>[^\"]+)\"\s+which is not an\s+existing\s+directory"
    r"|The source directory\s+(?P<empty>\S+)\s+does not contain a CMakeLists\.txt file"
    r'|The source directory "(?P<bare>[^"]+)" does not appear to contain CMakeLists\.txt'
)
_NO_LIBRARY = re.compile(r"cannot find -l(?P<name>[\w+-]+)")
_TOOLKIT_HEADERS = {
    "culibos": "culibos",
    "tileiras": "tileiras",
    "cublas": "cublas",
    "cufft": "cufft",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparse": "cusparse",
    "nvrtc": "nvrtc",
    "nvjpeg": "nvjpeg",
    "npp": "npp",
    "nvtx3/": "nvtx",
    "nvToolsExt": "nvtx",
    "cupti": "cupti",
    "nvml": "nvml",
    "nvJitLink": "nvjitlink",
    "cuda_profiler_api": "profiler",
    "cudaProfiler": "profiler",
    "thrust/": "cccl",
    "cub/": "cccl",
    "cuda/std/": "cccl",
}


def is_of_cuda(header: str) -> bool:
    """Whether *header* is of the CUDA driver, its runtime, or a library of the toolkit that is more than headers."""
    return header.startswith(("cuda.h", "cuda_", "cudaGL", "cudaEGL")) or toolkit_library(header) not in {
        None,
        "cccl",
        "nvtx",
    }


def debian_package(header: str) -> str | None:
    """The Debian package that has *header*; None if it is of no library that projects commonly want."""
    return next((package for name, package in _PACKAGES.items() if header == name or _is_in(header, name)), None)


def toolkit_library(header: str) -> str | None:
    """The library of the CUDA toolkit that *header* is of, by its name in ``matrix.cuda[].libraries``; None if none."""
    return next((library for start, library in _TOOLKIT_HEADERS.items() if header.startswith(start)), None)


def missing_header(text: str) -> str | None:
    """What to do about the header that the output *text* of a compiler says is missing; None if it says no such thing.

    Of one that nobody here knows that is its name alone.
    """
    if not (match := _MISSING.search(text)):
        return None
    header = match["header"]
    if library := toolkit_library(header):
        return f"{header} is in a library of the CUDA toolkit: matrix.cuda[].libraries = [{library!r}]"
    if package := debian_package(header):
        return f"{header} is missing; install it: apt-get install {package}"
    return f"{header} is missing: a file of the project that its sdist lacks, or of a library that is not installed"


def missing_source(log: str) -> str | None:
    """What to do about sources, libraries and programs that the *log* says are not there; None if it says none is."""
    for pattern, advice in _ADVICE:
        if match := pattern.search(log):
            return advice(match)
    return _missing_program(_named(_NO_PROGRAM, log)) or _missing_library(_named(_REQUIRED, log))


def looked_in_vain(log: str, programs: Iterable[str] = (), libraries: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """What a build looked for that is not there, each once with what to do about it: by its *log*, and as was seen.

    Of the *programs* those count that projects commonly want, and of the *libraries* those that Debian has by a name
    that is known here: build systems look for many others.
    """
    for name in dict.fromkeys((*libraries, *_named(_TRIED, log))):
        if name in _ON_INDEX or dependency_package(name):
            yield name, f"looked for and not found; {_lacking(name)}"
    for name in dict.fromkeys(programs):
        if name in _PROGRAMS:
            yield name, f"looked for on PATH and not found; install it: apt-get install {_PROGRAMS[name]}"


def dependency_package(name: str) -> str | None:
    """The Debian package with the library that pkg-config or CMake call *name*, as in ``libpng16``; None if unknown."""
    plain = name.lower()
    spellings = dict.fromkeys((plain, plain.removeprefix("lib"), _SPELLING.sub("", plain)))
    return next((package for each in spellings if (package := _BY_LIBRARY.get(each))), None)


def _named(pattern: re.Pattern[str], log: str) -> list[str]:
    """The names that the groups of *pattern* find in *log*, in order."""
    return [next(filter(None, match.groups())) for match in pattern.finditer(log)]


def _missing_library(names: Sequence[str]) -> str | None:
    # the last is the one that the build ends with
    return f"{names[-1]} is not there; {_lacking(names[-1])}" if names else None


def _lacking(name: str) -> str:
    if name in _ON_INDEX:
        return f"the package index has it: build.requires = [{name!r}]"
    if package := dependency_package(name):
        return f"install it: apt-get install {package}"
    return "install the library with its headers, or name it in [[native]]"


def _libraries() -> Iterator[tuple[str, str]]:
    """The names of libraries, as `dependency_package` spells them, with the Debian package of each."""
    yield from _CLONED.items()
    yield from ((name.lower(), package) for name, package in _PROGRAMS.items())
    for header, package in _PACKAGES.items():
        yield _SPELLING.sub("", package.removesuffix("-dev")), package
        yield package.removeprefix("lib").removesuffix("-dev"), package
        yield PurePath(header).parts[0].removesuffix(".h").lower().removeprefix("lib"), package
    yield from _ALSO.items()


_BY_LIBRARY = dict(_libraries())


def _to_clone(match: re.Match[str]) -> str:
    name = match["url"].rpartition("/")[2].lower()
    what = f"The build clones {match['url']}, which this machine does not reach"
    instead = f"build.requires = [{name!r}]" if name in _ON_INDEX else ""
    if package := _CLONED.get(name):
        instead = f"apt-get install {package}"
    if not instead:
        return what
    always = "build.config-settings = { 'cmake.define.FETCHCONTENT_TRY_FIND_PACKAGE_MODE' = 'ALWAYS' }"
    return f"{what}. To take an installed one: {instead}, and where CMake does not look for it: {always}"


def _to_download(match: re.Match[str]) -> str:
    what = f"{match['host'] or match['said'] or 'a server'}{match['path'] or ''}"
    return f"The build downloads from {what}, which this machine does not reach"


def _to_find(match: re.Match[str]) -> str:
    if match["bare"]:
        return f"{match['bare']}/CMakeLists.txt is not in the sdist; build from its repository: [source] git"
    folder = match["given"] or match["empty"]
    return f"{folder} is not in the sdist: a git submodule, most likely; build from its repository: [source] git"


def _to_link(match: re.Match[str]) -> str:
    if library := toolkit_library(match["name"]):
        return f"lib{match['name']} is in the CUDA toolkit: matrix.cuda[].libraries = [{library!r}]"
    return f"lib{match['name']} is not there, and the project does not build it: install it, or name it in [[native]]"


_ADVICE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_UNREACHED, _to_clone),
    (_NO_DOWNLOAD, _to_download),
    (_NO_FOLDER, _to_find),
    (_NO_LIBRARY, _to_link),
)


def _missing_program(names: Iterable[str]) -> str | None:
    for name in names:
        if name in _PROGRAMS:
            return f"{name} is not there; install it: apt-get install {_PROGRAMS[name]}"
        if name == toolkit_library(name):
            return f"{name} is in the CUDA toolkit: matrix.cuda[].libraries = [{name!r}]"
    return None


def other_python(log: str) -> str | None:
    """What to do if the *log* of a build has CMake take the headers of another Python than the build's; or None."""
    headers, built = _IN_PYTHON.search(log), _INTERPRETER.search(log)
    if not headers or not built or headers["version"] == built["version"]:
        return None
    what = f"it is built for Python {built['version']}, and CMake took the headers of Python {headers['version']}"
    return f"{what}: build.env.CMAKE_PREFIX_PATH = the folder of the right include/ and lib/"


def older_python(text: str) -> str | None:
    """What to do about a first error *text* that is in a header of Python; None if it is elsewhere."""
    if not (match := _IN_PYTHON.search(text)):
        return None
    what = f"its sources do not compile with the headers of Python {match['version']}, and are for an older one"
    return f"{what}, most likely: --python 3.8, or matrix.python = ['3.8'], takes another that is installed"


def older_cuda(text: str) -> str | None:
    """What to do about a compiler's *text* of errors, if these are about fields that CUDA 13 removed; or None."""
    if not (match := _NO_FIELD.search(text)):
        return None
    what = f"no CUDA from 13 on has cudaDeviceProp.{match['name']}"
    return f"{what}: install CUDA 12, set CUDA_HOME to its folder, and ask for it: --toolkit 12.9"


def first_of_nvcc(log: str) -> str | None:
    """The first error of nvcc's own front end in the *log* of a build; None if it has none."""
    match = _OF_NVCC.search(log)
    return match["error"] if match else None


def left_out(log: str) -> str | None:
    """The first line of a build's *log* that says that CUDA is left out; None if none does."""
    lines = (match[0].strip(" -") for match in _LEFT_OUT.finditer(log))
    return next((line for line in lines if len(line) <= _LONGEST), None)


def _is_in(header: str, folder: str) -> bool:
    return folder.endswith("/") and header.startswith(folder)
