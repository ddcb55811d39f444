// Decodes messages. A frame is a set of fields; a field that did not change is the same object as in the last
// frame. All code that keeps or draws fields relies on this: the terrain is stored and painted once.

const ARRAYS = {
  b1: Uint8Array,
  u1: Uint8Array,
  i1: Int8Array,
  u2: Uint16Array,
  i2: Int16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
  u8: BigUint64Array,
  i8: BigInt64Array,
};

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1,
    exponent = (bits >> 10) & 31,
    part = bits & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : (2 ** -14 * part) / 1024);
}

/** Returns the bytes as numbers; 64-bit integers become doubles, because the page does not need their last bits. */
function numbers(dtype, bytes) {
  const kind = dtype.slice(1);
  if (kind === "f2") return Float32Array.from(new Uint16Array(bytes), half);
  if (kind === "i8" || kind === "u8") return Float64Array.from(new ARRAYS[kind](bytes), Number);
  return ARRAYS[kind] ? new ARRAYS[kind](bytes) : new Uint8Array(bytes);
}

export function openMessage(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  return { head, start: Math.ceil((4 + size) / 8) * 8 };
}

/** Decodes a frame; `last` is the last frame of the same environment. Returns null if the page does not have the
 * schema or the data that the message refers to. */
export function readFrame(head, buffer, start, last) {
  const { changed, ...rest } = head;
  const fields = head.fields ?? (last?.schema === head.schema ? last.fields : null);
  if (!fields) return null;
  const frame = { ...rest, fields, world: new Map(), step: new Map(), bytes: 200 };
  const places = new Map(changed.map(([index, ...place]) => [index, place]));
  for (const [index, one] of fields.entries()) {
    const parts = frame[one.part];
    if (!places.has(index)) {
      const before = last?.[one.part].get(one.name);
      if (!before) return null;
      parts.set(one.name, before);
      continue;
    }
    // A copy, because a view would keep the whole message in memory as long as the field.
    const [offset, bytes] = places.get(index);
    const data = numbers(one.dtype, buffer.slice(start + offset, start + offset + bytes));
    parts.set(one.name, { ...one, data, bytes: data.byteLength });
    frame.bytes += data.byteLength;
  }
  return frame;
}

const WORDS = { i: "int", u: "uint", f: "float" };

/** Formats type and shape like NumPy: int8 [512, 512]. */
export function describeType({ dtype, shape }) {
  const name = dtype[1] === "b" ? "bool" : WORDS[dtype[1]] ? WORDS[dtype[1]] + 8 * Number(dtype.slice(2)) : dtype;
  return `${name} [${shape.join(", ")}]`;
}

export const isInteger = (field) => "iub".includes(field.dtype[1]);
export const fieldsOf = (frame) => [...frame.world.values(), ...frame.step.values()];

/** Returns one agent's part of a field whose first dimension is the agents. */
export function ofAgent(field, agent, agents) {
  if (agents <= 1 || field.shape[0] !== agents) return field;
  const shape = field.shape.slice(1);
  const size = shape.reduce((a, b) => a * b, 1);
  return { ...field, shape, data: field.data.subarray(agent * size, (agent + 1) * size) };
}

/** Returns [height, width, channels] if the field can be shown as a picture, else null. */
export function pictureShape(field) {
  const [h, w, channels = 1, more] = field.shape;
  const flat = field.shape.length === 2 || (field.shape.length === 3 && [1, 3, 4].includes(channels));
  return flat && more === undefined && h >= 8 && w >= 8 ? [h, w, channels] : null;
}

/** Returns [side, channels] if the field is a square window around an agent, else null. */
export function windowShape(field) {
  const [h, w, channels = 1] = field.shape;
  const fits = (field.shape.length === 2 || field.shape.length === 3) && h === w && h % 2 === 1 && h >= 3;
  return fits ? [h, channels] : null;
}

/** Returns functions that read the columns of an entities field by row, or null if it has no positions. */
export function entitiesOf(field) {
  if (field.shape.length !== 2) return null;
  const stride = field.shape[1],
    at = (name) => field.columns.indexOf(name);
  const byTile = at("r") >= 0 && at("c") >= 0;
  const row = byTile ? at("r") : at("y"),
    col = byTile ? at("c") : at("x");
  if (row < 0 || col < 0) return null;
  const middle = byTile || isInteger(field) ? 0.5 : 0;
  const { data } = field;
  const get = (index) => (index < 0 ? null : (i) => data[i * stride + index]);
  return {
    count: field.shape[0],
    stride,
    data,
    middle,
    row,
    col,
    y: (i) => data[i * stride + row] + middle,
    x: (i) => data[i * stride + col] + middle,
    there: (i) => !(byTile && data[i * stride + row] < 0),
    kind: get(at("kind")),
    hp: get(at("hp")),
    hpMax: get(at("hp_max")),
    dir: get(at("dir")),
  };
}

export function categoryOf(field, value) {
  return field.categories.find((one) => one[0] === value);
}

/** Counts how often each value occurs in a field (or in one of its columns). */
export function countValues(field, column = -1) {
  const counts = new Map(),
    stride = column < 0 ? 1 : field.shape[1];
  if (column < 0 && field.data.BYTES_PER_ELEMENT === 1) {
    const all = new Uint32Array(256),
      { data } = field;
    for (let i = 0; i < data.length; i++) all[data[i] & 255]++;
    const signed = data instanceof Int8Array;
    all.forEach((n, i) => n && counts.set(signed && i > 127 ? i - 256 : i, n));
    return counts;
  }
  for (let i = Math.max(0, column); i < field.data.length; i += stride) {
    counts.set(field.data[i], (counts.get(field.data[i]) || 0) + 1);
  }
  return counts;
}

const known = new WeakMap();

/** Returns minimum, maximum, mean and a histogram, of all values or of one column. */
export function measure(field, column = -1, bins = 40) {
  const held = known.get(field) || known.set(field, new Map()).get(field);
  if (held.has(column)) return held.get(column);
  const stride = column < 0 ? 1 : field.shape[1],
    { data } = field;
  let min = Infinity,
    max = -Infinity,
    sum = 0,
    count = 0,
    odd = 0;
  for (let i = Math.max(0, column); i < data.length; i += stride) {
    const v = data[i];
    if (!Number.isFinite(v)) {
      odd++;
      continue;
    }
    if (v < min) min = v;
    if (v > max) max = v;
    sum += v;
    count++;
  }
  const histogram = new Uint32Array(bins),
    wide = max - min || 1;
  for (let i = Math.max(0, column); count && i < data.length; i += stride) {
    if (Number.isFinite(data[i])) histogram[Math.min(bins - 1, Math.floor(((data[i] - min) / wide) * bins))]++;
  }
  const found = count
    ? { min, max, mean: sum / count, count, odd, histogram }
    : { min: NaN, max: NaN, mean: NaN, count, odd, histogram };
  held.set(column, found);
  return found;
}
