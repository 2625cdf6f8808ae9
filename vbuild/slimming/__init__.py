"""``vbuild slim``: GPU code for other GPUs, debug information and symbols, cut out of wheels and installed packages.

Start with `slim` for wheels and `environment` for installed packages; both ask `plan` what becomes of each file. The
edit of a library is made in ``vbuild.elf.surgery`` and ``vbuild.pe``.
"""
