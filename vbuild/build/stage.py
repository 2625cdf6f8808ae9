"""What the folder for work in progress is called: such a folder in a project is no part of it."""

STAGE = ".vbuild-"
