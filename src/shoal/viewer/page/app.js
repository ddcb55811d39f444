// The page: what is shown, and who draws it when. State lives here; the other modules draw what they are given.
import { AgentPanel, agentOf, viewSide } from "./agent.js";
import { Camera, steer } from "./camera.js";
import { $, atMost, fitCanvas, number, say, short, span, theme, themeChanged } from "./dom.js";
import { exportDialog, makeGif, makePng } from "./exports.js";
import { categoryOf, entitiesOf } from "./fields.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { onKeys } from "./keys.js";
import { readLink, writeLink } from "./link.js";
import { entityAt } from "./marks.js";
import { Overview } from "./overview.js";
import { Scene, drawPlain, extentOf, layersOf } from "./scene.js";
import { Connection } from "./socket.js";
import { Strip } from "./strip.js";
import { EntityTable } from "./table.js";

const RATE = 20, HIDDEN_RATE = 1;
const GLANCE_MS = 3000, GLANCE_LIMIT_MS = 1200; // how often the other environments are looked at, and how long at most

const state = {
  env: 0, facts: null, frame: null, layers: [], paused: false, selection: null, hovered: null, pointer: null,
  hidden: new Set(), lines: false, theme: "", tab: "overview", link: "connecting", run: "stepping", counters: null,
};
const kept = new History();
const camera = new Camera(() => redraw());
const scene = new Scene();
const timing = { last: 0, mean: 0, worst: 0, count: 0 };
const overview = new Overview((key, on) => setLayer(key, on));
const table = new EntityTable((selection) => select(selection, true));
const agentPanel = new AgentPanel();
const inspector = new Inspector();
const strip = new Strip((env) => pick(env));
const agents = () => state.facts?.agents || 1;
const worlds = () => state.facts?.num_worlds || state.facts?.num_envs || 1;

// ---- what arrives

const connection = new Connection({
  hello({ facts, sessions }) {
    const other = state.facts && (state.facts.pid !== facts.pid || state.facts.started !== facts.started);
    state.facts = facts;
    if (other) {
      overview.clear();
      kept.clear();
      state.frame = null;
    }
    say($("run-name"), facts.name);
    say($("run-about"), `${facts.env} · ${number(facts.num_worlds)} worlds${facts.agents > 1 ? ` · ${facts.agents} agents each` : ""}`);
    document.title = `${facts.name} · Shoal`;
    overview.showFacts(facts, sessions);
    pick(state.env);
  },
  counters(one) {
    Object.assign(state, { counters: one, run: one.run });
    overview.addCounters(one);
    say($("n-steps"), short(one.steps));
    say($("n-rate"), short(one.steps_per_s));
    say($("n-episodes"), short(one.episodes));
    say($("n-return"), number(one.mean_return));
    showStatus();
    refreshCounters();
  },
  frame(frame) {
    glance.delete(frame.env);
    strip.draw(frame, agents());
    if (frame.env !== state.env) return;
    kept.push(frame);
    if (!state.paused) show(frame);
    else refreshTime();
  },
  failure(message) {
    notice(message, true);
  },
  status(link) {
    state.link = link;
    showStatus();
  },
});

// ---- which environments are watched: the chosen one always, the others at a glance now and then

const glance = new Set();

function watch() {
  connection.watch([state.env, ...[...glance].filter((env) => env !== state.env)].slice(0, 8), document.hidden ? HIDDEN_RATE : RATE);
}

function lookAround() {
  if (document.hidden || !state.facts) return;
  for (const env of strip.visible) glance.add(env);
  watch();
  const began = performance.now();
  const timer = setInterval(() => {
    if (glance.size && performance.now() - began < GLANCE_LIMIT_MS) return;
    clearInterval(timer);
    glance.clear();
    watch();
  }, 50);
}

setInterval(lookAround, GLANCE_MS);
document.addEventListener("visibilitychange", watch);

function pick(env) {
  const next = Math.min(worlds() - 1, Math.max(0, Math.floor(env)));
  if (next !== state.env) {
    Object.assign(state, { env: next, frame: null, paused: false, hovered: null, selection: null });
    kept.clear();
    const known = connection.latest.get(next);
    if (known) kept.push({ ...known }), show(kept.last);
    else notice("Waiting for the first frame");
  }
  strip.show(state.env, worlds());
  watch();
  setTimeout(lookAround, 150);
  showStatus();
  remember();
}

// ---- what is shown

function show(frame) {
  const agent = Math.max(0, chosenAgent(frame));
  state.frame = frame;
  const layers = layersOf(frame, agent, agents());
  const before = state.layers.map((layer) => `${layer.key}${layer.w}x${layer.h}`).join();
  state.layers = layers;
  if (camera.fitted && (before !== layers.map((layer) => `${layer.key}${layer.w}x${layer.h}`).join() || !layers.some((l) => l.w))) fit();
  if (frame.error) notice(frame.error, true);
  else notice("");
  if (state.pointer) hoverAt(...state.pointer);
  redraw();
  refreshTime();
  refreshPanel();
  refreshCharts();
}

function chosenAgent(frame) {
  const layers = frame === state.frame ? state.layers : layersOf(frame);
  const found = agentOf(layers, state.selection, agents());
  return found < 0 && !layers.some((layer) => layer.kind === "entities") ? 0 : found;
}

let wanted = 0, groundKey = "", groundPaints = -1;

function redraw() {
  if (!wanted) wanted = requestAnimationFrame(draw);
}

function draw() {
  wanted = 0;
  const began = performance.now(), stage = $("stage");
  const resized = camera.width !== stage.clientWidth || camera.height !== stage.clientHeight;
  Object.assign(camera, { width: stage.clientWidth, height: stage.clientHeight });
  if (resized && camera.fitted) fit();
  const ground = fitCanvas($("ground")), marks = fitCanvas($("marks"));
  if (state.frame) {
    const { layers } = state;
    for (const layer of layers) if (layer.w && !state.hidden.has(layer.key)) scene.ground(layer);
    // The ground is drawn again only when something of it, or the place looked at, is another.
    const key = [camera.x, camera.y, camera.scale, camera.width, camera.height, ground.ratio, state.lines, ...layers.map((l) => l.key), ...state.hidden].join();
    if (key !== groundKey || scene.paints !== groundPaints || ground.changed || !layers.length) {
      scene.drawGround(ground.ctx, camera, ground.ratio, layers, state.hidden, state.lines);
      if (!layers.length) drawPlain(ground.ctx, camera.width, camera.height, state.frame, Math.max(0, chosenAgent(state.frame)), agents());
      [groundKey, groundPaints] = [key, scene.paints];
    }
    scene.drawMarks(marks.ctx, camera, marks.ratio, layers, look());
  } else {
    for (const one of [ground, marks]) one.ctx.clearRect(0, 0, one.width, one.height);
    groundKey = "";
  }
  timing.last = performance.now() - began;
  timing.count++;
  timing.worst = Math.max(timing.worst, timing.last);
  timing.mean += (timing.last - timing.mean) / Math.min(timing.count, 100);
  remember();
}

function look() {
  const { hidden, lines, selection, hovered, frame } = state;
  const view = viewSide(frame, agentOf(state.layers, selection, agents()), agents());
  return { hidden, lines, selection, hovered, agents: agents(), view };
}

function fit() {
  camera.fit(extentOf(state.layers));
  redraw();
}

function notice(text, bad = false) {
  $("notice").hidden = !text;
  $("notice").dataset.bad = String(bad);
  say($("notice"), text);
}

const refreshCounters = atMost(450, () => state.tab === "overview" && overview.drawCounters());
const refreshCharts = atMost(250, () => {
  if (!state.frame || state.tab !== "overview") return;
  overview.drawLegend(state.layers, state.hidden);
  overview.drawScalars(kept, state.frame);
});
const refreshPanel = atMost(200, () => {
  if (!state.frame) return;
  if (state.tab === "entities") table.show(state.layers, state.selection);
  if (state.tab === "inspect") inspector.show(state.frame);
  if (state.tab === "agent") agentPanel.show(state.frame, kept, state.layers, state.selection, chosenAgent(state.frame), agents());
});

function showStatus() {
  const ended = state.run === "ended";
  const [key, text] = ended ? ["ended", "Run ended"]
    : state.link !== "open" ? [state.link, state.link === "lost" ? "Reconnecting" : "Connecting"]
    : state.paused ? ["paused", "View paused"]
    : state.run === "idle" ? ["idle", "Run idle"] : ["live", "Live"];
  $("status").dataset.state = key;
  say($("status").lastElementChild, text);
  $("badge").hidden = !state.paused && !ended;
  say($("badge"), ended ? "The run has ended. This is its last state." : "View paused. The run goes on.");
  $("pause-icon").setAttribute("href", state.paused ? "#i-play" : "#i-pause");
  $("pause").setAttribute("aria-label", state.paused ? "Go live" : "Pause the view");
  $("live").dataset.on = String(!state.paused);
}

// ---- time

const refreshTime = atMost(100, () => {
  const { frames } = kept, { frame } = state;
  if (!frame || !frames.length) return;
  const at = kept.indexOf(frame);
  $("scrub").max = frames.length - 1;
  $("scrub").value = at;
  const behind = kept.last.time - frame.time;
  say($("when"), `episode ${number(frame.episode)} · tick ${number(frame.tick)}${state.paused && behind > 0 ? ` · −${behind < 60 ? `${behind.toFixed(1)} s` : span(behind)}` : ""}`);
  drawEpisodes(frames);
});

/** A mark above the slider wherever another episode began. */
function drawEpisodes(frames) {
  const { ctx, width, height } = fitCanvas($("episodes"));
  ctx.clearRect(0, 0, width, height);
  ctx.fillStyle = theme().muted;
  for (let i = 1; i < frames.length; i++) {
    if (frames[i].episode !== frames[i - 1].episode) ctx.fillRect(Math.round((i / (frames.length - 1)) * width), 0, 2, height);
  }
}

function pause(on) {
  state.paused = on;
  if (!on && kept.last) show(kept.last);
  showStatus();
  refreshTime();
}

function scrubTo(index) {
  if (!kept.frames.length) return;
  state.paused = true;
  show(kept.frames[Math.min(kept.frames.length - 1, Math.max(0, index))]);
  showStatus();
}

const stepBy = (n) => state.frame && scrubTo(kept.indexOf(state.frame) + n);

// ---- selection, layers, theme, tabs

function select(selection, centre = false) {
  state.selection = selection;
  if (selection && centre) {
    const layer = state.layers.find((one) => one.key === selection.key), all = layer && entitiesOf(layer.field);
    if (all && selection.index < all.count) {
      if (camera.scale < 10) camera.scale = 14;
      camera.moveTo(all.x(selection.index), all.y(selection.index));
    }
  }
  if (selection && state.tab === "overview") setTab("agent");
  redraw();
  refreshPanel();
}

function hoverAt(sx, sy) {
  state.pointer = sx === null ? null : [sx, sy];
  const found = sx === null || !state.frame ? null : entityAt(camera, state.layers, state.hidden, sx, sy);
  if (found?.index !== state.hovered?.index || found?.key !== state.hovered?.key) redraw();
  state.hovered = found;
  const parts = sx === null ? [] : describe(...camera.toWorld(sx, sy), found);
  $("hover").hidden = !parts.length;
  say($("hover"), parts.join("  ·  "));
}

function describe(x, y, found) {
  const r = Math.floor(y), c = Math.floor(x), parts = [];
  for (const { kind, field, w, h, key } of state.layers) {
    if (state.hidden.has(key) || kind === "entities" || r < 0 || c < 0 || r >= h || c >= w) continue;
    const channels = field.shape[2] || 1, at = (r * w + c) * channels;
    const value = Array.from(field.data.slice(at, at + channels), number).join(", ");
    if (!parts.length) parts.push(`row ${r}, column ${c}`);
    parts.push(kind === "grid" ? categoryOf(field, field.data[at])?.[1] ?? `${field.name} ${value}` : value);
  }
  if (found) {
    const { field } = state.layers.find((layer) => layer.key === found.key), all = entitiesOf(field);
    const health = all.hp && all.hpMax ? `, ${number(all.hp(found.index))} of ${number(all.hpMax(found.index))} hp` : "";
    parts.push(`${(all.kind && categoryOf(field, all.kind(found.index))?.[1]) || field.name} ${found.index}${health}`);
  }
  return parts;
}

function setLayer(key, on) {
  if (on) state.hidden.delete(key);
  else state.hidden.add(key);
  redraw();
  refreshCharts();
}

function setTheme(name) {
  state.theme = name;
  const dark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  themeChanged();
  groundKey = "";
  redraw();
  overview.drawCounters();
  refreshCharts();
  refreshPanel();
}

function setTab(name) {
  state.tab = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const on = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !on;
  }
  overview.drawCounters();
  refreshCharts();
  refreshPanel();
  remember();
}

const remember = atMost(300, () => state.facts && writeLink({ ...state, camera }));

function applyLink() {
  const link = readLink();
  state.hidden = new Set(link.hidden);
  state.lines = link.lines;
  $("lines").setAttribute("aria-pressed", String(state.lines));
  if (link.env !== undefined && link.env !== state.env) state.facts ? pick(link.env) : (state.env = link.env);
  state.selection = link.selection ?? null;
  if (link.camera) Object.assign(camera, link.camera, { fitted: false });
  else camera.fitted = true;
  setTheme(link.theme ?? "");
  if ($(link.tab)?.getAttribute("role") === "tabpanel") setTab(link.tab);
  redraw();
}

// ---- what one can do

function toggleLines() {
  state.lines = !state.lines;
  $("lines").setAttribute("aria-pressed", String(state.lines));
  redraw();
}

const actions = {
  pause: () => pause(!state.paused),
  step: stepBy,
  environment: (by) => pick((state.env + by + worlds()) % worlds()),
  zoom: (factor) => camera.zoom(factor),
  fit,
  lines: toggleLines,
  theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  help: () => $("help").showModal(),
  nothing: () => select(null),
};
onKeys(actions);
steer($("marks"), camera, { pick: (sx, sy) => select(state.frame && entityAt(camera, state.layers, state.hidden, sx, sy)), hover: hoverAt });
const on = (id, work) => $(id).addEventListener("click", work);
on("zoom-in", () => camera.zoom(1.5));
on("zoom-out", () => camera.zoom(1 / 1.5));
on("zoom-fit", fit);
on("lines", toggleLines);
on("pause", actions.pause);
on("step-back", () => stepBy(-1));
on("step-forward", () => stepBy(1));
on("live", () => pause(false));
on("env-before", () => actions.environment(-1));
on("env-after", () => actions.environment(1));
on("theme", actions.theme);
on("help-open", actions.help);
on("copy-link", async () => {
  writeLink({ ...state, camera, theme: document.documentElement.dataset.theme });
  await navigator.clipboard.writeText(location.href).catch(() => {});
  $("copy-link").title = "Copied";
  notice("Link copied");
  setTimeout(() => notice(""), 1200);
});
$("scrub").addEventListener("input", () => scrubTo(Number($("scrub").value)));
const tabs = [...document.querySelectorAll("[role=tab]")];
for (const tab of tabs) {
  tab.addEventListener("click", () => setTab(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.stopPropagation();
    const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
    next.focus();
    setTab(next.getAttribute("aria-controls"));
  });
}
const view = () => ({ camera, look: look(), agent: chosenAgent(state.frame) });
const fileName = () => `${state.facts.name}-env${state.env}-tick${state.frame.tick}`;
const openExport = exportDialog({ view, frame: () => state.frame, history: kept, name: fileName });
on("export-open", () => state.frame && openExport());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.theme || setTheme(""));
window.addEventListener("hashchange", applyLink);
new ResizeObserver(redraw).observe($("stage"));
applyLink();

// A handle for tests: what is shown, and where a tile is on the canvas, in CSS pixels.
window.shoal = {
  get env() { return state.env; },
  get tick() { return state.frame?.tick ?? null; },
  get episode() { return state.frame?.episode ?? null; },
  get paused() { return state.paused; },
  get selection() { return state.selection; },
  get frames() { return kept.frames.length; },
  get bytes() { return kept.bytes; },
  get paints() { return scene.paints; },
  get zoom() { return { scale: camera.scale, x: camera.x, y: camera.y, fitted: camera.fitted }; },
  get timing() { return { ...timing }; },
  toCanvas: (row, column) => camera.toScreen(column + 0.5, row + 0.5),
  png: () => makePng(view(), state.frame),
  gif: (seconds) => makeGif(view(), kept.lastSeconds(seconds, 10), () => {}),
};
