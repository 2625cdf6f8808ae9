from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    packages=["twice"],
    package_dir={"": "src"},
    ext_modules=[CUDAExtension("twice._C", ["src/twice.cpp", "src/twice_cuda.cu"])],
    cmdclass={"build_ext": BuildExtension},
)
