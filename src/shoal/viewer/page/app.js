// The page: what is shown, and who draws it when. State lives here; the other modules draw what they are given.
import { AgentPanel, agentOf, viewSide } from "./agent.js";
import { Camera, steer } from "./camera.js";
import { $, atMost, fitCanvas, number, say, short, span, theme, themeChanged } from "./dom.js";
import { exportDialog, makeGif, makePng, makeWebm } from "./exports.js";
import { entitiesOf } from "./fields.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { onKeys, onTabs } from "./keys.js";
import { readLink, writeLink } from "./link.js";
import { entityAt } from "./marks.js";
import { Overview } from "./overview.js";
import { Scene, drawPlain, extentOf, layersOf } from "./scene.js";
import { Connection } from "./socket.js";
import { Strip } from "./strip.js";
import { EntityTable } from "./table.js";
import { describePlace, describeStep, notice, showStatus } from "./tell.js";
import { Watcher } from "./watch.js";

const state = {
  env: 0, facts: null, frame: null, layers: [], shape: "", paused: false, link: "connecting", run: "stepping",
  selection: null, follow: false, hovered: null, pointer: null, hidden: new Set(), lines: false, theme: "", tab: "overview",
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
    if (state.facts && (state.facts.pid !== facts.pid || state.facts.started !== facts.started)) {
      overview.clear(); // another run than before
      kept.clear();
      state.frame = null;
    }
    state.facts = facts;
    const several = facts.agents > 1 ? ` · ${facts.agents} agents each` : "";
    say($("run-name"), facts.name);
    say($("run-about"), `${facts.env} · ${number(worlds())} ${worlds() === 1 ? "environment" : "environments"}${several}`);
    document.title = `${facts.name} · Shoal`;
    overview.showFacts(facts, sessions);
    pick(state.env);
  },
  counters(one) {
    state.run = one.run;
    overview.addCounters(one);
    say($("n-steps"), short(one.steps));
    say($("n-rate"), short(one.steps_per_s));
    say($("n-episodes"), short(one.episodes));
    say($("n-return"), number(one.mean_return));
    showStatus(state);
    refreshCounters();
  },
  frame(frame) {
    watcher.arrived(frame.env);
    strip.draw(frame, agents());
    if (frame.env !== state.env) return;
    kept.push(frame);
    if (state.paused) refreshTime();
    else show(frame);
  },
  failure: (message) => notice(message, true),
  status(link) {
    state.link = link;
    showStatus(state);
  },
});
const watcher = new Watcher(connection, strip, () => state.env);

function pick(env) {
  const next = Math.min(worlds() - 1, Math.max(0, Math.floor(env)));
  if (next !== state.env) {
    Object.assign(state, { env: next, frame: null, paused: false, hovered: null, selection: null, follow: false });
    kept.clear();
    const known = connection.latest.get(next);
    if (known) {
      kept.push({ ...known });
      show(kept.last);
    } else notice("Waiting for the first frame");
  }
  strip.show(state.env, worlds());
  watcher.ask();
  setTimeout(() => watcher.lookAround(), 150); // once the strip knows which of it are in sight
  showStatus(state);
  redraw();
}

// ---- what is shown

function show(frame) {
  state.frame = frame;
  state.layers = layersOf(frame, Math.max(0, chosenAgent()), agents());
  const shape = state.layers.map((layer) => `${layer.key} ${layer.w} ${layer.h}`).join();
  if (camera.fitted && (shape !== state.shape || !state.layers.some((layer) => layer.w))) fit();
  state.shape = shape;
  if (state.follow) centre();
  notice(frame.error, true);
  const plain = !frame.world.size;
  $("told").hidden = !plain;
  if (plain) say($("told"), describeStep(frame, Math.max(0, chosenAgent()), agents()).map((pair) => pair.join(" ")).join("  ·  "));
  if (state.pointer) hoverAt(...state.pointer);
  redraw();
  refreshTime();
  refreshPanel();
  refreshCharts();
}

/** The agent that is looked at: the selected one; the first, where there is nothing to select; else -1. */
function chosenAgent() {
  const found = agentOf(state.layers, state.selection, agents());
  return found < 0 && !state.layers.some((layer) => layer.kind === "entities") ? 0 : found;
}

let wanted = 0, groundKey = "";

function redraw() {
  if (!wanted) wanted = requestAnimationFrame(draw);
}

function draw() {
  wanted = 0;
  const began = performance.now(), { clientWidth: width, clientHeight: height } = $("stage");
  const resized = camera.width !== width || camera.height !== height;
  Object.assign(camera, { width, height });
  if (resized && camera.fitted) fit();
  const ground = fitCanvas($("ground")), marks = fitCanvas($("marks")), { layers, hidden, lines } = state;
  if (state.frame) {
    for (const layer of layers) if (layer.w && !hidden.has(layer.key)) scene.ground(layer);
    // The ground is drawn again only when something of it, or the place looked at, is another.
    const place = [camera.x, camera.y, camera.scale, width, height, ground.ratio];
    const key = [...place, lines, scene.paints, state.shape, ...hidden].join();
    if (key !== groundKey || ground.changed || !layers.length) {
      scene.drawGround(ground.ctx, camera, ground.ratio, layers, hidden, lines);
      if (!layers.length) drawPlain(ground.ctx, width, height, state.frame, Math.max(0, chosenAgent()), agents());
      groundKey = key;
    }
    scene.drawMarks(marks.ctx, camera, marks.ratio, layers, look());
  } else {
    for (const { ctx } of [ground, marks]) ctx.clearRect(0, 0, width, height);
    groundKey = "";
  }
  timing.last = performance.now() - began;
  timing.count++;
  timing.worst = Math.max(timing.worst, timing.last);
  timing.mean += (timing.last - timing.mean) / Math.min(timing.count, 100);
  remember();
}

function look() {
  const { hidden, lines, selection, hovered, frame, layers } = state;
  return { hidden, lines, selection, hovered, agents: agents(), view: viewSide(frame, agentOf(layers, selection, agents()), agents()) };
}

function fit() {
  camera.fit(extentOf(state.layers));
  redraw();
}

const refreshCounters = atMost(450, () => state.tab === "overview" && overview.drawCounters());
const refreshCharts = atMost(250, () => {
  if (!state.frame || state.tab !== "overview") return;
  overview.drawLegend(state.layers, state.hidden);
  overview.drawScalars(kept, state.frame);
});
const refreshPanel = atMost(200, () => {
  const { frame, tab, layers, selection } = state;
  if (!frame) return;
  if (tab === "entities") table.show(layers, selection);
  if (tab === "inspect") inspector.show(frame);
  if (tab === "agent") agentPanel.show(frame, kept, layers, selection, chosenAgent(), agents());
});

// ---- time

const refreshTime = atMost(100, () => {
  const { frames } = kept, { frame } = state;
  if (!frame || !frames.length) return;
  $("scrub").max = frames.length - 1;
  $("scrub").value = kept.indexOf(frame);
  const behind = kept.last.time - frame.time;
  const late = state.paused && behind > 0 ? ` · −${behind < 60 ? `${behind.toFixed(1)} s` : span(behind)}` : "";
  say($("when"), `episode ${number(frame.episode)} · tick ${number(frame.tick)}${late}`);
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
  showStatus(state);
  refreshTime();
}

function scrubTo(index) {
  if (!kept.frames.length) return;
  state.paused = true;
  show(kept.frames[Math.min(kept.frames.length - 1, Math.max(0, index))]);
  showStatus(state);
}

const stepBy = (n) => state.frame && scrubTo(kept.indexOf(state.frame) + n);

// ---- selection, layers, theme, tabs

function select(selection, centred = false) {
  state.selection = selection;
  if (!selection) $("follow").checked = state.follow = false;
  if (centred) {
    if (camera.scale < 10) camera.scale = 18;
    centre();
  }
  if (selection && state.tab === "overview") setTab("agent");
  redraw();
  refreshPanel();
}

/** Brings the selected entity to the middle. */
function centre() {
  const layer = state.layers.find((one) => one.key === state.selection?.key), all = layer && entitiesOf(layer.field);
  const { index } = state.selection ?? {};
  if (all && index < all.count && all.there(index)) camera.moveTo(all.x(index), all.y(index));
}

function hoverAt(sx, sy) {
  const out = sx === null || !state.frame;
  state.pointer = out ? null : [sx, sy];
  const found = out ? null : entityAt(camera, state.layers, state.hidden, sx, sy);
  if (found?.index !== state.hovered?.index || found?.key !== state.hovered?.key) redraw();
  state.hovered = found;
  const text = out ? "" : describePlace(state.layers, state.hidden, ...camera.toWorld(sx, sy), found);
  $("hover").hidden = !text;
  say($("hover"), text);
}

function setLayer(key, on) {
  if (on) state.hidden.delete(key);
  else state.hidden.add(key);
  redraw();
  refreshCharts();
}

function setLines(on) {
  state.lines = on;
  $("lines").setAttribute("aria-pressed", String(on));
  redraw();
}

const shownTheme = () => document.documentElement.dataset.theme;
const darkWanted = matchMedia("(prefers-color-scheme: dark)");

function setTheme(name) {
  state.theme = name;
  document.documentElement.dataset.theme = name || (darkWanted.matches ? "dark" : "light");
  themeChanged();
  groundKey = "";
  refreshAll();
}

function setTab(name) {
  state.tab = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const panel = tab.getAttribute("aria-controls"), on = panel === name;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    $(panel).hidden = !on;
  }
  refreshAll();
}

function refreshAll() {
  redraw();
  refreshCounters();
  refreshCharts();
  refreshPanel();
}

const remember = atMost(300, () => state.facts && writeLink({ ...state, camera }));

function applyLink() {
  const link = readLink();
  if (link.env !== undefined && state.facts) pick(link.env);
  else state.env = link.env ?? state.env;
  Object.assign(state, { hidden: new Set(link.hidden), selection: link.selection ?? null });
  Object.assign(camera, link.camera ?? {}, { fitted: !link.camera });
  setLines(link.lines);
  setTheme(link.theme ?? "");
  if ($(link.tab)?.getAttribute("role") === "tabpanel") setTab(link.tab);
  if (camera.fitted && state.frame) fit();
}

async function copyLink() {
  writeLink({ ...state, camera, theme: shownTheme() });
  const done = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  notice(done ? "Link copied" : "The link is in the address bar");
  setTimeout(() => notice(""), 1500);
}

// ---- what one can do

const actions = {
  pause: () => pause(!state.paused),
  step: stepBy,
  environment: (by) => pick((state.env + by + worlds()) % worlds()),
  zoom: (factor) => camera.zoom(factor),
  fit,
  lines: () => setLines(!state.lines),
  theme: () => setTheme(shownTheme() === "dark" ? "light" : "dark"),
  help: () => $("help").showModal(),
  nothing: () => select(null),
};
onKeys(actions);
onTabs(setTab);
steer($("marks"), camera, {
  pick: (sx, sy) => state.frame && select(entityAt(camera, state.layers, state.hidden, sx, sy)),
  hover: hoverAt,
});
const view = () => ({ camera, look: look(), agent: chosenAgent() });
const name = () => `${state.facts.name}-env${state.env}-tick${state.frame.tick}`;
const openExport = exportDialog({ view, frame: () => state.frame, history: kept, name });
const clicks = {
  "zoom-in": () => camera.zoom(1.5), "zoom-out": () => camera.zoom(1 / 1.5), "zoom-fit": fit, lines: actions.lines,
  pause: actions.pause, "step-back": () => stepBy(-1), "step-forward": () => stepBy(1), live: () => pause(false),
  "env-before": () => actions.environment(-1), "env-after": () => actions.environment(1),
  theme: actions.theme, "help-open": actions.help, "copy-link": copyLink, "export-open": () => state.frame && openExport(),
};
for (const [id, work] of Object.entries(clicks)) $(id).addEventListener("click", work);
$("scrub").addEventListener("input", () => scrubTo(Number($("scrub").value)));
$("follow").addEventListener("change", () => {
  state.follow = $("follow").checked;
  centre();
});
darkWanted.addEventListener("change", () => state.theme || setTheme(""));
window.addEventListener("hashchange", applyLink);
new ResizeObserver(redraw).observe($("stage"));
applyLink();

// A handle for tests: what is shown, and where a tile's middle is on the canvas, in CSS pixels.
window.shoal = {
  get env() { return state.env; },
  get tick() { return state.frame?.tick ?? null; },
  get episode() { return state.frame?.episode ?? null; },
  get paused() { return state.paused; },
  get selection() { return state.selection; },
  get hidden() { return [...state.hidden]; },
  get frames() { return kept.frames.length; },
  get bytes() { return kept.bytes; },
  get paints() { return scene.paints; },
  get zoom() { return { scale: camera.scale, x: camera.x, y: camera.y, fitted: camera.fitted }; },
  get timing() { return { ...timing }; },
  toCanvas: (row, column) => camera.toScreen(column + 0.5, row + 0.5),
  png: () => makePng(view(), state.frame),
  gif: (seconds) => makeGif(view(), kept.lastSeconds(seconds, 10), () => {}),
  webm: (seconds) => makeWebm(view(), kept.lastSeconds(seconds, 30), () => {}),
};
