"""The layout redirect: an sdist whose build backend fetches the finished wheel that fits the machine.

Start with `plan` and `sdist`. The modules called ``redirect…`` go into the sdist: they run under the user's Python
and use the standard library only.
"""
