"""`vbuild mirror`: an index of a fleet's own, with what its machines install, cut to the GPUs that they have.

Bottom up: `model` has the values, `resolution` asks uv what each machine installs, `making` fetches and cuts one file,
`site` writes the folder, `mirror` is the verb, and `check` compares a site with its mirror.json.
"""
