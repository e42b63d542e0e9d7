// Panels in words and tables: counts and prices, links, and everything about the chosen core.
const by = (id) => document.getElementById(id);

function make(tag, words = "", parent = null) {
  const element = document.createElement(tag);
  element.textContent = words;
  parent?.append(element);
  return element;
}

function table(parent, head, rows) {
  const element = make("table", "", make("div", "", parent));
  element.parentElement.className = "wide";
  const top = make("tr", "", make("thead", "", element));
  head.forEach((cell) => { make("th", cell, top).scope = "col"; });
  const body = make("tbody", "", element);
  for (const row of rows) {
    const line = make("tr", "", body);
    row.forEach((cell) => make("td", cell, line));
    line.dataset.row = row[0];
  }
}

const percent = (share) => `${number(100 * share)} %`;

// The name and the share of the largest of some cycles.
function largest(bounds) {
  const all = Object.values(bounds).reduce((sum, each) => sum + each, 0), [name, cycles] = Object.entries(bounds).reduce((best, each) => (each[1] > best[1] ? each : best));
  return all ? `${name} ${percent(cycles / all)}` : "-";
}

function legend(id, shown, field, sizes) {
  by(id).replaceChildren();
  const seen = Object.assign({}, ...shown.map((scene) => Object.fromEntries(Object.keys(scene[sizes]).map((name) => [name, scene[field][name]]))));
  const own = Object.entries(seen).filter(([, colour]) => colour !== REST), rest = Object.keys(seen).length - own.length;
  for (const [name, colour] of [...own, ...(rest ? [[`${rest} smaller`, REST]] : [])]) {
    const item = make("li", "", by(id));
    make("i", "", item).style.background = colour;
    item.append(name || "(no label)");
    item.dataset.name = name;
  }
}

function numbersPanel(shown) {
  const sizes = (field, words = number) => shown.map((scene) => words(scene.account[field], words === bytes ? Math.max(...shown.map(({ account }) => account[field])) : 0));
  const row = (label, words) => [label, ...shown.map(words)];
  const rows = [
    ...Object.entries(shown[0].labels).map(([field, [label, unit]]) => [label, ...sizes(field, unit === "B" ? bytes : number)]),
    row("routes", ({ price }) => number(price.routes) + (price.relayed ? ", relayed" : "")),
    ...[["predicted cycles", "cycles"], ["if tuned", "tuned_cycles"], ["of them compute", "compute_cycles"]].map(([label, field]) => row(label, ({ price }) => number(price[field]))),
    row("PLMR verdict", ({ verdict }) => Object.entries(verdict).map(([letter, kept]) => (kept ? letter : "-")).join(" ")),
  ];
  by("counts").replaceChildren();
  table(by("counts"), ["", ...shown.map(({ name }) => name)], rows);
  const steps = [...new Set(shown.flatMap(({ cycles }) => Object.keys(cycles)))];
  const cells = (step) => shown.flatMap(({ cycles, bounds }) => (step in cycles ? [number(cycles[step]), largest(bounds[step])] : ["-", "-"]));
  by("costs").replaceChildren();
  table(by("costs"), ["step", ...shown.flatMap(({ name }) => [shown.length > 1 ? name : "cycles", "most of it"])], steps.map((step) => [step || "(no label)", ...cells(step)]));
}

function heatPanel(shown, position) {
  const round = document.querySelector("[name=span]:checked").value === "round" && position > 0;
  by("heat").replaceChildren();
  const linksOf = (scene) => scene.linksOf(round ? scene.frameAt(position) : null);  // on one scale, as they stand side by side
  const top = Math.max(1, ...shown.flatMap((scene) => Object.values(linksOf(scene)).map((load) => load.reduce((most, sent) => Math.max(most, sent), 0))));
  for (const scene of shown) {
    const frame = round ? scene.frameAt(position) : null, links = linksOf(scene);
    by("span-round").textContent = frame && frame.last > frame.first ? `rounds ${frame.first} to ${frame.last}` : "this round";
    if (shown.length > 1) make("h3", scene.name, by("heat"));
    const rows = Math.ceil(scene.mesh.rows / scene.block), columns = Math.ceil(scene.mesh.cols / scene.block);
    for (const way of scene.ways) {
      const figure = make("figure", "", by("heat")), canvas = make("canvas", "", figure), sum = (links[way] ?? []).reduce((a, b) => a + b, 0);
      drawHeat(canvas, links[way], rows, columns, top);
      canvas.tip = (x, y) => {
        const { width, height } = canvas.getBoundingClientRect(), row = Math.floor(y / height * rows), column = Math.floor(x / width * columns);
        return `from ${scene.block > 1 ? "cores at " : ""}(${row * scene.block}, ${column * scene.block}) to the ${way}: ${bytes(links[way]?.[row * columns + column] ?? 0)}`;
      };
      const said = `to the ${way}: ${bytes(sum)}`;
      make("figcaption", said, figure).dataset.bytes = sum;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Heat map of bytes ${said}, at most ${bytes(top)} on one ${scene.block > 1 ? "block of cores" : "link"}`);
    }
    if (!scene.ways.length) make("p", "no bytes over links", by("heat"));
    if (!scene.ways.length) continue;
    const scale = make("div", "", by("heat"));
    scale.className = "scale";
    scaleOf(scale, "0 B", `${bytes(top)} on one ${scene.block > 1 ? "block of cores" : "link"}`);
  }
}

// The buffers, the messages, the router and the values of the chosen core.
function factsPanel(page, scene) {
  const panel = by("facts");
  panel.replaceChildren();
  page.chosen = Math.min(page.chosen, scene.width * scene.height - 1);
  const [row, column] = scene.place(page.chosen);
  Object.assign(by("row"), { value: row, max: scene.height - 1 });
  Object.assign(by("column"), { value: column, max: scene.width - 1 });
  const round = Math.max(0, page.position - 1);
  const live = scene.buffers.map((buffer, at) => ({ ...buffer, at })).filter(({ live: span }) => span && span[0] <= round && round <= span[1]);
  make("h3", "Buffers", panel);
  table(panel, ["buffer", "tile", "bytes", ...(scene.detailed ? ["began at"] : [])], live.map(({ name, tile, slots, dtype, live: span, at }) =>
    [name, `${slots > 1 ? `${slots} x ` : ""}${tile.join(" x ")} ${dtype}`, number(span[2]), ...(scene.detailed ? [began(scene, at, page.chosen)] : [])]));
  if (!scene.detailed) {
    make("p", `Cores of a mesh over 64 a side are added up in blocks of ${scene.block} x ${scene.block}.`, panel).className = "small";
    return;
  }
  exchange(panel, scene, "Sends in this round", ({ from }) => from === page.chosen, "to", ({ to }) => to);
  exchange(panel, scene, "Receives in this round", ({ to }) => to === page.chosen, "from", ({ from }) => from);
  const colours = scene.colours(page.chosen), limit = scene.device.routes === null ? "packets carry their routes" : `${scene.device.routes} on ${scene.device.name}`;
  make("h3", "Colours of its router", panel);
  make("p", `along x: ${colours.x.join(", ") || "none"}; along y: ${colours.y.join(", ") || "none"} (the schedule needs ${scene.routes.colours}; ${limit})`, panel).id = "colours";
  if (!scene.values) return;
  make("h3", "Values, emulated", panel);
  const held = live.map(({ name, tile }) => [name, tile, scene.valuesOf(name, page.chosen, page.position)]).filter(([, , value]) => value);
  const plain = (value) => (value === null ? "NaN" : number(value, 4));
  table(panel, ["buffer", "shape", "norm", "range", "first numbers"], held.map(([name, tile, [norm, low, high, ...numbersOf]]) =>
    [name, tile.join(" x "), plain(norm), `${plain(low)} to ${plain(high)}`, numbersOf.map(plain).join(" ")]));
}

// The cores from which the tiles of a buffer's first slots come, and how many parts a sum has.
function began(scene, at, core) {
  const count = scene.width * scene.height, slots = scene.slots[at].slice(0, 4);
  const names = slots.map((tiles, slot) => {
    const tile = tiles[core], sum = scene.sums[at][slot][core];
    return tile < 0 ? "-" : `${scene.buffers[Math.floor(tile / count)].name} ${scene.coordinates(tile % count)}${sum > 1 ? `, ${sum} parts` : ""}`;
  });
  return names.join("; ") + (scene.slots[at].length > 4 ? "; ..." : "");
}

function exchange(panel, scene, title, mine, toward, other) {
  make("h3", title, panel);
  const moves = scene.moved.filter(mine);
  if (!moves.length) make("p", "nothing", panel);
  else table(panel, ["buffer", toward, "hops", "bytes"], moves.slice(0, 12).map((move) =>
    [scene.buffers[(toward === "to" ? move.src : move.dst)[0]].name, scene.coordinates(other(move)), number(scene.hops(move.from, move.to)), number(scene.bytesOf(move.src))]));
  if (moves.length > 12) make("p", `and ${moves.length - 12} more`, panel);
}

// The round in view in one sentence; rounds count from 0, as in messages of Python.
function sentence(scene, position) {
  const kind = scene.kindAt(position), now = scene.intervalAt(position), last = scene.length - 1;
  if (!kind) return `Start, before rounds 0 to ${number(last)}`;
  const moves = kind.messages ? `${number(kind.messages)} tiles move over at most ${number(kind.hops)} link${kind.hops === 1 ? "" : "s"}, ${bytes(kind.link_bytes)} over links` : "no tile moves";
  const done = position > scene.length ? "Ended; last round" : "After round", run = now.last > now.first ? `rounds ${number(now.first)} to ${number(now.last)} together: ` : "";
  return `${done} ${number(Math.min(position, scene.length) - 1)} (of 0 to ${number(last)}), ${kind.label || "no label"}: ${moves}; ${run}predicted cycles ${number(now.start)} to ${number(now.end)} of ${number(scene.price.cycles)}, most for ${largest(now.bounds)}`;
}

// The address of a picture of canvases side by side, below two lines of words.
function pictureOf(shown, ...words) {
  const canvas = document.createElement("canvas"), dots = window.devicePixelRatio || 1;
  canvas.width = shown.reduce((sum, each) => sum + each.width, 0);
  canvas.height = Math.max(...shown.map(({ height }) => height)) + 44 * dots;
  const context = canvas.getContext("2d");
  context.fillStyle = css("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  shown.reduce((at, each) => { context.drawImage(each, at, 44 * dots); return at + each.width; }, 0);
  context.scale(dots, dots);
  context.font = "13px system-ui, sans-serif";
  words.forEach((line, at) => text(context, line, 8, 18 + 18 * at, "left", css(at ? "--soft" : "--ink")));
  return canvas.toDataURL("image/png");
}
