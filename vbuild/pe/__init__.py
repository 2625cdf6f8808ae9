"""PE files of Windows: what each says to the loader, which file of a wheel loads which, and GPU code cut out.

Start with `read` and `linkage`; `code` is what the proof of instruction sets takes. Cutting is `cutting` on the words
of `image`; `cut_check` proves of each result that it loads as the file before.
"""
