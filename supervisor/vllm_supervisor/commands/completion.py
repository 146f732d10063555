"""`completion`: a script that completes verbs, options and instances in the shell."""

from __future__ import annotations

import argparse
import sys

from vllm_supervisor.core.exits import ExitCode

HELP = "print a completion script for bash (zsh reads it after `bashcompinit`)"

_SCRIPT = """# vllm-supervisor: source this, or put it into /etc/bash_completion.d
_vllm_supervisor() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{verbs} --help --version"
    else
        case "$verb" in
{cases}
            *) words="" ;;
        esac
        if [ "${{word:0:1}}" != "-" ]; then
            words="$words $(basename -s .toml -a /etc/vllm-supervisor/*.toml 2>/dev/null)"
        fi
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -o default -F _vllm_supervisor vllm-supervisor
"""

_HIDDEN = frozenset({"trial", "operate"})


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("completion", help=HELP, description=HELP.capitalize() + ".")
    parser.set_defaults(verbs=subparsers)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    choices: dict[str, argparse.ArgumentParser] = args.verbs.choices
    shown = {name: parser for name, parser in choices.items() if name not in _HIDDEN}
    cases = [f'            {name}) words="{" ".join(_options(parser))}" ;;' for name, parser in shown.items()]
    sys.stdout.write(_SCRIPT.format(verbs=" ".join(shown), cases="\n".join(cases)))
    return ExitCode.OK


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 - no public way
    return sorted(option for option in found if option.startswith("--"))
