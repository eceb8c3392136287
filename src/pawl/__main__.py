"""``python -m pawl`` is the command ``pawl``."""

from pawl.cli.main import main

main()
