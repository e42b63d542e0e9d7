// The page: reads its data, wires controls and keys, and tells in words what its canvases show.
const by = (id) => document.getElementById(id);

function make(tag, words = "", parent = null) {
  const element = document.createElement(tag);
  element.textContent = words;
  parent?.append(element);
  return element;
}

function table(parent, head, rows) {
  const element = make("table", "", parent);
  const top = make("tr", "", make("thead", "", element));
  head.forEach((cell) => { make("th", cell, top).scope = "col"; });
  const body = make("tbody", "", element);
  for (const row of rows) {
    const line = make("tr", "", body);
    row.forEach((cell) => make("td", cell, line));
    line.dataset.row = row[0];
  }
}

async function read() {
  const bytes = Uint8Array.from(atob(by("data").textContent), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function start() {
  const data = await read();
  const scenes = data.scenes.map((each) => new Scene(each));
  const page = { data, scenes, position: 0, chosen: 0, region: Math.max(0, data.regions.findIndex(({ layer }) => layer >= 0)), playing: false };
  const first = () => scenes[by("first").value || 0], second = () => (by("second").value === "" ? null : scenes[by("second").value]);
  const both = () => [first(), second()].filter(Boolean);
  const maps = ["map-first", "map-second"].map((id) => new WaferMap(by(id), (core, region) => {
    if (region !== null) page.region = region;
    if (core !== null) page.chosen = core;
    place();
    update();
  }));

  for (const scene of scenes) {
    const cycles = {}, held = {};
    scene.timeline.forEach(({ label, start: from, end }) => { cycles[label] = (cycles[label] ?? 0) + end - from; });
    scene.buffers.forEach(({ name, live }) => { if (live) held[name] = live[2] * (Math.min(live[1], scene.length - 1) - live[0] + 1); });
    Object.assign(scene, { cycles, stepColours: coloured(cycles), bufferColours: coloured(held) });
  }
  by("about").textContent = data.about;
  scenes.forEach((scene, at) => { new Option(scene.name, at); by("first").add(new Option(scene.name, at)); });
  by("second").add(new Option("nothing", ""));
  scenes.forEach((scene, at) => by("second").add(new Option(scene.name, at)));
  by("second").value = data.beside ?? "";
  by("first-label").hidden = scenes.length < 2;
  by("second-label").hidden = scenes.length < 2;
  for (const id of ["rounds", "links", "time", "memory", "numbers"]) by(id).hidden = !scenes.length;
  for (const { title, head, rows } of data.tables) {
    const section = make("section", "", by("tables"));
    make("h2", title, section);
    table(section, head, rows);
  }

  // Where the mesh lies: at its own origin, or at that of the region in view.
  function place() {
    const shown = both();
    maps.forEach((map, at) => {
      const scene = shown[at] ?? null, region = data.regions[page.region];
      Object.assign(map, { scene, regions: data.regions, region: page.region, device: data.device });
      if (!scene) return;
      const fits = region && region.rows === scene.mesh.rows && region.cols === scene.mesh.cols;
      map.place = fits ? region.origin : scene.mesh.origin;
      if (region && !fits) map.scene = null;
    });
  }

  function choices() {
    const shown = by("show"), scene = first(), kept = shown.value;
    shown.replaceChildren();
    if (scene?.detailed) {
      const names = [...Object.keys(scene.moving), ...scene.buffers.map(({ name }) => name)];
      [...new Set(names)].forEach((name) => shown.add(new Option(`tiles of ${name}`, `tiles ${name}`)));
    }
    if (scene) [["links-round", "bytes sent in this round"], ["links-run", "bytes sent in the run"]].forEach(([value, name]) => shown.add(new Option(name, value)));
    if (data.regions.length) [["layer", "layers"], ["fullness", "SRAM in use"]].forEach(([value, name]) => shown.add(new Option(`regions by ${name}`, value)));
    if ([...shown.options].some(({ value }) => value === kept)) shown.value = kept;
  }

  function chooseScenes(fit) {
    choices();
    place();
    const figure = by("map-second").parentElement;
    figure.hidden = !second();
    by("slider").max = Math.max(0, ...both().map(({ length }) => length));
    by("timeline").className = by("sram").className = second() ? "two" : "";
    page.position = Math.min(page.position, Number(by("slider").max));
    for (const [id, field] of [["steps", "stepColours"], ["buffers", "bufferColours"]]) {
      by(id).replaceChildren();
      const seen = Object.assign({}, ...both().map((scene) => scene[field]).reverse());
      const own = Object.entries(seen).filter(([, colour]) => colour !== REST), rest = Object.keys(seen).length - own.length;
      for (const [name, colour] of [...own, ...(rest ? [[`${rest} smaller`, REST]] : [])]) {
        const item = make("li", "", by(id));
        make("i", "", item).style.background = colour;
        item.append(name || "(no label)");
      }
    }
    numbers();
    if (fit) maps.forEach((map) => { if (map.canvas.offsetParent) (data.regions.length ? map.seeDevice() : map.seeMesh()); });
    update();
  }

  function numbers() {
    const shown = both(), sizes = (field) => shown.map((scene) => number(scene.account[field]));
    const rows = Object.entries(shown[0].labels).map(([field, name]) => [name, ...sizes(field)]);
    rows.push(["routes", ...shown.map(({ price }) => number(price.routes) + (price.relayed ? ", relayed" : ""))]);
    rows.push(["predicted cycles", ...shown.map(({ price }) => number(price.cycles))]);
    rows.push(["of them compute", ...shown.map(({ price }) => number(price.compute_cycles))]);
    rows.push(["PLMR verdict", ...shown.map(({ verdict }) => Object.entries(verdict).map(([letter, kept]) => (kept ? letter : "-")).join(" "))]);
    const steps = [...new Set(shown.flatMap(({ cycles }) => Object.keys(cycles)))];
    for (const [id, head, body] of [["counts", "", rows], ["costs", "step", steps.map((step) => [step || "(no label)", ...shown.map(({ cycles }) => (step in cycles ? number(cycles[step]) : "-"))])]]) {
      by(id).replaceChildren();
      table(by(id), [head, ...shown.map(({ name }) => name)], body);
    }
  }

  function heat() {
    const round = document.querySelector("[name=span]:checked").value === "round" && page.position > 0;
    by("heat").replaceChildren();
    for (const scene of both()) {
      const frame = round ? scene.frameAt(page.position) : null, links = scene.linksOf(frame);
      by("span-round").textContent = frame && frame.last > frame.first ? `rounds ${frame.first} to ${frame.last}` : "this round";
      if (second()) make("h3", scene.name, by("heat"));
      const top = Math.max(1, ...Object.values(links).flatMap((load) => load.reduce((most, bytes) => Math.max(most, bytes), 0)));
      const rows = Math.ceil(scene.mesh.rows / scene.block), columns = Math.ceil(scene.mesh.cols / scene.block);
      for (const way of scene.ways) {
        const figure = make("figure", "", by("heat")), canvas = make("canvas", "", figure), sum = (links[way] ?? []).reduce((a, b) => a + b, 0);
        drawHeat(canvas, links[way], rows, columns, top);
        const said = `to the ${way}: ${number(sum)} B`;
        make("figcaption", said, figure).dataset.bytes = sum;
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `Heat map of bytes ${said}, at most ${number(top)} B on one ${scene.block > 1 ? "block of cores" : "link"}`);
      }
    }
  }

  function facts() {
    const scene = maps[0].scene, panel = by("facts"), region = data.regions[page.region];
    panel.replaceChildren();
    if (region) {
      make("h3", region.name === "" ? "Region" : `Region of ${region.name}`, panel);
      table(panel, ["region", `${page.region} of ${data.regions.length}`], [["cores", `${region.rows} x ${region.cols} at (${region.origin})`],
        ["SRAM of a core", `${number(region.sram)} of ${number(data.device.sram)} B`], ["blocks", region.blocks.length > 2 ? `${region.blocks[0]} to ${region.blocks.at(-1)}` : region.blocks.join(", ")]]);
    }
    by("row").disabled = by("column").disabled = !scene;
    if (!scene) return;
    page.chosen = Math.min(page.chosen, scene.width * scene.height - 1);
    Object.assign(by("row"), { value: Math.floor(page.chosen / scene.width), max: scene.height - 1 });
    Object.assign(by("column"), { value: page.chosen % scene.width, max: scene.width - 1 });
    const live = scene.buffers.map((buffer, at) => ({ ...buffer, at })).filter(({ live: span }) => span && span[0] <= Math.max(0, page.position - 1) && page.position - 1 <= span[1]);
    make("h3", "Buffers", panel);
    table(panel, ["buffer", "tile", "bytes", ...(scene.detailed ? ["began at"] : [])], live.map(({ name, tile, slots, dtype, live: span, at }) =>
      [name, `${slots > 1 ? `${slots} x ` : ""}${tile.join(" x ")} ${dtype}`, number(span[2]), ...(scene.detailed ? [began(scene, at)] : [])]));
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
    const told = live.map(({ name, tile }) => [name, tile, scene.valuesOf(name, page.chosen, page.position)]).filter(([, , value]) => value);
    const plain = (value) => (value === null ? "NaN" : number(value, 4));
    table(panel, ["buffer", "shape", "norm", "range", "first numbers"], told.map(([name, tile, [norm, low, high, ...numbersOf]]) =>
      [name, tile.join(" x "), plain(norm), `${plain(low)} to ${plain(high)}`, numbersOf.map(plain).join(" ")]));
  }

  // Where the tiles of a buffer's slots began, as far as there are few.
  function began(scene, at) {
    const count = scene.width * scene.height, held = scene.slots[at].slice(0, 4).map((tiles) => tiles[page.chosen]);
    const names = held.map((tile) => (tile < 0 ? "-" : `${scene.buffers[Math.floor(tile / count)].name} ${scene.coordinates(tile % count)}`));
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

  function told(scene) {
    const kind = scene.kindAt(page.position), now = scene.intervalAt(page.position);
    if (!kind) return `Start, before ${number(scene.length)} rounds`;
    const moves = kind.messages ? `${number(kind.messages)} tiles move over at most ${number(kind.hops)} link${kind.hops === 1 ? "" : "s"}, ${number(kind.link_bytes)} B over links` : "no tile moves";
    const done = page.position > scene.length ? "Ended; last round" : "After round";
    return `${done} ${number(Math.min(page.position, scene.length) - 1)} of ${number(scene.length)}, ${kind.label || "no label"}: ${moves}; predicted cycles ${number(now.start)} to ${number(now.end)} of ${number(scene.price.cycles)}`;
  }

  function update(travel = 1) {
    const shown = both();
    shown.forEach((scene) => { if (scene.detailed) scene.goTo(page.position); });
    maps.forEach((map, at) => {
      if (at && !second()) return;
      Object.assign(map, { show: by("show").value, position: page.position, chosen: Math.min(page.chosen, map.scene ? map.scene.width * map.scene.height - 1 : 0), travel: shown[at]?.moved?.length && page.position <= shown[at].length ? travel : 1 });
      if (map.view) map.draw();
      const frame = map.show === "links-round" && shown[at]?.frameAt(page.position), added = frame && frame.last > frame.first ? `; bytes of rounds ${frame.first} to ${frame.last}` : "";
      const said = shown[at] ? `${shown[at].schedule} on mesh ${shown[at].mesh.text} of ${data.device.name}${added}` : `${data.regions.length} regions on ${data.device.name}`;
      map.canvas.nextElementSibling.textContent = said;
      map.canvas.setAttribute("aria-label", `${said}. ${shown[at] ? told(shown[at]) : ""}`);
    });
    if (travel < 1) return;
    by("slider").value = page.position;
    by("status").replaceChildren();
    shown.forEach((scene) => make("div", (second() ? `${scene.name}: ` : "") + told(scene), by("status")));
    facts();
    if (!shown.length) return;
    heat();
    drawTimeline(by("timeline"), shown, page.position);
    drawSram(by("sram"), shown, page.position);
    by("timeline").setAttribute("aria-label", shown.map((scene) => `${scene.name} ends at ${number(scene.timeline.at(-1).end)} predicted cycles`).join("; "));
    by("sram").setAttribute("aria-label", shown.map((scene) => `${scene.name}: peak ${number(scene.account.sram_peak_bytes)} of ${number(scene.device.sram)} B`).join("; "));
  }

  // Go to a position; a step forward shows tiles on their way, unless motion is unwanted.
  function go(position, seconds = 0) {
    const end = Math.max(0, Math.min(Number(by("slider").max), position)), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const glide = seconds && !still && end === page.position + 1, begun = performance.now();
    page.position = end;
    const step = (now) => {
      if (page.position !== end) return;
      const share = (now - begun) / (1000 * seconds);
      if (share < 1) { update(Math.max(0, share)); requestAnimationFrame(step); } else update();
    };
    if (glide) requestAnimationFrame(step); else update();
  }

  function play(on) {
    page.playing = on;
    by("play").textContent = on ? "❚❚ pause" : "▶ play";
    by("play").setAttribute("aria-pressed", on);
    clearTimeout(page.timer);
    const turn = () => {
      if (!page.playing) return;
      if (page.position >= Number(by("slider").max)) { play(false); return; }
      const seconds = 0.7 / Number(by("speed").value);
      go(page.position + 1, 0.75 * seconds);
      page.timer = setTimeout(turn, 1000 * seconds);
    };
    if (on) { if (page.position >= Number(by("slider").max)) go(0); turn(); }
  }

  function move(rows, columns) {
    const scene = maps[0].scene;
    if (!scene) return;
    const row = Math.floor(page.chosen / scene.width) + rows, column = (page.chosen % scene.width) + columns;
    if (row >= 0 && row < scene.height && column >= 0 && column < scene.width) { page.chosen = row * scene.width + column; update(); }
  }

  const each = (action) => maps.forEach((map) => { if (map.canvas.offsetParent) map[action](); });
  const zoom = (factor) => maps.forEach((map) => { if (map.canvas.offsetParent) map.zoom(factor); });
  const actions = {
    "to-start": () => go(0), back: () => go(page.position - 1), on: () => go(page.position + 1, 0.4), "to-end": () => go(Infinity), play: () => play(!page.playing),
    device: () => each("seeDevice"), mesh: () => each("seeMesh"), core: () => each("seeCore"), in: () => zoom(1.5), out: () => zoom(1 / 1.5),
    theme: () => {
      const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      document.documentElement.dataset.theme = dark ? "light" : "dark";
      update();
    },
    help: () => { by("keys").hidden = !by("keys").hidden; by("help").setAttribute("aria-expanded", !by("keys").hidden); },
  };
  for (const [id, action] of Object.entries(actions)) by(id).addEventListener("click", action);
  by("slider").addEventListener("input", () => { play(false); go(Number(by("slider").value)); });
  by("first").addEventListener("change", () => chooseScenes(true));
  by("second").addEventListener("change", () => chooseScenes(true));
  by("show").addEventListener("change", () => update());
  document.querySelectorAll("[name=span]").forEach((radio) => radio.addEventListener("change", heat));
  for (const id of ["row", "column"]) {
    by(id).addEventListener("change", () => {
      const scene = maps[0].scene, at = (field, most) => Math.max(0, Math.min(most - 1, Math.trunc(by(field).valueAsNumber || 0)));
      page.chosen = at("row", scene.height) * scene.width + at("column", scene.width);
      update();
    });
  }
  by("timeline").addEventListener("click", (event) => {
    const cycle = cycleAt(by("timeline"), both(), event.offsetX), hit = first().timeline.find(({ start: from, end }) => from <= cycle && cycle < end);
    if (hit) go(hit.first + 1);
  });
  const keys = {
    " ": () => play(!page.playing), ArrowLeft: () => go(page.position - 1), ArrowRight: () => go(page.position + 1, 0.4), Home: () => go(0), End: () => go(Infinity),
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), d: actions.device, m: actions.mesh, c: actions.core,
  };
  const shifted = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("select, input:not([type=radio])");  // which have keys of their own, as these do:
    const own = event.target.closest("[type=radio]") ? /^( |Arrow)/ : event.target.closest("button") ? /^ / : /^$/;
    if (typing || own.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key, action = event.shiftKey && shifted[key] ? () => move(...shifted[key]) : keys[key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => update());
  window.addEventListener("resize", () => update());
  chooseScenes(true);
  Object.assign(page, { maps, first, second });
  document.documentElement.dataset.ready = "yes";
  return page;
}

// What a test, or a curious reader, may look at.
window.waferTriton = start().catch((error) => {
  by("about").textContent = `This page needs a browser of 2023 or later. (${error})`;
  document.documentElement.dataset.ready = "failed";
  throw error;
});
