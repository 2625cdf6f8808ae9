"""GPU code inside libraries: NVIDIA's fatbins and AMD's offload bundles, read and packed.

Start with `model`, the values of both vendors, and `survey`, which finds them in a library.
"""
