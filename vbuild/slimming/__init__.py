"""``vbuild slim``: cuts GPU code for other GPUs, debug information and symbols out of wheels and installed packages.

Start with `slim` for wheels and `environment` for installed packages. What becomes of one file is decided in
`device_files`, and of a library in `library`; ``vbuild.elf.surgery`` and ``vbuild.pe`` edit it.
"""
