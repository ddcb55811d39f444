// The page: holds the state and decides what is drawn when. The other modules draw what this one passes to them.
import { drawActions } from "./actions.js";
import { AgentPanel } from "./agent.js";
import { Curves, lastEpisodes } from "./curves.js";
import { $, atMost, el, fitCanvas, number, say, short, span, theme, themeChanged } from "./dom.js";
import { exportDialog, makeGif, makePng, makeWebm } from "./exports.js";
import { History } from "./history.js";
import { Inspector } from "./inspector.js";
import { onKeys, onTabs } from "./keys.js";
import { readLink, writeLink } from "./link.js";
import { Overview } from "./overview.js";
import { Replay } from "./replay.js";
import { layersOf } from "./scene.js";
import { openShare, showShare } from "./share.js";
import { Connection } from "./socket.js";
import { Stage } from "./stage.js";
import { Strip } from "./strip.js";
import { EntityTable } from "./table.js";
import { describeStep, notice, showStatus, tellWhyNothing } from "./tell.js";
import { Watcher } from "./watch.js";

const state = {
  env: 0,
  facts: null,
  frame: null,
  layers: [],
  paused: false,
  link: "connecting",
  run: "stepping",
  selection: null,
  follow: false,
  hovered: null,
  pointer: null,
  hidden: new Set(),
  lines: false,
  theme: "",
  tab: "overview",
};
const kept = new History();
const curves = new Curves((message) => notice(message, true, 5));
const overview = new Overview((key, on) => setLayer(key, on));
const table = new EntityTable((selection) => select(selection, true));
const agentPanel = new AgentPanel();
const inspector = new Inspector();
const strip = new Strip((env) => {
  if (replay.history) goLive();
  pick(env);
});
const agents = () => state.facts?.agents || 1;
const worlds = () => state.facts?.num_worlds || state.facts?.num_envs || 1;
const stage = new Stage(state, { agents, select: (selection) => select(selection), drawn: () => remember() });
const { camera } = stage;
let cameraBefore = null; // that of the live view, during a replay
const replay = new Replay({
  ask: (number) => connection.askForRecording(number),
  show,
  began(isFirst) {
    if (isFirst) cameraBefore = { x: camera.x, y: camera.y, scale: camera.scale, fitted: camera.fitted };
    Object.assign(state, { paused: true, hovered: null, selection: null, replay });
    camera.fitted = true;
    $("stage").scrollIntoView({ block: "center" }); // on a small screen the list is below it
    stage.shape = ""; // fits the view to the recorded picture, which may have another size
  },
  ended() {
    Object.assign(state, { replay: null, frame: null, layers: [] });
    Object.assign(camera, cameraBefore);
  },
});
/** The frames that the slider goes over: those of the replayed episode, or those that were kept. */
const timeline = () => replay.history ?? kept;

// ---- messages of the server

const connection = new Connection({
  hello({ facts, sessions }) {
    if (state.facts && (state.facts.pid !== facts.pid || state.facts.started !== facts.started)) {
      curves.clear();
      curves.compare("");
      replay.end();
      replay.showList({ kept: {}, count: 0 });
      kept.clear();
      Object.assign(state, { frame: null, layers: [], paused: false, run: "stepping", hovered: null });
      const isSame = state.facts.name === facts.name;
      notice(isSame ? `A new run of ${facts.name}` : `Session ${facts.name}`, false, 3);
    }
    state.facts = facts;
    showSessions(facts.name, sessions ?? []);
    const several = facts.agents > 1 ? ` · ${facts.agents} agents each` : "";
    say($("run-name"), facts.name);
    say(
      $("run-about"),
      `${facts.env} · ${number(worlds())} ${worlds() === 1 ? "environment" : "environments"}${several}`,
    );
    document.title = `${facts.name} · Shoal`;
    overview.showFacts(facts, sessions);
    strip.forget();
    pick(state.env);
  },
  counters(one) {
    state.run = one.run;
    say($("n-steps"), short(one.steps));
    say($("n-rate"), short(one.steps_per_s));
    say($("n-episodes"), short(one.episodes));
    showStatus(state);
    if (!state.frame) tellWhyNothing(state.run, state.facts);
    refreshCounters();
  },
  history(head, buffer, start) {
    curves.bins.take(head, buffer, start);
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
  link: showShare,
  recordings: (one) => replay.showList(one),
  recording: (about, frames) => replay.begin(about, frames),
  missing(why) {
    state.link = "missing";
    showStatus(state);
    notice(why || "There is no such session", true, 600);
  },
  failure: (message) => notice(message, true, state.frame ? 8 : 600),
  status(link) {
    state.link = link;
    showStatus(state);
  },
});
const watcher = new Watcher(connection, strip, state);

/** Fills the two lists of sessions: the one that is shown, and the one to compare with. */
function showSessions(name, sessions) {
  const names = [...new Set([name, ...sessions])];
  const options = (list) => list.map((one) => el("option", { value: one, textContent: one }));
  $("session").replaceChildren(...options(names));
  $("session").value = name;
  $("session-box").hidden = names.length < 2;
  $("compare").replaceChildren(
    el("option", { value: "", textContent: "no other run" }),
    ...options(names.filter((one) => one !== name)),
  );
  $("compare").value = curves.other?.name ?? "";
  $("compare-box").hidden = names.length < 2;
}

function pick(env) {
  const next = Math.min(worlds() - 1, Math.max(0, Math.floor(env)));
  if (state.facts && next !== Math.floor(env)) {
    const text = `There is no environment ${env}: this run has ${number(worlds())}, numbered from 0. This is ${next}.`;
    notice(text, false, 5);
  }
  if (next !== state.env) {
    replay.end();
    if (state.frame) stage.leave();
    Object.assign(state, { env: next, frame: null, paused: false, hovered: null, selection: null, follow: false });
    $("follow").checked = false;
    kept.clear();
    const known = connection.latest.get(next);
    if (known) {
      kept.push({ ...known });
      show(kept.last);
    } else tellWhyNothing(state.run, state.facts);
  }
  strip.show(state.env, worlds());
  watcher.begin(); // the environments that the strip showed before no longer matter
  showStatus(state);
  stage.redraw();
}

// ---- drawing

function show(frame) {
  state.frame = frame;
  state.layers = layersOf(frame, Math.max(0, stage.agent), agents());
  stage.changed();
  if (state.follow) stage.centre();
  notice(frame.error, true);
  if (replay.history) showStatus(state);
  const plain = !frame.world.size;
  $("told").hidden = !plain;
  if (plain) {
    const pairs = describeStep(frame, Math.max(0, stage.agent), agents());
    say($("told"), pairs.map((pair) => pair.join(" ")).join("  ·  "));
  }
  refreshTime();
  refreshPanel();
  refreshCharts();
}

const refreshCounters = atMost(450, () => {
  const recent = curves.recentReturn;
  say($("n-return"), number(recent?.mean));
  $("n-return").title = recent ? lastEpisodes(recent.weight) : "No episode has ended yet";
  if (state.tab === "overview") curves.draw();
});
const refreshCharts = atMost(250, () => {
  if (!state.frame || state.tab !== "overview") return;
  overview.drawLegend(state.layers, state.hidden);
  overview.drawScalars(timeline(), state.frame);
  drawActions(timeline(), Math.max(0, stage.agent), agents());
});
const refreshPanel = atMost(200, () => {
  const { frame, tab, layers, selection } = state;
  if (!frame) return;
  if (tab === "entities") table.show(layers, selection);
  if (tab === "inspect") inspector.show(frame);
  if (tab === "agent") agentPanel.show(frame, timeline(), layers, selection, stage.agent, agents());
});

// ---- time

const refreshTime = atMost(100, () => {
  const history = timeline(),
    { frames } = history,
    { frame } = state;
  if (!frame || !frames.length) return;
  $("scrub").max = frames.length - 1;
  $("scrub").value = history.indexOf(frame);
  drawEpisodes(frames);
  if (replay.history) return say($("when"), replay.when(frame));
  const behind = kept.last.time - frame.time;
  const late = state.paused && behind > 0 ? ` · −${behind < 60 ? `${behind.toFixed(1)} s` : span(behind)}` : "";
  say($("when"), `episode ${number(frame.episode)} · tick ${number(frame.tick)}${late}`);
});

/** Draws a mark above the slider wherever an episode started. */
function drawEpisodes(frames) {
  const { ctx, width, height } = fitCanvas($("episodes"));
  ctx.clearRect(0, 0, width, height);
  ctx.fillStyle = theme().muted;
  for (let i = 1; i < frames.length; i++) {
    if (frames[i].episode !== frames[i - 1].episode)
      ctx.fillRect(Math.round((i / (frames.length - 1)) * width), 0, 2, height);
  }
}

function pause(on) {
  if (replay.history && on !== state.paused) return replay.toggle();
  state.paused = on;
  if (!on && kept.last) show(kept.last);
  showStatus(state);
  refreshTime();
}

/** Leaves a replay or a pause. */
function goLive() {
  replay.end();
  pause(false);
  if (!state.frame) tellWhyNothing(state.run, state.facts);
  stage.redraw(true);
}

function scrubTo(index) {
  if (replay.history) return replay.go(index);
  if (!kept.frames.length) return;
  state.paused = true;
  show(kept.frames[Math.min(kept.frames.length - 1, Math.max(0, index))]);
  showStatus(state);
}

const stepBy = (n) => state.frame && scrubTo(timeline().indexOf(state.frame) + n);

// ---- selection, layers, theme, tabs

function select(selection, sought = false) {
  state.selection = selection;
  if (!selection) $("follow").checked = state.follow = false;
  if (state.follow || (sought && !stage.inSight())) stage.centre();
  if (selection && state.tab === "overview") setTab("agent");
  stage.redraw();
  refreshPanel();
}

function setLayer(key, on) {
  if (on) state.hidden.delete(key);
  else state.hidden.add(key);
  stage.redraw();
  refreshCharts();
}

function setLines(on) {
  state.lines = on;
  $("lines").setAttribute("aria-pressed", String(on));
  stage.redraw();
}

const shownTheme = () => document.documentElement.dataset.theme;
const darkWanted = matchMedia("(prefers-color-scheme: dark)");

function setTheme(name) {
  state.theme = name;
  document.documentElement.dataset.theme = name || (darkWanted.matches ? "dark" : "light");
  themeChanged();
  stage.redraw(true);
  refreshAll();
}

function setTab(name) {
  state.tab = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const panel = tab.getAttribute("aria-controls"),
      on = panel === name;
    tab.setAttribute("aria-selected", String(on));
    $(panel).hidden = !on;
  }
  refreshAll();
}

function refreshAll() {
  stage.redraw();
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
  if (camera.fitted && state.frame) stage.fit();
}

async function copyLink() {
  writeLink({ ...state, camera, theme: shownTheme() });
  const done = await navigator.clipboard?.writeText(location.href).then(
    () => true,
    () => false,
  );
  const where = done ? "Link copied" : "The link is in the address bar";
  notice(`${where}: it works in this browser; others need the link that shoal watch printed`, false, 4);
}

// ---- controls

const actions = {
  pause: () => pause(!state.paused),
  step: stepBy,
  environment: (by) => pick((state.env + by + worlds()) % worlds()),
  zoom: (factor) => camera.zoom(factor),
  fit: () => stage.fit(),
  lines: () => setLines(!state.lines),
  theme: () => setTheme(shownTheme() === "dark" ? "light" : "dark"),
  help: () => $("help").showModal(),
  nothing() {
    if (replay.history) goLive();
    else if (strip.isGrid) strip.setPage(8);
    else select(null);
  },
};
onKeys(actions);
onTabs(setTab);
const name = () =>
  replay.history
    ? `${state.facts.name}-env${replay.about.env}-episode${replay.about.episode}`
    : `${state.facts.name}-env${state.env}-tick${state.frame.tick}`;
const openExport = exportDialog({
  view: () => stage.view,
  frame: () => state.frame,
  history: kept,
  episode: () => replay.history?.frames,
  name,
});
const clicks = {
  "zoom-in": () => camera.zoom(1.5),
  "zoom-out": () => camera.zoom(1 / 1.5),
  "zoom-fit": actions.fit,
  lines: actions.lines,
  pause: actions.pause,
  "step-back": () => stepBy(-1),
  "step-forward": () => stepBy(1),
  live: goLive,
  "env-before": () => actions.environment(-1),
  "env-after": () => actions.environment(1),
  theme: actions.theme,
  "help-open": actions.help,
  "copy-link": copyLink,
  "share-open": () => openShare(connection),
  "export-open": () => state.frame && openExport(),
};
for (const [id, work] of Object.entries(clicks)) $(id).addEventListener("click", work);
$("scrub").addEventListener("input", () => scrubTo(Number($("scrub").value)));
$("grid").addEventListener("change", () => {
  strip.setPage(Number($("grid").value));
  watcher.begin();
});
$("session").addEventListener("change", () => connection.choose($("session").value));
$("compare").addEventListener("change", () => curves.compare($("compare").value));
$("follow").addEventListener("change", () => {
  state.follow = $("follow").checked;
  stage.centre();
});
darkWanted.addEventListener("change", () => state.theme || setTheme(""));
window.addEventListener("hashchange", applyLink);
applyLink();

// For tests: the state, and the position of a tile's centre on the canvas in CSS pixels.
window.shoal = {
  get env() {
    return state.env;
  },
  get tick() {
    return state.frame?.tick ?? null;
  },
  get episode() {
    return state.frame?.episode ?? null;
  },
  get paused() {
    return state.paused;
  },
  get selection() {
    return state.selection;
  },
  get hidden() {
    return [...state.hidden];
  },
  get frames() {
    return timeline().frames.length;
  },
  get replay() {
    const { kind, about, playing, index } = replay;
    return replay.history && { kind, about, playing, index };
  },
  get bytes() {
    return kept.bytes;
  },
  get paints() {
    return stage.scene.paints;
  },
  get zoom() {
    return { scale: camera.scale, x: camera.x, y: camera.y, fitted: camera.fitted };
  },
  get timing() {
    return { ...stage.timing };
  },
  get thumbs() {
    return [...strip.thumbs].filter(([, thumb]) => thumb.drawn).map(([env]) => env);
  },
  get bins() {
    const { count, names, begin, end, steps } = curves.bins;
    return { count, names, begin: [...begin], end: [...end], steps: [...steps] };
  },
  curve: (name, axis = "time") => curves.bins.points(name, axis),
  toCanvas: (row, column) => camera.toScreen(column + 0.5, row + 0.5),
  png: () => makePng(stage.view, state.frame),
  gif: (seconds) => makeGif(stage.view, replay.history ? replay.history.frames : kept.lastSeconds(seconds, 10), () => {}),
  webm: (seconds) => makeWebm(stage.view, kept.lastSeconds(seconds, 30), () => {}),
};
