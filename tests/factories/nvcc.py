"""A source tree with CUDA code, the compiler wrappers of a build of it, and what came of that."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.factories import cuda
from tests.factories.projects import KERNEL, tree
from vbuild.build.plan import BuildBackend, cuda_plan, flag_plan
from vbuild.build.wrappers import BuildFolders, Ccache, CompilerWrappers, install_wrappers
from vbuild.elf.image import ElfImage
from vbuild.gpu_code.model import offered
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuList
from vbuild.recipe.compiling import CudaBuild, CudaSettings, FlagRules, ToolkitSpec
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter

# the variables of a build without a request
OUTSIDE = {name: text for name, text in os.environ.items() if not name.startswith(("CUDA", "NVCC", "CMAKE"))}
INTERPRETER = Interpreter.named("", OUTSIDE)
COMPILERS = Compilers.of(INTERPRETER, OUTSIDE)

GPU = "__global__ void scale(float *x) { x[threadIdx.x] *= 2; }\n"
CALLING = "extern __device__ float twice(float x);\n__global__ void scale(float *x) { x[0] = twice(x[0]); }\n"
CALLED = "__device__ float twice(float x) { return 2 * x; }\n"


class Build:
    """A source tree with compiler wrappers next to it, and the variables of a build there for the GPUs of *request*."""

    def __init__(
        self,
        folder: Path,
        request: str,
        *,
        level: str = "v3",
        home: Path | None = None,
        keep: tuple[str, ...] = (),
        cache: Ccache | None = None,
        **settings: Any,
    ) -> None:
        self.source = tree(folder / "source", {"a.cu": GPU + KERNEL, "b.cu": CALLING, "c.cu": CALLED, "d.cu": KERNEL})
        part = cuda_plan(
            CudaBuild(ToolkitSpec(Dotted(13, 0)), GpuList.parse(request)),
            CudaSettings(**settings),
            home=home or cuda.home(),
            backend=BuildBackend.OTHER,
            compilers=COMPILERS,
            environment=OUTSIDE,
        )
        plan = flag_plan(
            Cpu.known("x86_64", level),
            BuildBackend.OTHER,
            compilers=COMPILERS,
            interpreter=INTERPRETER,
            environment=OUTSIDE,
            flags=FlagRules(keep=keep),
            cuda=part,
        )
        self.wrappers: CompilerWrappers = install_wrappers(
            plan.wrapper_rules,
            COMPILERS,
            folder / "launchers",
            BuildFolders(self.source),
            environment={**OUTSIDE, **cuda.linking()},
            cuda=plan.cuda,
            cache=cache,
        )
        variables = {**OUTSIDE, **dict(plan.environment)}
        self.environment = {**variables, **self.wrappers.environment(variables)}

    def call(self, *command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        variables = self.environment if environment is None else environment
        return subprocess.run(command, cwd=self.source, env=variables, capture_output=True, text=True, check=False)

    def compiled(self, *words: str, **environment: str) -> Path:
        """The object that nvcc makes of a.cu with *words* more."""
        ran = self.call("nvcc", "-c", "a.cu", "-o", "a.o", *words, environment={**self.environment, **environment})
        assert (ran.returncode, ran.stderr) == (0, "")
        return self.source / "a.o"


def codes(library: Path) -> list[set[str]]:
    """The codes in each fatbin of *library* that the runtime is given."""
    containers = offered(device_code(ElfImage.parse(memoryview(library.read_bytes()))).containers)
    return [
        {f"compute_{str(e.arch)[3:]}" if e.code is GpuCodeKind.PTX else str(e.arch) for e in container.entries}
        for container in containers
    ]
