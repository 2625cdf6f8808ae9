"""PE files of Windows: what each says to the loader (`read`), which file loads which (`linkage`), its `code`.

GPU code is cut out by `cutting`, which proves that the result loads as the file before.
"""
