"""One module per group of subcommands. They import typer only; everything else is imported when a command runs."""
