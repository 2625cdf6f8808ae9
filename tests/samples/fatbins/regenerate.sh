#!/bin/sh
# Compile kernel.cu into every sample, in the working directory: sh regenerate.sh FOLDER-OF-CUDA, as ../README.md says.
set -eu
nvcc=$1/bin/nvcc
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT

plain="--strip-all,--build-id=none,--hash-style=gnu,-z,noseparate-code"
link="-shared -cudart none -cudadevrt none -Xcompiler -fPIC -Xlinker $plain"
two="-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]"

# the flags are words: shellcheck disable=SC2086
for mode in balance size speed none; do
    "$nvcc" $link $two --compress-mode=$mode kernel.cu -o "$mode.so"
done
"$nvcc" $link $two -Xlinker -z,pack-relative-relocs kernel.cu -o packed_relocations.so
"$nvcc" $link -G -gencode arch=compute_90,code=sm_90 kernel.cu -o debug.so
"$nvcc" $link -gencode arch=compute_90a,code=[sm_90a,compute_90a] \
    -gencode arch=compute_100f,code=[sm_100f,compute_100f] kernel.cu -o suffixes.so

# relocatable device code: the object keeps its own fatbin beside that of the linked code
"$nvcc" -Xcompiler -fPIC $two -rdc=true -c kernel.cu -o "$objects/kernel.o"
"$nvcc" -Xcompiler -fPIC $two -dlink "$objects/kernel.o" -o "$objects/linked.o"
"$nvcc" $link "$objects/kernel.o" "$objects/linked.o" -o relocatable.so
