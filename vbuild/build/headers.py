"""What a build lacks, and what has it: headers, programs and libraries, in Debian or the CUDA toolkit; sources."""

import re
from collections.abc import Iterable

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
# the first error is in a header of Python, which has changed since the source was written
_IN_PYTHON = re.compile(r"/include/python(?P<version>3\.\d+)\w*/[\w/]+\.h:\d+:\d+: error: ")
_LEFT_OUT = re.compile(
    r"^[^$\n]*?\b(?:without|no|not|disabl\w+|skip\w*)\b[^\n]*\b(?:cuda|nvcc|gpu)\b[^\n]*$"
    r"|^[^$\n]*?\b(?:cuda|nvcc|gpu)\b[^\n]*(?:\b(?:not|disabled|skipp\w+|off)\b|\bcpu[- ]only\b)[^\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST = 160  # characters of a line that is shown

_ON_INDEX = frozenset({"pybind11", "nanobind"})
_UNREACHED = re.compile(r"(?:unable to access|Failed to clone repository:) '(?P<url>[^']+?)(?:\.git)?/?'")
_NO_FOLDER = re.compile(
    r"add_subdirectory given source\s+\"(?P<given>[^\"]+)\"\s+which is not an\s+existing\s+directory"
    r"|The source directory\s+(?P<empty>\S+)\s+does not contain a CMakeLists\.txt file"
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
    if match := _UNREACHED.search(log):
        name = match["url"].rpartition("/")[2].lower()
        what = f"The build clones {match['url']}, which this machine does not reach"
        instead = f"build.requires = [{name!r}]" if name in _ON_INDEX else ""
        if package := _CLONED.get(name):
            instead = f"apt-get install {package}"
        if not instead:
            return what
        always = "build.config-settings = { 'cmake.define.FETCHCONTENT_TRY_FIND_PACKAGE_MODE' = 'ALWAYS' }"
        return f"{what}. To take an installed one: {instead}, and where CMake does not look for it: {always}"
    if match := _NO_FOLDER.search(log):
        folder = match["given"] or match["empty"]
        return f"{folder} is not in the sdist: a git submodule, most likely; build from its repository: [source] git"
    if match := _NO_LIBRARY.search(log):
        if library := toolkit_library(match["name"]):
            return f"lib{match['name']} is in the CUDA toolkit: matrix.cuda[].libraries = [{library!r}]"
        return (
            f"lib{match['name']} is not there, and the project does not build it: install it, or name it in [[native]]"
        )
    return _missing_program(next(filter(None, match.groups())) for match in _NO_PROGRAM.finditer(log))


def _missing_program(names: Iterable[str]) -> str | None:
    for name in names:
        if name in _PROGRAMS:
            return f"{name} is not there; install it: apt-get install {_PROGRAMS[name]}"
        if name == toolkit_library(name):
            return f"{name} is in the CUDA toolkit: matrix.cuda[].libraries = [{name!r}]"
    return None


def older_python(text: str) -> str | None:
    """What to do about a first error *text* that is in a header of Python; None if it is elsewhere."""
    if not (match := _IN_PYTHON.search(text)):
        return None
    what = f"its sources do not compile with the headers of Python {match['version']}, and are for an older one"
    return f"{what}, most likely: --python 3.8, or matrix.python = ['3.8'], takes another that is installed"


def left_out(log: str) -> str | None:
    """The first line of a build's *log* that says that CUDA is left out; None if none does."""
    lines = (match[0].strip(" -") for match in _LEFT_OUT.finditer(log))
    return next((line for line in lines if len(line) <= _LONGEST), None)


def _is_in(header: str, folder: str) -> bool:
    return folder.endswith("/") and header.startswith(folder)
