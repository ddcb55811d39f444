// Stores the view in the part of the address after the #, so that a link opens the same view.

export function readLink() {
  const found = new URLSearchParams(location.hash.slice(1)),
    link = {};
  const numbers = (key) => (found.get(key) ?? "").split(",").map(Number);
  if (found.has("env")) link.env = Math.max(0, Math.floor(Number(found.get("env"))) || 0);
  if (found.has("zoom") && found.has("at")) {
    const scale = Number(found.get("zoom")),
      [x, y] = numbers("at");
    if (scale > 0 && [scale, x, y].every(Number.isFinite)) link.camera = { scale, x, y };
  }
  if (found.has("select")) {
    const at = found.get("select").lastIndexOf(":"),
      index = Number(found.get("select").slice(at + 1));
    if (at > 0 && Number.isInteger(index) && index >= 0)
      link.selection = { key: found.get("select").slice(0, at), index };
  }
  link.hidden = found.getAll("hide");
  if (["light", "dark"].includes(found.get("theme"))) link.theme = found.get("theme");
  link.lines = found.get("lines") === "1";
  link.tab = found.get("tab");
  return link;
}

export function writeLink({ env, camera, selection, hidden, theme, lines, tab }) {
  const parts = new URLSearchParams({ env });
  if (!camera.fitted) {
    parts.set("zoom", Number(camera.scale.toPrecision(6)));
    parts.set("at", `${Number(camera.x.toFixed(3))},${Number(camera.y.toFixed(3))}`);
  }
  if (selection) parts.set("select", `${selection.key}:${selection.index}`);
  for (const key of hidden) parts.append("hide", key);
  if (theme) parts.set("theme", theme);
  if (lines) parts.set("lines", 1);
  if (tab && tab !== "overview") parts.set("tab", tab);
  // Browsers limit how often the address may change.
  if (location.hash !== `#${parts}`) history.replaceState(null, "", `#${parts}`);
}
