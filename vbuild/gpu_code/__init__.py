"""GPU code inside libraries: NVIDIA's fatbins and AMD's offload bundles, read and packed; nothing here edits a library.

Start with `model`, the values that are the same for both vendors, and `survey`, which finds them in a library.
"""
