"""What a failed build lacks, by its log, and the line to paste that mends it.

fatal error: zlib.h: No such file      apt-get install zlib1g-dev
No module named 'numpy'                build.requires = ['numpy']
cannot find -lcufft                    matrix.cuda[].libraries = ['cufft']
'NPY_OWNDATA' undeclared               build.requires = ['numpy<2.3']
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import frameworks

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
# programs that builds call; some ask for a library by the name of its program
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
# names of libraries for pkg-config, CMake or a repository, where header and package have others
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
    "json": "nlohmann-json3-dev",
    "fmt": "libfmt-dev",
    "spdlog": "libspdlog-dev",
    "abseil-cpp": "libabsl-dev",
    "yaml-cpp": "libyaml-cpp-dev",
}
_SPELLING = re.compile(r"^lib|(?<=[a-z])[-_.\d]*$")


def _libraries() -> Iterator[tuple[str, str]]:
    yield from ((name.lower(), package) for name, package in _PROGRAMS.items())
    for header, package in _PACKAGES.items():
        yield _SPELLING.sub("", package.removesuffix("-dev")), package
        yield package.removeprefix("lib").removesuffix("-dev"), package
        yield PurePath(header).parts[0].removesuffix(".h").lower().removeprefix("lib"), package
    yield from _ALSO.items()


_BY_LIBRARY = dict(_libraries())
_ON_INDEX = frozenset({"pybind11", "nanobind"})

ASSEMBLERS = frozenset({"nasm", "yasm"})
"""Without these, libraries leave out the assembly code that they choose at run time."""

CIBUILDWHEEL = "CIBUILDWHEEL"
"""Without it, some projects build for the building machine alone."""

# modules that are not called as their project is
_PROJECTS = {
    "cpuinfo": "py-cpuinfo",
    "distutils": "setuptools<74",  # the last with distutils.msvccompiler
    "git": "gitpython",
    "mesonpy": "meson-python",
    "mypyc": "mypy",
    "pil": "pillow",
    "skbuild": "scikit-build",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# those that are, of what builds take
_SAME_NAME = frozenset(
    {"cffi", "cmake", "cython", "distro", "extension-helpers", "h5py", "hatchling", "jax", "jaxlib", "jinja2"}
    | {"mako", "maturin", "mpi4py", "mypy", "nanobind", "ninja", "numba", "numpy", "packaging", "pandas", "pip"}
    | {"pkgconfig", "psutil", "pyarrow", "pybind11", "pythran", "requests", "scikit-build-core", "scipy"}
    | {"semantic-version", "setuptools-rust", "setuptools-scm", "six", "toml", "tomli", "tqdm", "triton"}
    | {"typing-extensions", "versioneer", "wheel"}
)

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


def project_of(module: str) -> str:
    """The project that has *module*: a known one, else the one of its name."""
    return _PROJECTS.get(module.lower(), canonicalize_name(module))


def is_known(project: str) -> bool:
    """Whether many builds take it."""
    return project in _SAME_NAME or project in _PROJECTS.values() or project in frameworks()


def is_of_cuda(header: str) -> bool:
    """Whether *header* is CUDA's, or of a toolkit library that is more than headers."""
    return header.startswith(("cuda.h", "cuda_", "cudaGL", "cudaEGL")) or toolkit_library(header) not in {
        None,
        "cccl",
        "nvtx",
    }


def debian_package(header: str) -> str | None:
    for name, package in _PACKAGES.items():
        if header == name or (name.endswith("/") and header.startswith(name)):
            return package
    return None


def toolkit_library(header: str) -> str | None:
    """Its name in ``matrix.cuda[].libraries``, or None."""
    return next((library for start, library in _TOOLKIT_HEADERS.items() if header.startswith(start)), None)


def dependency_package(name: str) -> str | None:
    """The Debian package of what pkg-config or CMake call *name*, as in ``libpng16``, or None."""
    plain = name.lower()
    spellings = dict.fromkeys((plain, plain.removeprefix("lib"), _SPELLING.sub("", plain)))
    return next((package for spelling in spellings if (package := _BY_LIBRARY.get(spelling))), None)


_NO_MODULE = re.compile(r"^(?:ModuleNotFoundError|ImportError): No module named '(\w+)", re.MULTILINE)
_NO_PYTHON_HEADER = re.compile(r"Python\.h'? ?(?:file not found|: No such file)")
_NO_HEADER = re.compile(r"fatal error: '?(?P<header>[^\s':]+)'?(?:: No such file or directory| file not found)")
_IN_PYTHON = re.compile(r"/include/python(?P<version>3\.\d+)\w*/[\w/]+\.h:\d+:\d+: error: ")
# structures of Python that C of an older Cython looks into
_OLD_CYTHON = re.compile(r"\b(?:PyThreadState|PyTypeObject|PyFrameObject)\b.* (?:no member named|incomplete typedef)")
# names that numpy's headers of today lack, as gcc and nvcc call them; numpy 2 hides what is in a PyArray_Descr
# https://numpy.org/doc/stable/numpy_2_0_migration_guide.html#c-api-changes
_NO_NUMPY_NAME = re.compile(
    r"\W(?P<name>PyArray_\w+|NPY_(?!ARRAY_)\w+)\W (?:is undefined|undeclared|was not declared)"
    r"|_PyArray_Descr\b[^\n]* no member named \W(?P<field>\w+)"
)
# of cudafe++ and of gcc; the release notes of CUDA 13.0 list what went
_NO_FIELD = re.compile(r"cudaDeviceProp\W+ has no member (?:named )?\W(?P<name>\w+)")
_UNREACHED = re.compile(r"(?:unable to access|Failed to clone repository:) '(?P<url>[^']+?)(?:\.git)?/?'")
# what a script downloads: requests, curl, and urllib, which does not say from where
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
_NO_PROGRAM = re.compile(
    r"No such file or directory: '(?:[^'\n]*/)?(?P<called>[\w+-]+)'"
    r"|(?:sh|bash): (?:line )?\d+: (?P<shell>[\w+-]+): (?:command )?not found"
    r"|\b(?P<said>[\w+-]+)(?: binary| executable| program)? (?:could not be located|could not be found|was not found)"
    r"|Program '?(?P<meson>[\w+-]+)'?[^\n]* found: NO",
)
# what Meson, CMake, pkg-config and its crate say of a library that a build requires
_REQUIRED = re.compile(
    r"ERROR: Dependency (?:lookup for )?\"?(?P<meson>[\w.+-]+)\"? (?:not found|with method)"
    r"|CMake Error[^\n]*\n\s*Could NOT find (?P<found>[\w.+-]+)"
    r"|package configuration file provided by\s+\"(?P<config>[\w.+-]+)\""
    r"|required packages were not found:\s+- (?P<module>[\w.+-]+)"
    r"|[Ss]ystem library `(?P<crate>[\w.+-]+)` required by crate"
    r"|Package '?(?P<package>[\w.+-]+)'?"
    r"(?:, required by [^\n]*, not found| was not found in the pkg-config search path)"
)
# and of one that it goes on without
_TRIED = re.compile(
    r"ependency (?P<meson>[\w.+-]+) (?:\([^\n]*\) )?found: NO\b|Could NOT find (?P<found>[\w.+-]+)"
    r"|No package '(?P<package>[\w.+-]+)' found"
)
# of cudafe++
_OF_NVCC = re.compile(r"^(?P<error>\S+\(\d+\): (?:catastrophic )?error: [^\n]+)$", re.MULTILINE)


def advice(log: str, first_error: str) -> str | None:
    """What to do about a failed build, or None if its *log* and a compiler's *first_error* do not show it."""
    if module := missing_module(log):
        project = project_of(module)
        line = "Name the package that has the module"
        if not is_known(project):
            line += "; check first whose it is, as anyone can register a free name on the package index"
        return f"{line}: build.requires = [{project!r}]"
    if _NO_PYTHON_HEADER.search(log):
        return "The headers of Python are missing; install them: apt-get install python3-dev"
    # build systems try other headers than the one that a source lacks
    return (
        missing_header(first_error)
        or _older_python(first_error)
        or _older_numpy(log)
        or _older_cuda(log)
        or missing_source(log)
    )


def missing_module(log: str) -> str:
    """The module that the last traceback in *log* lacks, or ""."""
    return str((_NO_MODULE.findall(log) or [""])[-1])


def missing_header(log: str) -> str | None:
    if not (match := _NO_HEADER.search(log)):
        return None
    header = match["header"]
    if library := toolkit_library(header):
        return f"{header} is in a library of the CUDA toolkit: matrix.cuda[].libraries = [{library!r}]"
    if package := debian_package(header):
        return f"{header} is missing; install it: apt-get install {package}"
    return f"{header} is missing: a file of the project that its sdist lacks, or of a library that is not installed"


def _older_python(error: str) -> str | None:
    in_header = _IN_PYTHON.search(error)
    if not in_header and not _OLD_CYTHON.search(error):
        return None
    here = f"the headers of Python {in_header['version']}" if in_header else "these headers of Python"
    problem = f"its sources do not compile with {here}, and are for an older one"
    return f"{problem}, most likely: --python 3.8, or matrix.python = ['3.8'], takes another that is installed"


def _older_numpy(log: str) -> str | None:
    names = [match["name"] or f"PyArray_Descr.{match['field']}" for match in _NO_NUMPY_NAME.finditer(log)]
    if not names:
        return None
    if name := next((name for name in names if name.startswith("PyArray_") or name == "NPY_MAX_ELSIZE"), None):
        return f"numpy 2 has no {name}: build.requires = ['numpy<2'], whose wheel runs with numpy 1 alone"
    return f"numpy 2.3 has no {names[0]}: build.requires = ['numpy<2.3'] takes an older one"


def _older_cuda(log: str) -> str | None:
    if not (match := _NO_FIELD.search(log)):
        return None
    problem = f"no CUDA from 13 on has cudaDeviceProp.{match['name']}"
    return f"{problem}: install CUDA 12, set CUDA_HOME to its folder, and ask for it: --toolkit 12.9"


def missing_source(log: str) -> str | None:
    return _not_fetched(log) or _not_in_sdist(log) or _not_installed(log)


def _not_fetched(log: str) -> str | None:
    if match := _UNREACHED.search(log):
        problem = f"The build clones {match['url']}, which this machine does not reach"
        if not (line := _line(match["url"].rpartition("/")[2].lower())):
            return problem
        always = "build.config-settings = { 'cmake.define.FETCHCONTENT_TRY_FIND_PACKAGE_MODE' = 'ALWAYS' }"
        return f"{problem}. To take an installed one: {line}, and where CMake does not look for it: {always}"
    if match := _NO_DOWNLOAD.search(log):
        problem = f"{match['host'] or match['said'] or 'a server'}{match['path'] or ''}"
        return f"The build downloads from {problem}, which this machine does not reach"
    return None


def _not_in_sdist(log: str) -> str | None:
    if not (match := _NO_FOLDER.search(log)):
        return None
    if match["bare"]:
        return f"{match['bare']}/CMakeLists.txt is not in the sdist; build from its repository: [source] git"
    folder = match["given"] or match["empty"]
    return f"{folder} is not in the sdist: a git submodule, most likely; build from its repository: [source] git"


def _not_installed(log: str) -> str | None:
    if match := _NO_LIBRARY.search(log):
        name = match["name"]
        if library := toolkit_library(name):
            return f"lib{name} is in the CUDA toolkit: matrix.cuda[].libraries = [{library!r}]"
        how = "install it, name it in [[native]], or make it in build.before-build"
        return f"lib{name} is not there, and the project does not build it: {how}"
    for name in _named(_NO_PROGRAM, log):
        if name in _PROGRAMS:
            return f"{name} is not there; install it: apt-get install {_PROGRAMS[name]}"
        if name == toolkit_library(name):
            return f"{name} is in the CUDA toolkit: matrix.cuda[].libraries = [{name!r}]"
    if libraries := _named(_REQUIRED, log):  # the last is the one that the build ends with
        return f"{libraries[-1]} is not there; {_to_get(libraries[-1])}"
    return None


def _to_get(library: str) -> str:
    if line := _line(library):
        return f"{'the package index has it' if library in _ON_INDEX else 'install it'}: {line}"
    return "install the library with its headers, or name it in [[native]]"


def _line(library: str) -> str:
    if library in _ON_INDEX:
        return f"build.requires = [{library!r}]"
    package = dependency_package(library)
    return f"apt-get install {package}" if package else ""


def looked_in_vain(log: str, programs: Iterable[str] = (), libraries: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """What a build did not find and went on without, with what to do about it.

    Of *programs* and *libraries* only those count that projects commonly want.
    """
    for name in dict.fromkeys((*libraries, *_named(_TRIED, log))):
        if _line(name):
            yield name, f"looked for and not found; {_to_get(name)}"
    for name in dict.fromkeys(programs):
        if name in _PROGRAMS:
            yield name, f"looked for on PATH and not found; install it: apt-get install {_PROGRAMS[name]}"


def _named(pattern: re.Pattern[str], log: str) -> list[str]:
    return [next(filter(None, match.groups())) for match in pattern.finditer(log)]


def first_of_nvcc(log: str) -> str | None:
    match = _OF_NVCC.search(log)
    return match["error"] if match else None
