"""Small real projects, one per build backend, each with one loop whose instructions tell the level it was built for."""

from pathlib import Path

# sixteen floats at once: four SSE registers, two AVX or one AVX-512, whatever the compiler thinks of vectorising
KERNEL = """
typedef float sixteen __attribute__((vector_size(64), aligned(4)));
void kernel(float *a, const float *b) { *(sixteen *)a += *(const sixteen *)b; }
"""

_MODULE = """
#include <Python.h>
#ifdef __cplusplus
extern "C"
#endif
void kernel(float *a, const float *b);
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) {
    static float a[16], b[16];
    kernel(a, b);
    return PyModule_Create(&definition);
}
"""

_BACKEND = """
import base64, hashlib, os, shlex, subprocess, sys, sysconfig, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    compiler, given = (shlex.split(os.environ.get(name, "")) for name in ("CC", "CFLAGS"))
    objects, module = [], "demo" + sysconfig.get_config_var("EXT_SUFFIX")
    for source in ("module.c", "src/kernel.c"):
        objects.append(os.path.join("build", source + ".o"))
        os.makedirs(os.path.dirname(objects[-1]), exist_ok=True)
        own = ["-O2", "-fPIC", "-I" + sysconfig.get_path("include"), "-c", source, "-o", objects[-1]]
        subprocess.run([*(compiler or ["gcc"]), *own, *OWN, *given, "-g0"], check=True)
    linked = ["-shared", *objects, "-o", module, *shlex.split(os.environ.get("LDFLAGS", ""))]
    subprocess.run([*(compiler or ["gcc"]), *linked], check=True)
    tag = "cp{0}{1}-cp{0}{1}-linux_".format(*sys.version_info) + os.uname().machine
    files = {
        module: open(module, "rb").read(),
        "demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n",
        "demo-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: {tag}\\n".encode(),
    }
    record = "demo-1.0.dist-info/RECORD,,\\n"
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(data)}\\n"
    files["demo-1.0.dist-info/RECORD"] = record.encode()
    with zipfile.ZipFile(os.path.join(folder, f"demo-1.0-{tag}.whl"), "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return os.path.basename(archive.filename)
"""

_RUST = """
#[no_mangle]
pub extern "C" fn kernel(a: &mut [f32; 16], b: &[f32; 16]) {
    #[cfg(target_feature = "avx512f")]
    unsafe {
        use std::arch::x86_64::{_mm512_add_ps, _mm512_loadu_ps, _mm512_storeu_ps};
        _mm512_storeu_ps(a.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(a.as_ptr()), _mm512_loadu_ps(b.as_ptr())));
    }
    #[cfg(not(target_feature = "avx512f"))]
    for (x, y) in a.iter_mut().zip(b) {
        *x += *y;
    }
}
"""

_PROJECT = '[project]\nname = "demo"\nversion = "1.0"\n'


def tree(folder: Path, files: dict[str, str]) -> Path:
    """*files*, by path and text, in *folder*."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def setuptools_project(
    folder: Path, *, flags: tuple[str, ...] = ("-march=native", "-mtune=native"), kernel: str = KERNEL
) -> Path:
    """A setup.py that hard-codes *flags*, as annoy's does; no pyproject.toml."""
    setup = f"""
from setuptools import Extension, setup

sources = ["module.c", "src/kernel.c"]
setup(name="demo", version="1.0", ext_modules=[Extension("demo", sources, extra_compile_args={list(flags)})])
"""
    return tree(folder, {"setup.py": setup, "module.c": _MODULE, "src/kernel.c": kernel})


def c_project(
    folder: Path, *, flags: tuple[str, ...] = ("-march=native", "-mtune=native"), kernel: str = KERNEL
) -> Path:
    """The same, by a backend in its own tree: a build without packages, for tests of what comes after builds."""
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"pyproject.toml": system + _PROJECT, "backend.py": _BACKEND.replace("OWN", str(list(flags)))}
    return tree(folder, files | {"module.c": _MODULE, "src/kernel.c": kernel})


def cmake_project(folder: Path, *, options: str = "add_compile_options(-march=native)") -> Path:
    """A scikit-build-core project; *options* are lines of its CMakeLists.txt, before its one target."""
    cmake = f"""
cmake_minimum_required(VERSION 3.15)
project(demo C)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
include(CheckCCompilerFlag)
{options}
python_add_library(demo MODULE module.c src/kernel.c WITH_SOABI)
install(TARGETS demo DESTINATION .)
"""
    system = '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'
    files = {"pyproject.toml": system + _PROJECT, "CMakeLists.txt": cmake}
    return tree(folder, files | {"module.c": _MODULE, "src/kernel.c": KERNEL})


def meson_project(folder: Path) -> Path:
    """A meson-python project with -march=native among its targets' own arguments."""
    meson = """
project('demo', 'c', default_options: ['buildtype=release'])
py = import('python').find_installation(pure: false)
py.extension_module('demo', 'module.c', 'src/kernel.c', c_args: ['-march=native'], install: true)
"""
    system = '[build-system]\nrequires = ["meson-python"]\nbuild-backend = "mesonpy"\n'
    files = {"pyproject.toml": system + _PROJECT, "meson.build": meson}
    return tree(folder, files | {"module.c": _MODULE, "src/kernel.c": KERNEL})


def maturin_project(folder: Path) -> Path:
    """A Rust library without crates; its cargo configuration asks for the building machine's own processor."""
    cargo = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n[lib]\ncrate-type = ["cdylib"]\n'
    system = '[build-system]\nrequires = ["maturin>=1.5", "cffi"]\nbuild-backend = "maturin"\n'
    bindings = '[tool.maturin]\nbindings = "cffi"\n'
    config = '[build]\nrustflags = ["-C", "target-cpu=native", "--cfg", "kept"]\n'
    check = '\n#[cfg(not(kept))]\ncompile_error!("the project\'s own flags are lost");\n'
    files = {"pyproject.toml": system + _PROJECT + bindings, "Cargo.toml": cargo, ".cargo/config.toml": config}
    return tree(folder, files | {"src/lib.rs": _RUST + check})
