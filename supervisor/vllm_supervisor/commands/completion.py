"""`completion`: a script that completes verbs, options and instances in the shell."""

from __future__ import annotations

import argparse
import sys

from vllm_supervisor.core.exits import ExitCode
from vllm_supervisor.daemon.locate import SYSTEM_CONFIG

HELP = "print a completion script for bash (zsh reads it after `bashcompinit`)"

_SCRIPT = """# vllm-supervisor: source this, or put it into /etc/bash_completion.d; in zsh after `bashcompinit`
_vllm_supervisor() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}" words="" named=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{verbs} --help --version"
    else
        case "$verb" in
{cases}
        esac
        case "$verb" in
            {named}) named=yes ;;
        esac
        case "$word" in
            -*) ;;
            *) [ -z "$named" ] || words="$words $(ls {configured} 2>/dev/null | sed -n 's/[.]toml$//p')" ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _vllm_supervisor vllm-supervisor
"""
"""Only what both shells have: zsh runs it with the rules of sh."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "completion", help=HELP, description=HELP.capitalize() + ".", epilog="Exit codes: 0 printed."
    )
    parser.set_defaults(verbs=subparsers)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    choices: dict[str, argparse.ArgumentParser] = args.verbs.choices
    cases = [f'            {name}) words="{" ".join(_options(parser))}" ;;' for name, parser in choices.items()]
    named = [name for name, parser in choices.items() if _takes_an_instance(parser)]
    sys.stdout.write(
        _SCRIPT.format(
            verbs=" ".join(choices), cases="\n".join(cases), named=" | ".join(named), configured=SYSTEM_CONFIG
        )
    )
    return ExitCode.OK


def _takes_an_instance(parser: argparse.ArgumentParser) -> bool:
    named = {str(action.metavar) for action in parser._actions if not action.option_strings}  # noqa: SLF001 - no public way
    return any("INSTANCE" in metavar or "UNIT" in metavar for metavar in named)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    found = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 - no public way
    return sorted(option for option in found if option.startswith("--"))
