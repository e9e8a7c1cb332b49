"""`python -m sapwood`: the command line, where its script isn't on the path."""

from sapwood.cli import main

if __name__ == "__main__":
    main()
