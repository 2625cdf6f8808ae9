"""The functions of ``import vbuild``: one for each command, with arguments as a person types them in Python.

`building`, `repackaging`, `looking` and `shipping` have them, as ``vbuild --help`` has the commands; `arguments` turns
strings and paths into the values that the rooms below take, and `request` says how options are declared, once.

Paths are texts or pathlib's, names those of the command's options. A verb is imported when it is called. What vbuild
refuses raises a VbuildError, whose message names the file and says what was expected. Sizes are in bytes unless a
unit is named; MB are 10^6 bytes.
"""

from typing import Literal

# MB of 2**20 bytes that PyPI allows a file by default, and `check` too
PYPI_LIMIT = 100
Layout = Literal["hwcaps", "redirect", "local", "suffix", "oci", "conda", "variants"]
