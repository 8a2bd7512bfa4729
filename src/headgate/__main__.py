"""`python -m headgate`: the same as the `headgate` command."""

from headgate.cli.main import main

if __name__ == "__main__":
    main()
