// Draws entities: a dot when zoomed out; zoomed in, a shape that points where it faces, with a health bar.
import { kindColor } from "./colors.js";
import { entitiesOf } from "./fields.js";

const HEALTH = ["#e5484d", "#f0a33a", "#46a758"];
const MOST_SPRITES = 400;
const sprites = new Map();

/** Returns a radius that stays visible; when zoomed out, many entities are drawn smaller than few. */
export const markRadius = (scale, count) => Math.min(28, Math.max(Math.min(2.8, 60 / Math.sqrt(count)), 1.7, scale * 0.36));

/** Returns a shape, drawn once for each colour, size and direction and cached. */
function sprite(color, radius, dir, agent, ratio) {
  const key = `${color} ${radius.toFixed(1)} ${dir} ${agent} ${ratio}`;
  let made = sprites.get(key);
  if (made) return made;
  if (sprites.size > MOST_SPRITES) sprites.clear();
  const side = 2 * Math.ceil(radius * 1.55 + 2);
  made = document.createElement("canvas");
  made.width = made.height = Math.round(side * ratio);
  const ctx = made.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, made.width / 2, made.height / 2);
  ctx.beginPath();
  if (dir >= 0) {
    // A drop shape: round, with a point in the direction it faces.
    ctx.rotate((dir % 4) * (Math.PI / 2));
    ctx.arc(0, 0, radius, -0.28 * Math.PI, 1.28 * Math.PI);
    ctx.lineTo(0, -radius * 1.5);
    ctx.closePath();
  } else {
    ctx.arc(0, 0, radius, 0, 2 * Math.PI);
  }
  ctx.fillStyle = color;
  ctx.fill();
  ctx.lineWidth = agent ? Math.max(1.2, radius * 0.2) : Math.max(0.7, radius * 0.12);
  ctx.strokeStyle = agent ? "#ffffff" : "rgba(8,16,24,0.62)";
  ctx.stroke();
  sprites.set(key, made);
  return made;
}

export function drawEntities(ctx, camera, ratio, field, look) {
  const all = entitiesOf(field),
    { scale, width, height } = camera;
  const radius = markRadius(scale, all.count),
    facing = scale >= 7 && all.dir,
    bars = scale >= 12 && all.hp && all.hpMax;
  const hasAgents = look.agents > 1 && look.agents < all.count;
  const boxes = HEALTH.map(() => []),
    edge = radius * 2;
  const long = scale * 0.86,
    thick = Math.max(2, Math.min(5, scale * 0.13));
  ctx.save();
  ctx.setTransform(1, 0, 0, 1, 0, 0); // copies are placed on whole screen pixels, so they stay sharp
  for (let i = 0; i < all.count; i++) {
    if (!all.there(i)) continue;
    const sx = (all.x(i) - camera.x) * scale + width / 2,
      sy = (all.y(i) - camera.y) * scale + height / 2;
    if (!(sx > -edge && sy > -edge && sx < width + edge && sy < height + edge)) continue;
    const color = all.kind ? kindColor(field, all.kind(i)) : look.accent;
    const body = sprite(color, radius, facing ? all.dir(i) : -1, hasAgents && i < look.agents, ratio);
    ctx.drawImage(body, Math.round(sx * ratio - body.width / 2), Math.round(sy * ratio - body.height / 2));
    if (bars && all.hpMax(i) > 0) {
      const part = Math.min(1, Math.max(0, all.hp(i) / all.hpMax(i)));
      boxes[Math.min(2, Math.floor(part * 3))].push(sx - long / 2, sy + radius * 1.2, long * part);
    }
  }
  ctx.restore();
  if (bars) drawHealth(ctx, boxes, long, thick);
  for (const [index, strength] of [
    [look.hovered, 0.6],
    [look.selected, 1],
  ]) {
    if (index < 0 || index >= all.count || !all.there(index)) continue;
    const [sx, sy] = camera.toScreen(all.x(index), all.y(index));
    ring(ctx, sx, sy, Math.max(radius * 1.75, 8), look.accent, strength);
    if (strength === 1 && look.view) drawView(ctx, camera, all.x(index), all.y(index), look.view, look.accent);
  }
}

function drawHealth(ctx, boxes, long, thick) {
  ctx.beginPath();
  for (const box of boxes)
    for (let k = 0; k < box.length; k += 3) ctx.rect(box[k] - 0.5, box[k + 1] - 0.5, long + 1, thick + 1);
  ctx.fillStyle = "rgba(8,16,24,0.7)";
  ctx.fill();
  boxes.forEach((box, level) => {
    ctx.beginPath();
    for (let k = 0; k < box.length; k += 3) ctx.rect(box[k], box[k + 1], box[k + 2], thick);
    ctx.fillStyle = HEALTH[level];
    ctx.fill();
  });
}

function ring(ctx, x, y, radius, color, strength) {
  for (const [width, style] of [
    [5, "rgba(255,255,255,0.9)"],
    [2.5, color],
  ]) {
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 2 * Math.PI);
    ctx.globalAlpha = strength;
    ctx.lineWidth = width;
    ctx.strokeStyle = style;
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
}

/** Highlights the square that an agent sees by dimming the rest. */
function drawView(ctx, camera, x, y, side, color) {
  const long = side * camera.scale,
    [sx, sy] = camera.toScreen(x, y);
  const left = Math.round(sx - long / 2) + 0.5,
    top = Math.round(sy - long / 2) + 0.5;
  if (left + long < 0 || top + long < 0 || left > camera.width || top > camera.height) return;
  ctx.beginPath();
  ctx.rect(0, 0, camera.width, camera.height);
  ctx.rect(left, top, long, long);
  ctx.fillStyle = "rgba(6,12,18,0.28)";
  ctx.fill("evenodd");
  for (const [width, style] of [
    [3.5, "rgba(255,255,255,0.85)"],
    [1.5, color],
  ]) {
    ctx.lineWidth = width;
    ctx.strokeStyle = style;
    ctx.strokeRect(left, top, long, long);
  }
}

/** Returns the entity nearest to a position on the screen as {key, index}, or null if none is close. */
export function entityAt(camera, layers, hidden, sx, sy) {
  const reach = Math.max(8, camera.scale * 0.5);
  let best = null,
    least = reach;
  for (const layer of layers) {
    if (layer.kind !== "entities" || hidden.has(layer.key)) continue;
    const all = entitiesOf(layer.field);
    for (let i = 0; i < all.count; i++) {
      if (!all.there(i)) continue;
      const [x, y] = camera.toScreen(all.x(i), all.y(i));
      const gap = Math.hypot(x - sx, y - sy);
      if (gap < least) [best, least] = [{ key: layer.key, index: i }, gap];
    }
  }
  return best;
}
