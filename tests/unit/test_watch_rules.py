"""Files of rules by which a site server watches: what they say, and what is wrong with those that are not right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.cli.serve import rules_for
from egs_core.errors import InputError
from egs_core.watch_rules import load_rules, parse_rules

FILE = """
alerts: {webhook: "https://chat.example.org/hooks/secret"}
rules:
  - name: hot
    when: {temperature_above: 88}
    for: 90s
    do: [alert, drain]
  - name: fallen off
    when: {xid: [79, 48]}
    do: [drain, requeue]
    dry_run: false
  - name: idle
    when: {idle_for: 30m}
    queues: [research]
    do: [stop]
"""


def test_a_file_says_what_each_rule_looks_at_and_does() -> None:
    """Rules act only where somebody says so; a condition with a time of its own needs no other."""
    found = parse_rules(FILE)
    hot, fallen, idle = found.rules
    assert (hot.when.words, hot.for_s, hot.do, hot.is_dry) == ("temperature_above 88", 90.0, ("alert", "drain"), True)
    assert (fallen.when.words, fallen.when.bound, fallen.for_s, fallen.is_dry) == ("xid 79, 48", (79, 48), 0.0, False)
    assert (idle.when.words, idle.when.kind, idle.for_s, idle.queues) == ("idle_for 30m", "run", 0.0, ("research",))
    assert parse_rules(FILE.replace(", for: 90s", "").replace("    for: 90s\n", "")).rules[0].for_s == 60.0
    assert all(not rule.is_dry for rule in parse_rules("dry_run: false" + FILE).rules)
    assert parse_rules(FILE.replace("[79, 48]", "any")).rules[1].when.words == "xid any"
    for word in ("loss: nan", "unsaved_for: auto", "unsaved_for: 30m", "loss_not_falling_steps: 2000"):
        rule = parse_rules(FILE.replace("idle_for: 30m", word).replace("[stop]", "[checkpoint]")).rules[2]
        assert (rule.when.words, rule.for_s) == (word.replace(":", ""), 60.0 if word == "loss: nan" else 0.0)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "temperature_above: 88",
            "temperature_above: warm",
            "line 5: rules[0].when.temperature_above: must be a number",
        ),
        ("temperature_above: 88", "temprature_above: 88", "did you mean 'temperature_above'?"),
        ("{temperature_above: 88}", "{}", "line 5: rules[0].when: needs a condition (one a rule, as"),
        ("88}", "88, memory_above: 0.9}", "line 5: rules[0].when: has 2 conditions: temperature_above, memory_above"),
        ("[alert, drain]", "[alert, drian]", "line 7: rules[0].do[1]: must be one of"),
        ("[alert, drain]", "[drain, drain]", "line 7: rules[0].do: an action is there twice"),
        ("[alert, drain]", "[]", "line 7: rules[0].do: needs at least one entry"),
        ("for: 90s", "for: long", "line 6: rules[0].for: "),
        ("for: 90s", "for: 400d", "line 6: rules[0].for: must be at most 2592000"),
        ("[79, 48]", "79", "line 9: rules[1].when.xid: must be a list of numbers, as [79, 48], or any"),
        ("[79, 48]", "[any]", "line 9: rules[1].when.xid: must be a list of numbers"),
        ("[79, 48]", "[]", "line 9: rules[1].when.xid: must be a list of numbers"),
        ("name: idle", 'name: "a\\eb"', "line 12: rules[2].name: must be one line, without characters that steer"),
        ("chat.example.org/", "chat.example.org:99999/", "line 2: alerts.webhook: must be an address"),
        ("chat.example.org/", "chat.example.org:port/", "line 2: alerts.webhook: must be an address"),
        ("chat.example.org/", "[/", "line 2: alerts.webhook: must be an address"),
        ("hooks/", "hooks /", "line 2: alerts.webhook: must be an address"),
        ("[drain, requeue]", "[requeue]", "line 10: rules[1].do: what is requeued could get the same GPU again"),
        ("[drain, requeue]", "[drain, requeue, stop]", "line 10: rules[1].do: requeue and stop exclude each other"),
        (
            "do: [drain, requeue]",
            "for: 5s\n    do: [drain]",
            "line 10: rules[1].for: an XID is a moment: it does not hold for a while (leave",
        ),
        ("[stop]", "[drain]", "line 15: rules[2].do: idle_for is of runs, which none can drain (to a run: alert"),
        ("idle_for: 30m", "temperature_above: 30", "line 14: rules[2].queues: temperature_above is of GPUs"),
        ("name: idle", "name: hot", "line 12: rules[2].name: a second rule 'hot' (give it another name)"),
        ("alerts: ", "alert: ", "line 2: alert: unknown field"),
        ('alerts: {webhook: "https://chat.example.org/hooks/secret"}', "", "rules[0].do: an alert has nowhere to go"),
        ("https://chat", "ftp://chat", "line 2: alerts.webhook: must be an address that begins with https://"),
        ("webhook: ", "apprise: ", "line 2: alerts.apprise: must be a list"),
        (
            'webhook: "https://chat.example.org/hooks/secret"',
            'apprise: ["mail me"]',
            "line 2: alerts.apprise[0]: must be an",
        ),
        (
            '{webhook: "https://chat.example.org/hooks/secret"}',
            "{apprise: []}",
            "rules[0].do: an alert has nowhere to go",
        ),
        ("rules:", "rulez:", "rulez: unknown field (did you mean 'rules'?)"),
        ("idle_for: 30m", "unsaved_for: 30m", "line 15: rules[2].do: unsaved_for without a checkpoint fires once"),
        ("idle_for: 30m", "unsaved_for: 5s", "line 13: rules[2].when.unsaved_for: must be from 1m to 30 days, or auto"),
        ("idle_for: 30m", "unsaved_for: never", "line 13: rules[2].when.unsaved_for: 'never' is not a duration"),
        ("temperature_above: 88", "ecc_errors: true", "line 5: rules[0].when.ecc_errors: must be a number"),
        ("temperature_above: 88", "silent_for: on", "line 5: rules[0].when.silent_for: must be a number"),
        ("rules:", "most_an_hour: yes\nrules:", "line 3: most_an_hour: must be a number"),
        ("idle_for: 30m", "loss: high", "line 13: rules[2].when.loss: must be"),
        ("idle_for: 30m", "loss_not_falling_steps: 1", "line 13: rules[2].when.loss_not_falling_steps: must be"),
        ("[stop]", "[checkpoint, stop]", "line 15: rules[2].do: what is stopped or requeued has its grace to save"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(before: str, after: str, told: str) -> None:
    """One error, which names the place and what to do."""
    assert before in FILE
    with pytest.raises(InputError) as found:
        parse_rules(FILE.replace(before, after, 1), "watch.yaml")
    assert told in str(found.value)
    assert str(found.value).startswith("watch.yaml line ")
    assert "secret" not in str(found.value)


def test_a_file_is_checked_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 and what each rule would do, also as JSON without the webhook's address; 2 and one line for a file
    with a mistake, one that is no YAML, and one that is not there."""
    file = tmp_path / "watch.yaml"
    file.write_text(FILE)
    assert run(["watch", "check", str(file)]) == 0
    out, err = capsys.readouterr()
    told = out.splitlines()
    assert err == "note: idle: of tasks of a framework they only tell: alert, hook\n"
    assert told[0] == "hot: when temperature_above 88, for 90s: alert, drain (dry run)"
    assert told[2] == "idle: when idle_for 30m in queue research: stop (dry run)"
    assert told[3].startswith("3 rules: 1 act, 2 only say what they would have done; at most 10 firings an hour")
    assert run(["watch", "check", "--json", str(file)]) == 0
    as_json = capsys.readouterr().out
    assert "secret" not in as_json
    assert [rule["name"] for rule in json.loads(as_json)["rules"]] == ["hot", "fallen off", "idle"]
    file.write_text("rules: [{name: a, when: {xid: any}, do: [drain]}]")
    assert run(["watch", "check", str(file)]) == 0
    assert tuple(capsys.readouterr()) == (
        "a: when xid any: drain (dry run)\n1 rule: 0 act, 1 only say what they would have done\n",
        "",
    )
    for content in (FILE.replace("88", "hot"), "rules: [", "rules", ""):
        file.write_text(content)
        assert run(["watch", "check", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {file}")
    assert run(["watch", "check", str(tmp_path / "none.yaml")]) == 2
    assert "name a file that is there" in capsys.readouterr().err
    file.write_text(FILE)
    assert load_rules(file) == rules_for(file, ["research"]) == rules_for(file, []) == parse_rules(FILE)
    with pytest.raises(InputError, match="rule 'idle' is for queue 'research', which is not there"):
        rules_for(file, ["other"])
