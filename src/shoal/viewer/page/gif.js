// Writes GIF files: each frame has its own palette and only the pixels that changed since the last frame.

const CLEAR = 255; // the palette's last entry is transparent: the pixel keeps its colour

/** Chooses at most `most` colours for these pixels by median cut. */
export function makePalette(pixels, most) {
  const weight = new Uint32Array(32768),
    sums = [new Float64Array(32768), new Float64Array(32768), new Float64Array(32768)];
  for (let i = 0; i < pixels.length; i += 4) {
    const at = ((pixels[i] >> 3) << 10) | ((pixels[i + 1] >> 3) << 5) | (pixels[i + 2] >> 3);
    weight[at]++;
    for (let k = 0; k < 3; k++) sums[k][at] += pixels[i + k];
  }
  const used = [];
  for (let at = 0; at < 32768; at++) {
    if (weight[at]) used.push({ at, n: weight[at], mean: sums.map((sum) => sum[at] / weight[at]) });
  }
  const boxes = [measureBox(used)];
  while (boxes.length < most) {
    let widest = 0;
    boxes.forEach((box, k) => (widest = box.worth > boxes[widest].worth ? k : widest));
    if (!(boxes[widest].worth > 0)) break;
    const { cells, axis, total } = boxes[widest];
    cells.sort((a, b) => a.mean[axis] - b.mean[axis]);
    let cut = 1;
    for (let seen = cells[0].n; cut < cells.length - 1 && seen < total / 2; cut++) seen += cells[cut].n;
    boxes.splice(widest, 1, measureBox(cells.slice(0, cut)), measureBox(cells.slice(cut)));
  }
  const table = new Uint8Array(768),
    index = new Uint8Array(32768);
  boxes.forEach(({ cells }, k) => {
    // Each box is represented by its most frequent colour, so flat areas keep their colour exactly.
    const top = cells.reduce((a, b) => (b.n > a.n ? b : a));
    for (let c = 0; c < 3; c++) table[3 * k + c] = Math.round(top.mean[c]);
    for (const cell of cells) index[cell.at] = k;
  });
  return { table, index };
}

function measureBox(cells) {
  let axis = 0,
    wide = -1,
    total = 0;
  for (const cell of cells) total += cell.n;
  for (let k = 0; k < 3; k++) {
    let low = 255,
      high = 0;
    for (const cell of cells) {
      low = Math.min(low, cell.mean[k]);
      high = Math.max(high, cell.mean[k]);
    }
    if (high - low > wide) [axis, wide] = [k, high - low];
  }
  return { cells, axis, total, worth: cells.length > 1 ? wide * Math.sqrt(total) : 0 };
}

class Bytes {
  constructor() {
    this.held = new Uint8Array(1 << 16);
    this.size = 0;
  }

  add(...values) {
    for (const value of values) this.put(value);
  }

  put(value) {
    if (this.size === this.held.length) {
      const wider = new Uint8Array(this.size * 2);
      wider.set(this.held);
      this.held = wider;
    }
    this.held[this.size++] = value;
  }

  short(value) {
    this.add(value & 255, value >> 8);
  }

  text(value) {
    for (const letter of value) this.put(letter.charCodeAt(0));
  }

  all(values) {
    for (const value of values) this.put(value);
  }
}

/** Compresses with GIF's LZW: codes of 9 to 12 bits, lowest bits first, in blocks of at most 255 bytes. */
function compress(out, indices) {
  const CLEAR_TABLE = 256,
    END = 257;
  const codes = new Int32Array(1 << 20); // indexed by (code so far << 8 | next value); 0 means no code
  let block = [],
    bits = 0,
    held = 0,
    width = 9,
    next = 258;
  const flush = () => {
    if (block.length) {
      out.put(block.length);
      out.all(block);
    }
    block = [];
  };
  const emit = (code) => {
    held |= code << bits;
    bits += width;
    while (bits >= 8) {
      block.push(held & 255);
      if (block.length === 255) flush();
      held >>>= 8;
      bits -= 8;
    }
  };
  out.put(8);
  emit(CLEAR_TABLE);
  let prefix = indices[0];
  for (let i = 1; i < indices.length; i++) {
    const key = (prefix << 8) | indices[i],
      found = codes[key];
    if (found) {
      prefix = found;
      continue;
    }
    emit(prefix);
    if (next === 4096) {
      emit(CLEAR_TABLE);
      codes.fill(0);
      width = 9;
      next = 258;
    } else {
      codes[key] = next;
      if (next === 1 << width) width++;
      next++;
    }
    prefix = indices[i];
  }
  emit(prefix);
  emit(END);
  if (bits) block.push(held & 255);
  flush();
  out.put(0);
}

export class GifWriter {
  constructor(width, height) {
    Object.assign(this, { width, height, before: null });
    const out = (this.out = new Bytes());
    out.text("GIF89a");
    out.short(width);
    out.short(height);
    out.add(0x70, 0, 0);
    out.add(0x21, 0xff, 11);
    out.text("NETSCAPE2.0");
    out.add(3, 1, 0, 0, 0); // repeat forever
  }

  /** Adds RGBA pixels, shown for `seconds`. */
  add(pixels, seconds) {
    const { table, index } = makePalette(pixels, CLEAR),
      { out, before } = this;
    const now = new Uint32Array(pixels.buffer, pixels.byteOffset, pixels.length / 4);
    const indices = new Uint8Array(now.length);
    for (let i = 0, p = 0; i < indices.length; i++, p += 4) {
      indices[i] =
        before && before[i] === now[i]
          ? CLEAR
          : index[((pixels[p] >> 3) << 10) | ((pixels[p + 1] >> 3) << 5) | (pixels[p + 2] >> 3)];
    }
    this.before = now.slice();
    out.add(0x21, 0xf9, 4, before ? 0x05 : 0x04);
    out.short(Math.max(2, Math.round(seconds * 100)));
    out.add(CLEAR, 0);
    out.put(0x2c);
    for (const value of [0, 0, this.width, this.height]) out.short(value);
    out.put(0x87);
    out.all(table);
    compress(out, indices);
  }

  finish() {
    this.out.put(0x3b);
    return new Blob([this.out.held.slice(0, this.out.size)], { type: "image/gif" });
  }
}
