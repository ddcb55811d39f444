// Keys: of the whole page (a field that is typed into, and an open dialog, keep theirs), and of the tabs.

export function onKeys(actions) {
  const keys = {
    " ": actions.pause,
    ArrowLeft: (event) => actions.step(event.shiftKey ? -10 : -1),
    ArrowRight: (event) => actions.step(event.shiftKey ? 10 : 1),
    "[": () => actions.environment(-1),
    "]": () => actions.environment(1),
    "+": () => actions.zoom(1.5),
    "=": () => actions.zoom(1.5),
    "-": () => actions.zoom(1 / 1.5),
    f: actions.fit,
    g: actions.lines,
    t: actions.theme,
    "?": actions.help,
    Escape: actions.nothing,
  };
  window.addEventListener("keydown", (event) => {
    const { target } = event,
      work = keys[event.key];
    if (!work || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typed = target.matches("select, input") && target.type !== "range" && target.type !== "checkbox";
    if (typed || (event.key === " " && target.matches("button, input, summary"))) return;
    event.preventDefault();
    work(event);
  });
}

/** A row of tabs: a click chooses one, arrows go to the next. */
export function onTabs(choose) {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => choose(tab.getAttribute("aria-controls")));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.stopPropagation();
      const next = tabs[(k + by + tabs.length) % tabs.length];
      next.focus();
      choose(next.getAttribute("aria-controls"));
    });
  });
}
