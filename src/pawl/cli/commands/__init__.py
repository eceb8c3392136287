"""What the commands do: one module a noun, one function a command, named by the table.

A function takes the ``Call`` and the command's values by name, and returns the exit status. It asks the
daemon and shows the answer; what is decided is decided there.
"""
