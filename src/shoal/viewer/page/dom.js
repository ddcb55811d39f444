// Makes elements, formats numbers, reads the theme's colours. Text is always set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

/** Makes an element with properties, attributes (aria-..., data-..., role) and children. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key in made && !key.includes("-")) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** Sets text only if it changed, to avoid needless layout. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const SMALL = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, useGrouping: false });
const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value)) return Math.abs(value) < 1e9 ? WHOLE.format(value) : SHORT.format(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(2) : SMALL.format(value);
}

export const short = (value) => (Number.isFinite(value) ? SHORT.format(value) : number(value));

export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  return s < 3600
    ? `${Math.floor(s / 60)}:${two(s % 60)}`
    : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

let colors = null;

/** The theme's colours for a canvas; they are read again after the theme has changed. */
export function theme() {
  if (!colors) {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    colors = Object.fromEntries(
      ["accent", "text", "muted", "line", "surface", "stage", "warn"].map((n) => [n, read(n)]),
    );
  }
  return colors;
}

export function themeChanged() {
  colors = null;
}

/** Fits a canvas to its box at the screen's resolution. Its context uses CSS pixels. */
export function fitCanvas(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio),
    height = Math.round(canvas.clientHeight * ratio);
  const changed = canvas.width !== width || canvas.height !== height;
  if (changed) Object.assign(canvas, { width, height });
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { ctx, width: canvas.clientWidth, height: canvas.clientHeight, ratio, changed };
}

/** Returns a function that calls `work` at most once in `ms`, and always after the last call. */
export function atMost(ms, work) {
  let last = -Infinity,
    timer = 0;
  return () => {
    const wait = last + ms - performance.now();
    if (wait <= 0) {
      last = performance.now();
      work();
    } else if (!timer) {
      timer = setTimeout(() => {
        timer = 0;
        last = performance.now();
        work();
      }, wait);
    }
  };
}
