// A token or a request in time: a row for each region, with a lane of blocks and a lane of steps; Python made the spans.
const ROW = 34, HEAD = 4, NEUTRAL = ["--line", "--core"];

// The cycles of each step over all rows, for the colours of the page.
function stepsOf(time) {
  const sizes = {};
  for (const { lanes: [, steps = []] } of time?.rows ?? []) for (const [start, end, name] of steps) sizes[name] = (sizes[name] ?? 0) + end - start;
  return sizes;
}

function drawTimes(canvas, { rows }, [from, to], colours, region) {
  const tall = rows.map(({ lanes }) => (lanes.length > 1 ? ROW : ROW / 2 + 3)), height = tall.reduce((sum, each) => sum + each, 0) + 26 + HEAD;
  canvas.style.height = `${height}px`;
  const { context, width } = sharp(canvas), scale = (width - LEFT - RIGHT) / (to - from || 1);
  const place = (cycle) => Math.max(LEFT, Math.min(width - RIGHT, LEFT + (cycle - from) * scale));
  let top = HEAD;
  rows.forEach((row, at) => {
    const lane = row.lanes.length > 1 ? (tall[at] - 4) / 2 : tall[at] - 4;
    text(context, row.name, LEFT - 8, top + tall[at] / 2 + 3, "right", row.region === region && region !== null ? css("--ink") : css("--soft"));
    row.lanes.forEach((spans, number) => {
      let shade = 0, last = -1;
      for (const [start, end, name] of spans) {
        shade = 1 - shade;
        if (end < from || start > to) continue;
        const left = place(start), right = Math.max(place(end), left + 0.6), down = top + number * lane;
        if (right - last < 0.5 && right - left < 1) continue;  // within a pixel that has a bar
        last = right;
        context.fillStyle = number ? colours[name] : name === "hand-over" ? css("--ink") : css(NEUTRAL[shade]);
        context.fillRect(left, down, right - left - (right - left > 4 ? 0.5 : 0), lane - 1);
        context.font = "11px system-ui, sans-serif";
        if (context.measureText(name).width + 6 > right - left) continue;
        const colour = number ? colours[name].match(/\w\w/g).map((part) => parseInt(part, 16)) : null;
        text(context, name, (left + right) / 2, down + lane / 2 + 4, "center", colour ? (isDark(colour) ? "#fff" : "#000") : css("--ink"));
      }
    });
    top += tall[at];
    context.fillStyle = css("--line");
    context.fillRect(LEFT, top - 2, width - LEFT - RIGHT, 1);
  });
  context.font = "12px system-ui, sans-serif";
  for (const share of width < 500 ? [0, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const words = `${number(from + share * (to - from))}${share === 1 ? " cycles" : ""}`;
    text(context, words, share === 1 ? width - 2 : LEFT + share * (width - LEFT - RIGHT), height - 8, share === 1 ? "right" : share ? "center" : "left");
  }
  return tall;
}

// Wires the section of a timeline: views, zoom, values below the pointer, and a click that chooses a region.
function timesSection(page, choose) {
  const { time } = page.data, canvas = by("times"), [, start, end] = time.views[0];
  let view = [start, end], tall = [];
  const draw = () => { tall = drawTimes(canvas, time, view, page.stepColours, page.region); };
  const see = (from, to) => {
    const wide = Math.min(end - start, to - from), low = Math.max(start, Math.min(end - wide, from));
    view = [low, low + wide];
    draw();
    page.remember?.();
  };
  const zoom = (factor, cycle = (view[0] + view[1]) / 2) => see(cycle - (cycle - view[0]) * factor, cycle + (view[1] - cycle) * factor);
  const rowAt = (y) => { let top = HEAD; return time.rows.findIndex((_, at) => y < (top += tall[at])); };
  time.views.forEach(([name], at) => by("times-view").add(new Option(name, at)));
  by("times-view").addEventListener("change", () => see(...time.views[by("times-view").value].slice(1)));
  by("times-in").addEventListener("click", () => zoom(1 / 2));
  by("times-out").addEventListener("click", () => zoom(2));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1 / 1.5 : 1.5, cycleAt(canvas, event.offsetX, view));
  }, { passive: false });
  canvas.addEventListener("click", (event) => {
    const row = time.rows[rowAt(event.offsetY)];
    if (row && row.region !== null) choose(row.region);
  });
  canvas.tip = (x, y) => {
    const at = rowAt(y), row = time.rows[at], cycle = cycleAt(canvas, x, view);
    if (!row || x < LEFT) return "";
    const top = HEAD + tall.slice(0, at).reduce((sum, each) => sum + each, 0), lane = row.lanes.length > 1 && y > top + tall[at] / 2 ? 1 : 0;
    const hit = row.lanes[lane].find(([from, to]) => from <= cycle && cycle < to);
    if (!hit) return `${row.name}: idle`;
    const [from, to, name, runs] = hit, long = runs > 1 ? `${number(runs)} times ${number((to - from) / runs)}` : number(to - from);
    return `${row.name}, ${name}: ${long} cycles, from ${number(from)} on`;
  };
  const seen = Object.keys(stepsOf(time)), rest = seen.filter((name) => page.stepColours[name] === REST).length;
  for (const [name, colour] of [...seen.filter((name) => page.stepColours[name] !== REST).map((name) => [name, page.stepColours[name]]), ...(rest ? [[`${rest} smaller`, REST]] : []), ["hand-over", css("--ink")]]) {
    const item = make("li", "", by("times-steps"));
    make("i", "", item).style.background = colour;
    item.append(name);
    item.dataset.name = name;
  }
  page.times = { draw, see, view: () => view, tall: () => tall };
  return draw;
}
