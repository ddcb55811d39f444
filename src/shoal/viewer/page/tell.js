// Texts of the page: the run's state, the thing under the pointer, the last step.
import { $, number, say } from "./dom.js";
import { categoryOf, entitiesOf, ofAgent } from "./fields.js";

export function showStatus({ run, link, paused, facts, replay }) {
  const ended = run === "ended" && link !== "missing";
  const [key, text] = replay
    ? ["paused", "Replay"]
    : ended
    ? ["ended", facts?.file ? "History file" : "Run ended"]
    : link !== "open"
      ? [link, { lost: "Reconnecting", missing: "No such session" }[link] ?? "Connecting"]
      : paused
        ? ["paused", "View paused"]
        : run === "idle"
          ? ["idle", "Run idle"]
          : ["live", "Live"];
  $("status").dataset.state = key;
  say($("status").lastElementChild, text);
  $("badge").hidden = !paused && !ended;
  const why = !ended
    ? "View paused. The run continues."
    : facts?.file
      ? "The run has ended. This is its history file."
      : "The run has ended.";
  say($("badge"), replay ? replay.text : why);
  const stands = replay ? !replay.playing : paused;
  $("pause-icon").setAttribute("href", stands ? "#i-play" : "#i-pause");
  const action = replay ? (stands ? "Play" : "Pause the replay") : stands ? "Go live" : "Pause the view";
  $("pause").setAttribute("aria-label", action);
  $("live").dataset.on = String(!paused);
}

let heldUntil = 0;

/** Shows a notice on the stage. If it is shown for some seconds, new frames do not remove it before. */
export function notice(text, bad = false, seconds = 0) {
  if (!text && performance.now() < heldUntil) return;
  heldUntil = seconds ? performance.now() + seconds * 1000 : 0;
  if (seconds) setTimeout(() => notice(""), seconds * 1000 + 20);
  $("notice").hidden = !text;
  $("notice").dataset.bad = String(bad);
  say($("notice"), text);
}

const NOTHING = {
  idle: "Nothing to show yet: the run has not stepped since this page was opened",
  ended: "The run has ended, and this environment was not watched before",
};

/** Shows why there is no frame, unless another notice is shown. */
export function tellWhyNothing(run, facts) {
  if ($("notice").dataset.bad === "true" && !$("notice").hidden) return;
  const why = facts?.file ? "A history file has the curves of the run and no environments" : NOTHING[run];
  if (performance.now() >= heldUntil) notice(why ?? "Waiting for the first frame");
}

/** Describes tile, category and entity at a position of the world. */
export function describePlace(layers, hidden, x, y, found) {
  const r = Math.floor(y),
    c = Math.floor(x),
    parts = [];
  for (const { kind, field, w, h, key } of layers) {
    if (hidden.has(key) || kind === "entities" || r < 0 || c < 0 || r >= h || c >= w) continue;
    const channels = field.shape[2] || 1,
      at = (r * w + c) * channels;
    const value = Array.from(field.data.slice(at, at + channels), number).join(", ");
    if (!parts.length) parts.push(`row ${r}, column ${c}`);
    parts.push(kind === "grid" ? (categoryOf(field, field.data[at])?.[1] ?? `${field.name} ${value}`) : value);
  }
  if (found) {
    const { field } = layers.find((layer) => layer.key === found.key),
      all = entitiesOf(field);
    const name = (all.kind && categoryOf(field, all.kind(found.index))?.[1]) || field.name;
    const health =
      all.hp && all.hpMax ? `, ${number(all.hp(found.index))} of ${number(all.hpMax(found.index))} hp` : "";
    parts.push(`${name} ${found.index}${health}`);
  }
  return parts.join("  ·  ");
}

/** Formats a value: yes or no, a number, or a number with its name, as 1 (push right). */
function tellValue(field, value) {
  if (field.dtype[1] === "b") return value ? "yes" : "no";
  const name = categoryOf(field, value)?.[1];
  return name ? `${number(value)} (${name})` : number(value);
}

/** Returns the fields of a step except observations as pairs: action, reward, terminated, truncated. */
export function describeStep(frame, agent, agents) {
  const rows = [];
  for (const [name, field] of frame.step) {
    if (name.startsWith("observation") || name === "frame") continue;
    const { data } = ofAgent(field, agent, agents);
    const values = Array.from(data.slice(0, 12), (v) => tellValue(field, v));
    rows.push([name, values.join(", ") + (data.length > 12 ? " …" : "")]);
  }
  return rows;
}
