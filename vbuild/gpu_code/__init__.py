"""GPU code inside libraries: NVIDIA's fatbins and AMD's offload bundles, read and packed.

Start with `model`, the values of both vendors, `survey`, which finds them in a library, and `coverage`: how much of it
serves a GPU, and which driver that takes.
"""
