"""What would fail, told from what was observed: pure findings for `check` and for preflight.

Adapters gather values (`observed`); every module here looks at one topic and answers with findings;
`findings` runs them all.
"""
