// Canvases but for the map: colours, link heat maps, the timeline and SRAM. Each draws what it is given, and nothing more.
const VIRIDIS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"]
  .map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
// Okabe and Ito; what is too small for a colour of its own is grey.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"], REST = "#9a9a9a";

const number = (value, digits = 0) => value.toLocaleString("en-US", { maximumFractionDigits: digits });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

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
  return { context, width, height };
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

const LEFT = 112, TRACKS = [["compute", "compute"], ["wait", "wait or set up"], ["link", "busiest link"]];

// Compute, waiting and the busiest link of each scene in cycles, on one scale, with the run of rounds in view marked.
function drawTimeline(canvas, scenes, position) {
  const { context, width, height } = sharp(canvas);
  const end = Math.max(...scenes.map(({ timeline }) => timeline.at(-1).end)), scale = (width - LEFT - 14) / (end || 1);
  const band = (height - 26) / scenes.length;
  context.font = "12px system-ui, sans-serif";
  scenes.forEach((scene, which) => {
    const top = which * band + (scenes.length > 1 ? 16 : 0), track = (band - (scenes.length > 1 ? 20 : 4)) / TRACKS.length;
    const now = scene.intervalAt(position);
    if (scenes.length > 1) text(context, scene.name, 2, which * band + 12, "left");
    if (now) {
      context.fillStyle = css("--line");
      context.fillRect(LEFT + now.start * scale, top, Math.max(2, (now.end - now.start) * scale), track * TRACKS.length);
    }
    TRACKS.forEach(([field, name], row) => {
      text(context, name, LEFT - 8, top + (row + 0.62) * track, "right");
      const fine = scene.timeline.length * 3 > width;  // too fine for bars: a pixel is as high as it is busy
      const busy = new Float64Array(Math.ceil(width)), colours = [];
      for (const each of scene.timeline) {
        if (each[field] <= 0) continue;
        const start = (field === "compute" ? each.start + each.wait : each.start) * scale, end = start + each[field] * scale;
        context.fillStyle = scene.stepColours[each.label];
        if (!fine) context.fillRect(LEFT + start, top + row * track + 3, Math.max(0.6, end - start), track - 6);
        for (let at = Math.floor(start); fine && at < end; at += 1) {
          busy[at] += Math.min(at + 1, end) - Math.max(at, start);
          colours[at] = scene.stepColours[each.label];
        }
      }
      colours.forEach((colour, at) => {
        const high = Math.min(1, busy[at]) * (track - 6);
        context.fillStyle = colour;
        context.fillRect(LEFT + at, top + (row + 1) * track - 3 - high, 1, high);
      });
    });
  });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const at = LEFT + share * end * scale;
    context.fillStyle = css("--line");
    context.fillRect(at, height - 24, 1, 5);
    text(context, `${number(share * end)}${share === 1 ? " cycles" : ""}`, Math.min(at, width - 2), height - 6, share === 1 ? "right" : share ? "center" : "left");
  }
}

// The cycle at a pixel of the timeline.
function cycleAt(canvas, scenes, x) {
  const end = Math.max(...scenes.map(({ timeline }) => timeline.at(-1).end));
  return (x - LEFT) / (canvas.getBoundingClientRect().width - LEFT - 14) * end;
}

// What a core of each scene holds over the rounds, by buffer, the largest lowest, beside what it has.
function drawSram(canvas, scenes, position) {
  const { context, width, height } = sharp(canvas);
  const longest = Math.max(...scenes.map(({ length }) => length)), scale = (width - LEFT - 14) / longest, band = (height - 22) / scenes.length;
  const top = Math.max(...scenes.map(({ account }) => account.sram_peak_bytes), 1);
  context.font = "12px system-ui, sans-serif";
  scenes.forEach((scene, which) => {
    const base = (which + 1) * band, high = band - 20;
    text(context, scenes.length > 1 ? scene.name : "", 2, which * band + 12, "left");
    text(context, `${number(top)} B`, LEFT - 8, base - high + 10, "right");
    text(context, "0 B", LEFT - 8, base - 2, "right");
    const sums = new Float64Array(scene.length);
    for (const name of Object.keys(scene.bufferColours)) {
      const { live } = scene.buffers.find((buffer) => buffer.name === name);
      context.fillStyle = scene.bufferColours[name];
      for (let round = live[0]; round <= Math.min(live[1], scene.length - 1); round += 1) {
        const from = sums[round] / top * high, to = (sums[round] + live[2]) / top * high;
        context.fillRect(LEFT + round * scale, base - to, scale + 0.6, to - from + 0.4);
        sums[round] += live[2];
      }
    }
    if (position > 0 && position <= scene.length) {
      context.strokeStyle = css("--ink");
      context.strokeRect(LEFT + (position - 1) * scale, base - high - 2, Math.max(2, scale), high + 2);
    }
  });
  text(context, "round 0", LEFT, height - 6, "left");
  text(context, `round ${longest - 1}`, width - 4, height - 6, "right");
}

function text(context, words, x, y, align) {
  context.fillStyle = css("--soft");
  context.textAlign = align;
  context.fillText(words, x, y);
}
