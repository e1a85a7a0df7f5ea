"""``python -m firstchair`` and the ``firstchair`` script. Ctrl-C ends in one line even while the program starts."""

import sys


def main() -> None:
    """Import the commands and run the one asked for."""
    try:
        from firstchair.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was done\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
