// Keyboard shortcuts. They work wherever the focus is, except in text fields and open dialogs.

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
  const meant = (event) => {
    const { target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return null;
    const typed = target.matches("select, input") && target.type !== "range" && target.type !== "checkbox";
    return typed ? null : keys[event.key];
  };
  window.addEventListener("keydown", (event) => {
    const work = meant(event);
    if (!work) return;
    event.preventDefault();
    work(event);
  });
  // Some browsers click the focused button when the space bar is released, even if keydown was cancelled. Enter
  // still clicks it.
  window.addEventListener("keyup", (event) => event.key === " " && meant(event) && event.preventDefault());
}

/** Makes a row of tabs; a click or Enter selects one. */
export function onTabs(choose) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.addEventListener("click", () => choose(tab.getAttribute("aria-controls")));
  }
}
