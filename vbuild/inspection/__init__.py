"""``vbuild inspect`` and ``vbuild doctor``: what is in wheels and environments, as values, text, and one HTML page.

Start with `inspect`; the values are in `model`. `doctor` says on which GPUs installed GPU code runs.
"""
