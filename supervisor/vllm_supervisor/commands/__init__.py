"""One command-line verb a file."""
