"""``vbuild slim``: cuts GPU code for other GPUs, debug information and symbols out of wheels and installed packages.

Start with `slim` for wheels and `environment` for installed packages; `device_files` and `library` decide on
each file, by what `vbuild.hardware.gpu.kept_offers` says of its GPU code and PTX.
"""
