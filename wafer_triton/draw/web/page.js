// The page: reads its data, wires controls, keys and the address, and draws the moment in view.
async function read() {
  const packed = Uint8Array.from(atob(by("data").textContent), (char) => char.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function start() {
  const data = await read();
  const scenes = data.scenes.map((each) => new Scene(each));
  const page = { data, scenes, position: 0, chosen: 0, playing: false, window: null };
  const first = () => scenes[by("first").value || 0], second = () => (by("second").value === "" ? null : scenes[by("second").value]);
  const both = () => [first(), second()].filter(Boolean);
  const maps = ["map-first", "map-second"].map((id) => new WaferMap(by(id), (core) => {
    if (core !== null) page.chosen = core;
    update();
  }));
  maps.forEach((map, at) => {
    map.twin = maps[1 - at];
    map.changed = () => {
      const parent = map.canvas.parentElement.querySelector(".scale"), ends = map.view && map.show ? map.scale() : null;
      if (ends) scaleOf(parent, ...ends);
      else parent.replaceChildren();
    };
  });

  scenes.forEach(prepare);  // a name has one colour on the whole page
  const stepColours = coloured(together(scenes, "cycles")), bufferColours = coloured(together(scenes, "held"));
  scenes.forEach((scene) => Object.assign(scene, { stepColours, bufferColours }));
  by("about").textContent = data.about;
  scenes.forEach((scene, at) => by("first").add(new Option(scene.name, at)));
  by("second").add(new Option("nothing", ""));
  scenes.forEach((scene, at) => by("second").add(new Option(scene.name, at)));
  by("second").value = data.beside ?? "";
  by("first-label").hidden = by("second-label").hidden = scenes.length < 2;
  for (const name of new Set(scenes.flatMap(({ buffers }) => buffers.map((buffer) => buffer.name)))) by("names").append(new Option(name, name));

  function choices() {
    const shown = by("show"), scene = maps[0].scene, kept = shown.value;
    shown.replaceChildren();
    for (const value of scene.pictures()) shown.add(new Option(value.replace(/^tiles /, "tiles of ").replace(/^parts /, "parts summed in ").replace(/^fill /, "filled slots of "), value));
    [["links-round", "bytes sent in this round"], ["links-run", "bytes sent in the run"]].forEach(([value, name]) => shown.add(new Option(name, value)));
    if ([...shown.options].some(({ value }) => value === kept)) shown.value = kept;
  }

  function chooseScenes(fit) {
    maps.forEach((map, at) => Object.assign(map, { scene: both()[at] ?? null, device: data.device }));
    choices();
    by("map-second").parentElement.hidden = !second();
    by("slider").max = Math.max(0, ...both().map(({ length }) => length));
    by("timeline").className = by("sram").className = second() ? "two" : "";
    page.position = Math.min(page.position, Number(by("slider").max));
    page.window = null;
    by("headline").textContent = data.headlines[scenes.indexOf(first())][scenes.indexOf(second()) + 1];
    legend("steps", both(), "stepColours", "cycles");
    legend("buffers", both(), "bufferColours", "held");
    numbersPanel(both());
    if (fit) maps.forEach((map) => { if (map.canvas.offsetParent) map.seeMesh(); });
    update();
  }

  const whole = () => [0, Math.max(1, ...both().map(({ timeline }) => timeline.at(-1).end))];
  const view = () => page.window ?? whole();

  function update(travel = 1) {
    const shown = both();
    shown.forEach((scene) => { if (scene.detailed) scene.goTo(page.position); });
    maps.forEach((map, at) => {
      if (at && !second()) return;
      Object.assign(map, { show: map.scene.pictureFor(by("show").value), position: page.position, chosen: Math.min(page.chosen, map.scene.width * map.scene.height - 1), travel: shown[at].moved?.length && page.position <= shown[at].length ? travel : 1 });
      if (map.view) map.draw();
      if (travel < 1) return;
      const frame = map.show === "links-round" && shown[at].frameAt(page.position), added = frame && frame.last > frame.first ? `; bytes of rounds ${frame.first} to ${frame.last}` : "";
      const said = `${shown[at].schedule} on mesh ${shown[at].mesh.text} of ${data.device.name}${added}`;
      map.canvas.parentElement.querySelector("figcaption").textContent = said;
      map.changed();
      map.canvas.setAttribute("aria-label", `${said}. ${sentence(shown[at], page.position)}`);
    });
    if (travel < 1) return;
    by("slider").value = page.position;
    by("status").replaceChildren();
    shown.forEach((scene) => make("div", (second() ? `${scene.name}: ` : "") + sentence(scene, page.position), by("status")));
    factsPanel(page, maps[0].scene);
    heatPanel(shown, page.position);
    drawStrip(by("strip"), first(), page.position);
    drawTimeline(by("timeline"), shown, page.position, view());
    drawSram(by("sram"), shown, page.position);
    by("timeline").setAttribute("aria-label", shown.map((scene) => `${scene.name} ends at ${number(scene.timeline.at(-1).end)} predicted cycles`).join("; "));
    by("sram").setAttribute("aria-label", shown.map((scene) => `${scene.name}: peak ${bytes(scene.account.sram_peak_bytes)} of ${bytes(scene.device.sram)}`).join("; "));
    remember();
  }

  // The address holds the view, so that a link shows it again.
  function remember() {
    const scene = maps[0].scene, state = { round: page.position - 1, show: by("show").value, first: by("first").value, beside: by("second").value };
    state.core = scene.place(page.chosen).join(",");
    history.replaceState(null, "", `#${Object.entries(state).map(([name, value]) => `${name}=${encodeURIComponent(value).replace(/%2C/g, ",")}`).join("&")}`);
  }

  function recall() {
    const state = new URLSearchParams(location.hash.slice(1)), known = (id, name) => { if (state.has(name) && [...by(id).options].some(({ value }) => value === state.get(name))) by(id).value = state.get(name); };
    known("first", "first");
    known("second", "beside");
    page.position = state.has("round") ? Math.max(0, Math.trunc(Number(state.get("round"))) + 1 || 0) : first().telling();
    chooseScenes(true);
    known("show", "show");
    choose(...(state.get("core") ?? "").split(",").map(Number));
    update();
  }

  // Go to a position; a step forward shows tiles while they travel, unless motion is unwanted.
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

  // Choose the core at a row and a column; returns whether there is one.
  function choose(row, column) {
    const core = maps[0].scene.core(row, column);
    page.chosen = core ?? page.chosen;
    return core !== null;
  }

  function move(rows, columns) {
    const [row, column] = maps[0].scene.place(page.chosen);
    if (choose(row + rows, column + columns)) update();
  }

  // Show a buffer by its name, or a core by "row, column".
  function search(words) {
    const scene = maps[0].scene, core = words.match(/^\D*(\d+)\s*[, ]\s*(\d+)\D*$/), wanted = words.trim();
    const option = [...by("show").options].find(({ value }) => value.replace(/^\w+ /, "") === wanted);
    let problem = "";
    if (option && !core) by("show").value = option.value;
    else if (wanted && !(core && choose(Number(core[1]), Number(core[2])))) problem = core ? `cores are (0, 0) to (${scene.height - 1}, ${scene.width - 1})` : `no buffer ${wanted} here; give a buffer or row, column`;
    by("search").setCustomValidity(problem);
    if (problem) by("search").reportValidity(); else update();
  }

  function save() {
    const shown = maps.filter(({ canvas }) => canvas.offsetParent).map(({ canvas }) => canvas);
    page.saved = pictureOf(shown, document.title, sentence(first(), page.position));
    Object.assign(document.createElement("a"), { href: page.saved, download: `round-${page.position - 1}.png` }).click();
  }

  const each = (action) => maps.forEach((map) => { if (map.canvas.offsetParent) map[action](); });
  const zoom = (factor) => { if (maps[0].canvas.offsetParent) maps[0].zoom(factor); };
  const zoomTime = (factor, cycle = first().intervalAt(page.position)?.start ?? 0) => {
    const [from, to] = view(), [, end] = whole(), wide = Math.min(end, (to - from) * factor), start = Math.max(0, Math.min(end - wide, cycle - (cycle - from) / (to - from) * wide));
    const inside = cycle < from || cycle > to ? Math.max(0, Math.min(end - wide, cycle - wide / 2)) : start;
    page.window = wide >= end ? null : [inside, inside + wide];
    drawTimeline(by("timeline"), both(), page.position, view());
  };
  const actions = {
    "to-start": () => go(0), back: () => go(page.position - 1), on: () => go(page.position + 1, 0.4), "to-end": () => go(Infinity), play: () => play(!page.playing),
    device: () => each("seeDevice"), mesh: () => each("seeMesh"), core: () => each("seeCore"), in: () => zoom(1.5), out: () => zoom(1 / 1.5), save,
    "time-in": () => zoomTime(1 / 2), "time-out": () => zoomTime(2), "time-whole": () => zoomTime(Infinity),
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
  by("search").addEventListener("change", () => search(by("search").value));
  document.querySelectorAll("[name=span]").forEach((radio) => radio.addEventListener("change", () => heatPanel(both(), page.position)));
  for (const id of ["row", "column"]) {
    by(id).addEventListener("change", () => {
      const scene = maps[0].scene, at = (field, most) => Math.max(0, Math.min(most - 1, Math.trunc(by(field).valueAsNumber || 0)));
      choose(at("row", scene.height), at("column", scene.width));
      update();
    });
  }
  by("timeline").addEventListener("click", (event) => {
    const cycle = cycleAt(by("timeline"), event.offsetX, view()), hit = first().timeline.find(({ start: from, end }) => from <= cycle && cycle < end);
    if (hit) go(hit.first + 1);
  });
  by("timeline").addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomTime(event.deltaY < 0 ? 1 / 1.5 : 1.5, cycleAt(by("timeline"), event.offsetX, view()));
  }, { passive: false });
  for (const [id, length] of [["strip", () => first().length], ["sram", () => Math.max(...both().map((scene) => scene.length))]]) {
    by(id).addEventListener("click", (event) => {
      const round = roundAt(by(id), length(), event.offsetX);
      if (round >= 0) go(round + 1);
    });
  }

  tips(maps, { first, both, view });
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
  window.addEventListener("hashchange", recall);
  recall();
  page.maps = maps;
  document.documentElement.dataset.ready = "yes";
  return page;
}

// The state of the page, for tests and for curious readers.
window.waferTriton = start().catch((error) => {
  by("about").textContent = `This page needs a browser of 2023 or later. (${error})`;
  document.documentElement.dataset.ready = "failed";
  throw error;
});
