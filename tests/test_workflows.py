"""Workflows, hooks and .ci/run call make targets that exist, and nothing that a developer could not run."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def targets_of(makefile: str) -> set[str]:
    """The names of all rules; a pattern rule stands for itself."""
    rules = re.findall(r"^([\w.$()/% -]+?):(?!=)", makefile, re.MULTILINE)
    return {name for rule in rules for name in rule.split()}


def called_targets(command: str) -> list[str]:
    """What a line of a shell asks make for; ValueError if it runs anything else."""
    words = command.split()
    if words[0] != "make":
        raise ValueError(f"{command!r} is not a call of make")
    return [word for word in words[1:] if "=" not in word]


def commands(workflow: dict[str, Any]) -> list[str]:
    """Every command that the jobs run, once for each member of their matrices."""
    found = []
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for values in itertools.product(*matrix.values()):
            chosen = dict(zip(matrix, map(str, values), strict=True))
            for step in job["steps"]:
                line = step.get("run", "")
                for name, value in chosen.items():
                    line = line.replace(f"${{{{ matrix.{name} }}}}", value)
                found += [one for one in line.splitlines() if one.strip()]
    return found


TARGETS = targets_of((ROOT / "Makefile").read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_make_targets_that_exist(path):
    found = commands(load(path))
    assert found
    for command in found:
        assert set(called_targets(command)) <= TARGETS, command


def ci_targets() -> list[str]:
    script = (ROOT / ".ci" / "run").read_text()
    (listed,) = re.findall(r"^make (.+)$", script, re.MULTILINE)
    return listed.split()


def test_what_must_pass_before_a_change_lands_exists():
    assert {"check", "test"} <= set(ci_targets()) <= TARGETS


def test_the_workflow_runs_all_that_must_pass_and_names_it_for_skips():
    workflow = load(ROOT / ".github" / "workflows" / "ci.yml")
    run = {target for command in commands(workflow) for target in called_targets(command)}
    assert set(ci_targets()) <= run
    assert set(workflow["env"]["SHOAL_CI_TARGETS"].split()) <= run


def test_every_supported_python_is_tested_on_both_architectures():
    matrix = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    supported = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert matrix["python"] == supported
    assert [name.endswith("-arm") for name in matrix["machine"]] == [False, True]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_what_a_forge_needs(path):
    form = load(path)
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"] and form["description"]
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids)) and all(part["attributes"]["label"] for part in form["body"])


def hooks() -> dict[str, Any]:
    config = load(ROOT / ".pre-commit-config.yaml")
    assert [repository["repo"] for repository in config["repos"]] == ["local"], "no hook comes from a network"
    return {hook["id"]: hook for hook in config["repos"][0]["hooks"]}


def test_hooks_call_make_targets_that_exist():
    for hook in hooks().values():
        if hook["language"] == "system":
            assert set(called_targets(hook["entry"])) <= TARGETS


@pytest.mark.parametrize(
    ("subject", "is_good"),
    [
        ("gate: wait for a dying worker before waiting for others", True),
        ("docs, tests: rename leases", True),
        ("core/ring: " + "x" * 61, True),
        ("core/ring: " + "x" * 62, False),
        ("Fix a bug", False),
        ("gate:wait", False),
        ("", False),
    ],
)
def test_a_subject_names_an_area_and_is_short(subject, is_good):
    pattern = hooks()["subject"]["entry"]
    for message in (subject, f"{subject}\n\nWhy: because.\n"):
        assert bool(re.search(pattern, message, re.MULTILINE)) == is_good


def test_the_readers_find_what_is_wrong():
    assert targets_of("a b: c\nx := 1\n.PHONY: a\nd-%: e\n\tmake f: g\n") == {"a", "b", ".PHONY", "d-%"}
    assert called_targets("make test X=1 check") == ["test", "check"]
    with pytest.raises(ValueError, match="not a call of make"):
        called_targets("pytest tests")
    workflow = {
        "jobs": {"a": {"strategy": {"matrix": {"t": ["x", "y"]}}, "steps": [{"run": "make ${{ matrix.t }}"}]}}
    }
    assert commands(workflow) == ["make x", "make y"]
