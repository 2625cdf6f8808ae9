"""``vbuild publish`` and ``vbuild check``: finished wheels laid out so that today's installers get the best one.

Start with `publish`, and `model` for what a layout plans. Each layout has a module or folder of its name: the plan,
which is a value, and the check, which is given nothing but the folder.
"""
