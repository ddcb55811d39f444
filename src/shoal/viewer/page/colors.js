// Maps values to colours. The headless drawing in shoal/state/drawing.py uses the same rules and colours.
import { isInteger, measure } from "./fields.js";

export const PALETTE = [
  "#3d7ea6",
  "#e9a23b",
  "#4f9d69",
  "#c8553d",
  "#7a6fb0",
  "#59b3b8",
  "#b8627d",
  "#a3a847",
  "#8a6d55",
  "#5a6b7b",
  "#d98cb3",
  "#2f5d50",
];
const RAMP = ["#14213d", "#1f4e79", "#1f7a8c", "#4aa96c", "#b5c334", "#ffe680"];
export const UNKNOWN = "#8a8f98";

export function rgb(color) {
  const bits = parseInt(color.slice(1), 16);
  return [bits >> 16, (bits >> 8) & 255, bits & 255];
}

const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/** 256 colours from dark to light, in order of lightness. */
export const RAMP256 = Uint32Array.from({ length: 256 }, (_, i) => {
  const at = (i / 255) * (RAMP.length - 1),
    low = Math.min(RAMP.length - 2, Math.floor(at));
  const a = rgb(RAMP[low]),
    b = rgb(RAMP[low + 1]);
  return packed(a.map((v, k) => Math.round(v + (b[k] - v) * (at - low))));
});

export const paletteColor = (value) => PALETTE[((value % PALETTE.length) + PALETTE.length) % PALETTE.length];

/** Returns the colour of a category, as "#rrggbb". */
export function kindColor(field, value) {
  if (!field.categories.length) return paletteColor(value);
  return field.categories.find((one) => one[0] === value)?.[2] || UNKNOWN;
}

/** Whether the values of a field without categories are coloured like categories. */
export function isQualitative(field) {
  if (field.categories.length) return true;
  const { min, max } = measure(field);
  return isInteger(field) && min >= 0 && max < PALETTE.length;
}

/** Returns a function from a value to a packed colour, for painting tile by tile. In a grid above another grid,
 * values without a category (and 0, if the field has no categories) are transparent. */
export function painter(field, above = false) {
  const unknown = above ? 0 : packed(rgb(UNKNOWN));
  if (isQualitative(field)) {
    const table = new Map();
    if (field.categories.length) for (const [value, , color] of field.categories) table.set(value, packed(rgb(color)));
    else PALETTE.forEach((color, value) => table.set(value, above && value === 0 ? 0 : packed(rgb(color))));
    if (field.data.BYTES_PER_ELEMENT === 1) {
      const byte = new Uint32Array(256).fill(unknown);
      table.forEach((color, value) => (byte[value & 255] = color));
      return (value) => byte[value & 255];
    }
    return (value) => table.get(value) ?? unknown;
  }
  const { min, max } = measure(field);
  const by = max > min ? 255 / (max - min) : 0;
  return (value) =>
    !Number.isFinite(value) ? unknown : above && value === 0 ? 0 : RAMP256[Math.round((value - min) * by)];
}
