"""Changed ELF files: GPU code and symbols cut out (`cutting`, `cut_check`), and libraries renamed (`relink`)."""
