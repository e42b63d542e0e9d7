// One line on the pixel below the pointer, for every canvas that has a `tip`.
function tips(maps, { first, both, view }) {
  maps.forEach((map) => { map.canvas.tip = (x, y) => (map.view ? map.said(x, y) : ""); });
  by("strip").tip = (x) => {
    const scene = first(), round = roundAt(by("strip"), scene.length, x), kind = scene.kinds[scene.rounds[round]];
    return round < 0 ? "" : `round ${round}, ${kind.label || "no label"}: longest move ${number(kind.hops)} hops, ${bytes(kind.link_bytes)} over links, ${number(scene.perRound.cycles[round])} cycles`;
  };
  by("timeline").tip = (x, y) => {
    const scene = sceneAt(by("timeline"), both(), y, 26), cycle = cycleAt(by("timeline"), x, view()), hit = scene.timeline.find((run) => run.start <= cycle && cycle < run.end);
    return hit ? `${hit.label || "no label"}, rounds ${hit.first} to ${hit.last}: ${number(hit.end - hit.start)} cycles, ${Object.entries(hit.bounds).filter(([, part]) => part > 0).map(([name, part]) => `${name} ${percent(part / (hit.end - hit.start))}`).join(", ")}` : "";
  };
  by("sram").tip = (x, y) => {
    const scene = sceneAt(by("sram"), both(), y, 22), round = roundAt(by("sram"), Math.max(...both().map(({ length }) => length)), x);
    const live = scene.buffers.filter(({ live: span }) => span && span[0] <= round && round <= span[1]), sum = live.reduce((all, { live: span }) => all + span[2], 0);
    return round < 0 || round >= scene.length ? "" : `round ${round}: ${bytes(sum)}: ${live.map(({ name, live: span }) => `${name} ${bytes(span[2])}`).join(", ")}`;
  };
  document.addEventListener("pointermove", (event) => {
    const said = event.target.tip?.(event.offsetX, event.offsetY) ?? "", tip = by("tip");
    tip.hidden = !said;
    tip.textContent = said;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, event.clientX + 14))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  });
}
