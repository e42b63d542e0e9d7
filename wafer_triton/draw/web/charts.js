// Canvases but for the map: colours, link heat maps, the strip of rounds, the timeline and SRAM. Each draws its arguments.
const VIRIDIS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"]
  .map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
// Okabe and Ito, then colours far from these to colour-blind readers; a name too small for a colour of its own is grey.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#662200", "#4400aa", "#aaee88", "#440066"], REST = "#5c5c5c";

const number = (value, digits = 0) => value.toLocaleString("en-US", { maximumFractionDigits: digits });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Bytes as people read them: in full up to 6 digits, else with four digits and a unit of 1,024s, which fits `most`.
function bytes(value, most = value) {
  if (most < 1e6) return `${number(value)} B`;
  const unit = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => most >= size);
  return `${Number((value / unit[1]).toPrecision(4))} ${unit[0]}`;
}

function amount(share) {
  const at = Math.max(0, Math.min(1, share)) * (VIRIDIS.length - 1), low = Math.floor(at), high = Math.min(low + 1, VIRIDIS.length - 1);
  return VIRIDIS[low].map((part, n) => Math.round(part + (VIRIDIS[high][n] - part) * (at - low)));
}
const rgb = (parts) => `rgb(${parts.join(",")})`;
const isDark = ([red, green, blue]) => 0.299 * red + 0.587 * green + 0.114 * blue < 140;

// A colour for each name, the largest first.
function coloured(sizes) {
  const order = Object.keys(sizes).sort((a, b) => sizes[b] - sizes[a]);
  return Object.fromEntries(order.map((name, at) => [name, COLOURS[at] ?? REST]));
}

// A canvas as large as it is shown, in the screen's own dots; its context draws in CSS pixels.
function sharp(canvas) {
  const { width, height } = canvas.getBoundingClientRect(), dots = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * dots));
  canvas.height = Math.max(1, Math.round(height * dots));
  const context = canvas.getContext("2d");
  context.setTransform(dots, 0, 0, dots, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

function text(context, words, x, y, align, colour = css("--soft")) {
  context.fillStyle = colour;
  context.textAlign = align;
  context.fillText(words, x, y);
}

// A heat map [rows x columns], one dot for each block of cores.
function drawHeat(canvas, load, rows, columns, top) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let at = 0; at < rows * columns; at += 1) {
    image.data.set([...amount(load ? load[at] / Math.max(1, top) : 0), 255], 4 * at);
  }
  context.putImageData(image, 0, 0);
}

// A scale of colours from `low` to `high`, in words.
function scaleOf(parent, low, high) {
  parent.replaceChildren();
  const bar = document.createElement("i");
  bar.style.background = `linear-gradient(90deg, ${VIRIDIS.map(rgb).join(",")})`;
  parent.append(low, bar, high);
}

const LEFT = 118, RIGHT = 14, TRACKS = [["compute", "compute"], ["wait", "wait or set up"], ["link", "busiest link"]];
const inner = (canvas) => canvas.getBoundingClientRect().width - LEFT - RIGHT;

// Hops, bytes over links and cycles of each round of a scene; the round in view is marked.
const STRIP = [["longest move", "hops", (hops) => `${number(hops)} hop${hops === 1 ? "" : "s"}`], ["bytes over links", "link_bytes", bytes], ["cycles", "cycles", number]];

function drawStrip(canvas, scene, position) {
  const { context, width, height } = sharp(canvas), step = (width - LEFT - RIGHT) / scene.length, band = height / STRIP.length;
  STRIP.forEach(([name, field, words], row) => {
    const values = scene.perRound[field], top = values.reduce((high, value) => Math.max(high, value), 0), base = (row + 1) * band - 2;
    text(context, name, LEFT - 8, base - band / 2, "right");
    text(context, `up to ${words(top)}`, LEFT - 8, base - band / 2 + 13, "right");
    context.fillStyle = COLOURS[[4, 0, 1][row]];
    for (let pixel = 0; pixel < (step < 1 ? width - LEFT - RIGHT : scene.length); pixel += 1) {  // the most of a pixel's rounds
      const from = step < 1 ? Math.floor(pixel / step) : pixel, to = step < 1 ? Math.max(from + 1, Math.floor((pixel + 1) / step)) : pixel + 1;
      const value = values.slice(from, to).reduce((high, each) => Math.max(high, each), 0), high = top ? value / top * (band - 8) : 0;
      const left = Math.round(LEFT + pixel * Math.max(1, step)), right = Math.round(LEFT + (pixel + 1) * Math.max(1, step));
      context.fillRect(left, base - high, Math.max(1, right - left - (step > 4 ? 1 : 0)), high);
    }
  });
  if (position > 0 && position <= scene.length) {
    context.strokeStyle = css("--ink");
    context.strokeRect(LEFT + (position - 1) * step, 1, Math.max(2, step), height - 2);
  }
}

// The round at a pixel of the strip or of SRAM; -1 beside it.
const roundAt = (canvas, length, x) => (x < LEFT || x >= LEFT + inner(canvas) ? -1 : Math.floor((x - LEFT) / inner(canvas) * length));

// Compute, waiting and the busiest link of each scene in cycles, on one scale; [from, to] are the cycles in view.
function drawTimeline(canvas, scenes, position, [from, to]) {
  const { context, width, height } = sharp(canvas), scale = (width - LEFT - RIGHT) / (to - from || 1), band = (height - 26) / scenes.length;
  const end = LEFT + (to - from) * scale, place = (cycle) => Math.max(LEFT, Math.min(end, LEFT + (cycle - from) * scale));
  scenes.forEach((scene, which) => {
    const top = which * band + (scenes.length > 1 ? 16 : 0), track = (band - (scenes.length > 1 ? 20 : 4)) / TRACKS.length;
    const now = scene.intervalAt(position);
    if (scenes.length > 1) text(context, scene.name, 2, which * band + 12, "left");
    if (now && now.end >= from && now.start <= to) {
      context.fillStyle = css("--line");
      context.fillRect(place(now.start), top, Math.max(2, place(now.end) - place(now.start)), track * TRACKS.length);
    }
    const shown = scene.timeline.filter((each) => each.end >= from && each.start <= to);
    TRACKS.forEach(([field, name], row) => {
      text(context, name, LEFT - 8, top + (row + 0.62) * track, "right");
      const fine = shown.length * 3 > width;  // too fine for bars: a pixel is as high as it is busy
      const busy = new Float64Array(Math.ceil(width) + 1), colours = [];
      for (const each of shown) {
        if (each[field] <= 0) continue;
        const begin = field === "compute" ? each.start + each.wait : each.start, left = place(begin), right = place(begin + each[field]);
        context.fillStyle = scene.stepColours[each.label];
        if (!fine) context.fillRect(left, top + row * track + 3, Math.max(0.6, right - left), track - 6);
        for (let at = Math.floor(left); fine && at < right; at += 1) {
          busy[at] += Math.min(at + 1, right) - Math.max(at, left);
          colours[at] = scene.stepColours[each.label];
        }
      }
      colours.forEach((colour, at) => {
        const high = Math.min(1, busy[at]) * (track - 6);
        context.fillStyle = colour;
        context.fillRect(at, top + (row + 1) * track - 3 - high, 1, high);
      });
    });
  });
  const ticks = width < 500 ? [0, 1] : [0, 0.25, 0.5, 0.75, 1];
  for (const share of ticks) {
    const at = LEFT + share * (end - LEFT), words = `${number(from + share * (to - from))}${share === 1 ? " cycles" : ""}`;
    context.fillStyle = css("--line");
    context.fillRect(at, height - 24, 1, 5);
    text(context, words, Math.min(at, width - 2), height - 6, share === 1 ? "right" : share ? "center" : "left");
  }
}

const cycleAt = (canvas, x, [from, to]) => from + (x - LEFT) / inner(canvas) * (to - from);

// SRAM of a core of each scene over its rounds, by buffer, the largest lowest.
// The limit of a core is a line; where it is more than four times the peak, it is a note.
function drawSram(canvas, scenes, position) {
  const { context, width, height } = sharp(canvas);
  const longest = Math.max(...scenes.map(({ length }) => length)), scale = (width - LEFT - RIGHT) / longest, band = (height - 22) / scenes.length;
  const peak = Math.max(...scenes.map((scene) => scene.account.sram_peak_bytes), 1), limit = scenes[0].device.sram;
  const top = 4 * peak < limit ? peak : Math.max(peak, limit);
  scenes.forEach((scene, which) => {
    const base = (which + 1) * band, high = band - 24, up = (size) => base - size / top * high;
    text(context, scenes.length > 1 ? scene.name : "", 2, which * band + 12, "left");
    text(context, bytes(scene.account.sram_peak_bytes), LEFT - 8, Math.min(up(scene.account.sram_peak_bytes) + 10, base - 16), "right");
    text(context, "0 B", LEFT - 8, base - 2, "right");
    const sums = new Float64Array(scene.length);
    for (const name of scene.bufferOrder) {
      const { live } = scene.buffers.find((buffer) => buffer.name === name);
      context.fillStyle = scene.bufferColours[name];
      for (let round = live[0]; round <= Math.min(live[1], scene.length - 1); round += 1) {
        const left = Math.round(LEFT + round * scale), right = Math.round(LEFT + (round + 1) * scale);
        context.fillRect(left, up(sums[round] + live[2]), Math.max(1, right - left), up(sums[round]) - up(sums[round] + live[2]) + 0.4);
        sums[round] += live[2];
      }
    }
    if (position > 0 && position <= scene.length) {
      context.strokeStyle = css("--ink");
      context.strokeRect(LEFT + (position - 1) * scale, base - high, Math.max(2, scale), high);
    }
    context.fillStyle = css("--limit");
    if (top >= limit) context.fillRect(LEFT, Math.round(up(limit)) - 1, width - LEFT - RIGHT, 2);
    text(context, top >= limit ? `limit ${bytes(limit)}` : `limit ${bytes(limit)}, ${number(limit / peak, 1)} times the peak`, width - RIGHT, base - high - (top >= limit ? 5 : 8), "right", css("--limit"));
  });
  text(context, "round 0", LEFT, height - 6, "left");
  text(context, `round ${longest - 1}`, width - 4, height - 6, "right");
}

// The scene whose band of a canvas of several has a pixel.
const sceneAt = (canvas, scenes, y, foot) => scenes[Math.max(0, Math.min(scenes.length - 1, Math.floor(y / ((canvas.getBoundingClientRect().height - foot) / scenes.length))))];
