"""Writes the page and the picture of every bundled environment: `make env-pages`.

    plug-in -> shoal.native.describe.EnvDescription -> docs/envs/NAME.md, docs/environments.md
    a run from seed 0                               -> docs/pictures/env_NAME.png  (env_pictures.py)

The files are committed, so that they can be read without a build. tests/docs/test_env_pages.py fails when
they are not what this program writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gymnasium.spaces import Dict, Space

import shoal
from shoal.native.describe import (
    EnvDescription,
    FieldDescription,
    describe_env,
    format_agents,
    format_limit,
    list_envs,
)
from shoal.native.plugin import bundled

DOCS = Path(__file__).resolve().parents[1]
NOTE = (
    "`make env-pages` writes this page from the plug-in's description; `shoal info {name}` prints the same."
)


def stem(name: str) -> str:
    """The folder of the environment's source and the name of its page."""
    return bundled()[name].stem


def picture(name: str) -> str:
    return f"env_{stem(name)}.png"


def pages() -> dict[Path, str]:
    """Every page, by the file it belongs in."""
    written = {DOCS / "envs" / f"{stem(name)}.md": page(describe_env(name)) for name in bundled()}
    return {DOCS / "environments.md": index(), **written}


def index() -> str:
    lines = [
        "# Bundled environments",
        "",
        "Shoal comes with these environments in C. `shoal envs` prints this list, and `shoal info ENV`",
        "describes one of them. Any other Gymnasium environment runs in [worker processes](process.md), and",
        "you can [write your own in C](write_env.md). Words such as *agent* and *row* are in the",
        "[glossary](glossary.md).",
        "",
        "| environment | task | agents | observation | action |",
        "|---|---|---|---|---|",
    ]
    for name, summary in list_envs().items():
        env = describe_env(name)
        lines.append(
            f"| [{name}](envs/{stem(name)}.md) | {summary} | {env.agents} | {_spaces(env.observations)} "
            f"| {_spaces(env.actions)} |"
        )
    return "\n".join([*lines, ""])


def page(env: EnvDescription) -> str:
    folder = stem(env.name)
    lines = [f"# {env.name}", "", f"{env.summary}.", ""]
    lines += [f"![{env.name}: {_caption(env.name)}](../pictures/{picture(env.name)})", ""]
    lines += ["```python", *example(env), "```", ""]
    for title, fields in (("Observation", env.observations), ("Action", env.actions)):
        lines += [f"## {title}", ""]
        for field in fields:
            lines += describe_field(field)
    lines += ["## Reward", "", env.reward, ""]
    lines += ["## End of an episode", "", f"{env.ending} {format_limit(env)}", ""]
    lines += ["## Agents", "", format_agents(env), ""]
    if env.agents > 1:
        lines += ["[Several agents in C](../agents.md) shows how an environment writes these rows.", ""]
    lines += ["## Options", ""]
    lines += [
        "Options are keywords of `shoal.make_vec`.",
        "",
        "| option | default | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{option}` | `{value!r}` | {text} |" for option, value, text in env.options]
    lines += ["", "## Extensions", "", *(f"- It {ability}." for ability in env.abilities), ""]
    source = next((DOCS.parent / "envs" / folder).glob(f"{folder}.c")).name
    lines += [f"Source: [envs/{folder}/{source}](../../envs/{folder}/{source}). {NOTE.format(name=env.name)}"]
    lines += ["Words such as *agent* and *row* are in the [glossary](../glossary.md).", ""]
    return "\n".join(lines)


def example(env: EnvDescription) -> list[str]:
    """Code that runs as it is; the shapes in it are those of the environments that it makes."""
    count = 1024 if env.agents == 1 and env.name != "Pixels-v0" else 64
    with shoal.make_vec(env.name, count, session=None) as envs:
        shown = _shapes(envs.observation_space)
    lines = ["import shoal", "", f'envs = shoal.make_vec("{env.name}", num_envs={count})']
    lines += ["observations, info = envs.reset(seed=0)"]
    lines += ["observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())"]
    lines += [f"print(observations{key}.shape)  # {shape}" for key, shape in shown]
    return [*lines, "envs.close()"]


def _shapes(space: Space) -> list[tuple[str, tuple[int, ...]]]:
    if isinstance(space, Dict):
        return [(f'["{key}"]', one.shape) for key, one in space.items()]
    return [("", space.shape)]


def describe_field(field: FieldDescription) -> list[str]:
    name = f"`{field.name}`: " if field.name is not None else ""
    lines = [f"{name}`{field.space}`. {field.text}", ""]
    if field.elements:
        ranges = any(text for _, text in field.elements)
        lines += (
            ["| element | meaning | range |", "|---|---|---|"]
            if ranges
            else ["| element | meaning |", "|---|---|"]
        )
        for i, (text, bounds) in enumerate(field.elements):
            lines.append(f"| {i} | {text} |" + (f" {bounds} |" if ranges else ""))
        lines.append("")
    if field.values:
        lines += [
            "| value | meaning |",
            "|---|---|",
            *(f"| {value} | {text} |" for value, text in field.values),
            "",
        ]
    return lines


def _spaces(fields: tuple[FieldDescription, ...]) -> str:
    return ", ".join(
        f"`{field.name}: {field.space}`" if field.name else f"`{field.space}`" for field in fields
    )


def _caption(name: str) -> str:
    captions = {
        "Pixels-v0": "the four frames of one observation",
        "Reef-v0": "one environment, as `shoal watch` draws it",
        "Snake-v0": "one environment, as `shoal watch` draws it",
        "Squared-v0": "one environment, as `render` draws it",
    }
    return captions.get(name, "four moments of one episode")


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parent))
    from env_pictures import draw

    (DOCS / "envs").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(DOCS.parent))
    for name in bundled():
        path = DOCS / "pictures" / picture(name)
        path.write_bytes(draw(name))
        print(path.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
