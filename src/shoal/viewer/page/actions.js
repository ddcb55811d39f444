// A histogram of the actions in the kept frames of the shown environment.
import { $, el, fitCanvas, number, say, theme } from "./dom.js";
import { ofAgent } from "./fields.js";

const MOST_PARTS = 6,
  MOST_VALUES = 24,
  BINS = 20;

/** Counts the values of one part of the actions: each whole number, or bins of equal width. */
export function countActions(values, isWhole) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return null;
  const low = finite.reduce((a, b) => Math.min(a, b)),
    high = finite.reduce((a, b) => Math.max(a, b));
  const whole = isWhole && high - low < MOST_VALUES,
    count = whole ? high - low + 1 : BINS;
  const bins = new Array(count).fill(0);
  for (const one of finite) {
    const at = whole ? one - low : Math.floor(((one - low) / (high - low || 1)) * BINS);
    bins[Math.min(count - 1, at)]++;
  }
  return { low, high, bins, whole, total: finite.length };
}

export function drawActions(kept, agent, agents) {
  const frames = kept.frames.filter((frame) => frame.step.has("action")),
    last = frames.at(-1);
  const parts = last ? Math.min(MOST_PARTS, ofAgent(last.step.get("action"), agent, agents).data.length) : 0;
  $("actions-card").hidden = !parts;
  if (!parts) return;
  const box = $("actions");
  while (box.children.length > parts) box.lastChild.remove();
  const isWhole = !last.step.get("action").dtype.includes("f");
  const all = frames.map((frame) => ofAgent(frame.step.get("action"), agent, agents).data);
  for (let part = 0; part < parts; part++) {
    if (!box.children[part]) {
      const canvas = el("canvas", { className: "actions-histogram", role: "img", "aria-label": `Actions, part ${part}` });
      box.append(el("figure", {}, canvas, el("figcaption", { className: "muted" })));
    }
    const [canvas, caption] = box.children[part].children;
    const found = countActions(
      all.map((data) => Number(data[part])),
      isWhole,
    );
    if (found) draw(canvas, found);
    const name = last.step.get("action").columns[part] ?? (parts > 1 ? `part ${part}` : "");
    say(caption, found ? `${name} ${number(found.low)} to ${number(found.high)}`.trim() : "no finite value");
  }
  say($("actions-about"), `${number(frames.length)} frames of this environment since the page shows it`);
}

function draw(canvas, { bins, whole, low }) {
  if (!canvas.clientWidth) return;
  const { ctx, width, height } = fitCanvas(canvas),
    look = theme();
  ctx.clearRect(0, 0, width, height);
  const most = Math.max(...bins),
    each = width / bins.length,
    floor = whole ? height - 15 : height - 1;
  ctx.font = "11px system-ui, sans-serif";
  ctx.textAlign = "center";
  bins.forEach((n, i) => {
    const tall = n ? Math.max(1, (n / most) * (floor - 1)) : 0;
    ctx.fillStyle = look.accent;
    ctx.fillRect(i * each, floor - tall, Math.max(1, Math.min(each - 2, 60)), tall);
    ctx.fillStyle = look.muted;
    if (whole) ctx.fillText(String(low + i), i * each + Math.min(each - 2, 60) / 2, height - 3);
  });
  ctx.fillStyle = look.line;
  ctx.fillRect(0, floor, width, 1);
}
