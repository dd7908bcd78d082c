"""``python -m tilegrad`` is the ``tilegrad`` command."""

from tilegrad._cli import main

if __name__ == "__main__":
    main()
