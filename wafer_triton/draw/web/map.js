// The wafer as a map: the device, the mesh, its cores; zoomed and moved by wheel, drag and keys.
class WaferMap extends Arrows {
  constructor(canvas, choose) {
    super();
    Object.assign(this, { canvas, choose, scene: null, show: "plain", chosen: 0, travel: 1 });
    canvas.addEventListener("wheel", (event) => {  // without a key, or the focus, the wheel scrolls the page
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY);
    }, { passive: false });
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.offsetX, y: event.offsetY, view: { ...this.view }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) return;
      const across = event.offsetX - from.x, down = event.offsetY - from.y;
      from.moved ||= Math.hypot(across, down) > 4;
      if (!from.moved) return;
      Object.assign(this.view, { x: from.view.x - across / this.view.scale, y: from.view.y - down / this.view.scale });
      this.seen();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from && !from.moved) this.click(event.offsetX, event.offsetY);
      from = null;
    });
  }

  size() {
    const { width, height } = this.canvas.getBoundingClientRect();
    return { width, height };
  }

  // See a rectangle of the device, in cores, with a margin around it.
  see(row, column, rows, columns) {
    const { width, height } = this.size(), scale = 0.92 * Math.min(width / columns, height / rows);
    this.view = { scale, x: column + columns / 2 - width / scale / 2, y: row + rows / 2 - height / scale / 2 };
    this.seen();
  }

  // Draw a view that is new; a map beside this one shows the same part.
  seen() {
    this.draw();
    this.changed?.();
    this.twin?.follow(this);
  }

  follow({ view, scene }) {
    const own = this.scene?.mesh;
    if (!own || !scene || own.rows !== scene.mesh.rows || own.cols !== scene.mesh.cols || !this.canvas.offsetParent) return;
    this.view = { ...view };
    this.draw();
  }

  seeDevice() { this.see(0, 0, this.device.rows, this.device.cols); }

  seeMesh() {
    const { mesh } = this.scene;
    this.see(...mesh.origin, mesh.rows, mesh.cols);
  }

  seeCore() {
    const [row, column] = this.corner(this.chosen);
    this.see(row - 1, column - 1, 3, 3);
  }

  zoom(factor, x = this.size().width / 2, y = this.size().height / 2) {
    const scale = Math.max(0.2, Math.min(400, this.view.scale * factor));
    this.view = { scale, x: this.view.x + x / this.view.scale - x / scale, y: this.view.y + y / this.view.scale - y / scale };
    this.seen();
  }

  // The device's row and column of a logical core's upper left corner.
  corner(core) {
    const { origin, fold } = this.scene.mesh;
    return this.scene.place(core).map((at, axis) => origin[axis] + at / fold[axis]);
  }

  // The middle of a core in the window, in pixels.
  middle(core) {
    const { left, top } = this.canvas.getBoundingClientRect(), [x, y] = this.centre(core);
    return [left + x, top + y];
  }

  // The core of the mesh at a pixel, or null.
  at(x, y) {
    const { origin, fold } = this.scene.mesh, column = this.view.x + x / this.view.scale, row = this.view.y + y / this.view.scale;
    return this.scene.core((row - origin[0]) * fold[0], (column - origin[1]) * fold[1]);
  }

  click(x, y) { this.choose(this.at(x, y)); }

  // One line on the core at a pixel; "" beside the mesh.
  said(x, y) {
    const core = this.at(x, y), { scene } = this;
    if (core === null) return "";
    if (scene.detailed) {
      const { shown, tiles, parts, inside, fill } = this.tilesShown();
      if (fill) return `core ${scene.coordinates(core)}: ${fill[core]} of ${scene.buffers[shown].slots} slots of ${scene.buffers[shown].name} hold an entry`;
      if (shown < 0 || !tiles || tiles[core] < 0) return `core ${scene.coordinates(core)}`;
      const { name } = scene.buffers[shown], sum = parts[core] > 1 ? `, sum of ${parts[core]} parts` : "";
      const holder = inside[core] === shown ? "" : `, in ${scene.buffers[inside[core]].name}`;
      return `core ${scene.coordinates(core)}: tile of ${name} from ${scene.coordinates(tiles[core])}${holder}, ${bytes(scene.buffers[shown].bytes)}${sum}`;
    }
    const [row, column] = scene.physical(core).map((at) => Math.floor(at / scene.block));
    const sum = Object.values(scene.linksOf(this.frame())).reduce((all, load) => all + load[row * Math.ceil(scene.mesh.cols / scene.block) + column], 0);
    return `cores from (${row * scene.block}, ${column * scene.block}): ${bytes(sum)} sent`;
  }

  draw() {
    const { context, width, height } = sharp(this.canvas);
    this.context = context;
    context.fillStyle = css("--paper");
    context.fillRect(0, 0, width, height);
    this.box(0, 0, this.device.rows, this.device.cols, css("--device"), css("--line"));
    if (this.scene.detailed && !this.show.startsWith("links")) this.drawCores();
    else this.drawBlocks();
    this.box(...this.scene.mesh.origin, this.scene.mesh.rows, this.scene.mesh.cols, null, css("--ink"));
    this.drawChosen();
  }

  box(row, column, rows, columns, fill, stroke) {
    const { x, y, scale } = this.view, at = [(column - x) * scale, (row - y) * scale, columns * scale, rows * scale];
    if (fill) { this.context.fillStyle = fill; this.context.fillRect(...at); }
    if (stroke) { this.context.strokeStyle = stroke; this.context.lineWidth = 1; this.context.strokeRect(...at); }
  }

  words(said, column, row, colour, size) {
    this.context.fillStyle = colour;
    this.context.font = `${size}px system-ui, sans-serif`;
    this.context.textAlign = "center";
    this.context.fillText(said, (column - this.view.x) * this.view.scale, (row - this.view.y) * this.view.scale + size / 3);
  }

  // The frame of rounds whose links the map shows; null for the run.
  frame() { return this.show === "links-run" || this.position === 0 ? null : this.scene.frameAt(this.position); }

  // The buffer in view, and of each core the origin of its tile, how many parts that sums, and which buffer holds it.
  tilesShown() {
    const { scene } = this, moving = this.travel < 1, name = this.show.replace(/^(tiles|parts|fill) /, "");
    const shown = /^(tiles|parts|fill) /.test(this.show) ? scene.buffers.findIndex((buffer) => buffer.name === name) : -1;
    if (shown < 0) return { shown, tiles: null, parts: null };
    if (this.show.startsWith("fill")) return { shown, tiles: null, parts: null, fill: scene.fill(shown) };
    const [tiles, parts, inside] = moving ? [scene.before, scene.partsBefore, scene.insideBefore] : [scene.last, scene.parts, scene.inside];
    return { shown, tiles: tiles[shown], parts: parts[shown], inside: inside[shown] };
  }

  // The ends of the scale of colours, in words; null without one.
  scale() {
    if (!this.scene.detailed || this.show.startsWith("links")) return ["0 B", `${bytes(this.top ?? 0)} sent by a ${this.scene.block > 1 ? "block of cores" : "core"}`];
    const { shown } = this.tilesShown();
    if (shown < 0) return null;
    if (this.show.startsWith("fill")) return ["no entry", `all ${this.scene.buffers[shown].slots} slots filled`];
    const { name } = this.scene.buffers[shown], way = this.byRow(name) ? "row" : "column";
    return this.show.startsWith("parts") ? ["1 part", `${this.most(name)} parts summed`] : [`tile from ${way} 0`, `from the last ${way}`];
  }

  // The scenes of this map and of the map beside it, which share their scales.
  scenes() { return [this.scene, this.twin?.canvas.offsetParent ? this.twin.scene : null].filter(Boolean); }

  // The most partial results of a buffer's sums in these scenes.
  most(name) { return Math.max(1, ...this.scenes().map((scene) => (scene.detailed ? scene.survey().most[scene.buffers.findIndex((buffer) => buffer.name === name)] ?? 1 : 1))); }

  // The bytes that each block of cores of a scene sends, over all directions.
  sent(scene) {
    const links = Object.values(scene.linksOf(this.show === "links-run" || this.position === 0 ? null : scene.frameAt(this.position)));
    return Array.from({ length: Math.ceil(scene.mesh.rows / scene.block) * Math.ceil(scene.mesh.cols / scene.block) }, (_, at) => links.reduce((sum, load) => sum + load[at], 0));
  }

  // Blocks of cores in the colour of the bytes that they send, over all directions.
  drawBlocks() {
    const { scene } = this, columns = Math.ceil(scene.mesh.cols / scene.block);
    this.top = this.scenes().reduce((high, each) => this.sent(each).reduce((most, bytes) => Math.max(most, bytes), high), 1);
    this.sent(scene).forEach((bytes, at) => {
      const row = Math.floor(at / columns) * scene.block, column = (at % columns) * scene.block;
      this.box(scene.mesh.origin[0] + row, scene.mesh.origin[1] + column, Math.min(scene.block, scene.mesh.rows - row), Math.min(scene.block, scene.mesh.cols - column), rgb(amount(bytes / this.top)));
    });
  }

  // Cores in the colour of their tile; then labels, the moves of the round in view, and tiles while they travel.
  drawCores() {
    const { scene } = this, high = 1 / scene.mesh.fold[0], wide = 1 / scene.mesh.fold[1], gap = wide * this.view.scale > 6 ? 0.04 : 0;
    const { shown, tiles, parts, fill } = this.tilesShown(), count = scene.width * scene.height, moving = this.travel < 1, summing = this.show.startsWith("parts");
    const colourAt = (core) => (fill ? amount(fill[core] / scene.buffers[shown].slots) : tiles && tiles[core] >= 0 ? this.colourOf(tiles[core], shown, parts[core]) : null), empty = css("--core");
    for (let core = 0; core < count; core += 1) {
      const [row, column] = this.corner(core), colour = colourAt(core);
      this.box(row + gap * high, column + gap * wide, high * (1 - 2 * gap), wide * (1 - 2 * gap), colour ? rgb(colour) : empty);
      if (wide * this.view.scale <= 34 || !colour) continue;
      const label = fill ? number(fill[core]) : summing ? number(parts[core]) : scene.place(tiles[core]).join(",");
      this.words(label, column + wide / 2, row + high / 2, isDark(colour) ? "#fff" : "#000", 12);
    }
    if (wide * this.view.scale < 8) return;
    const moves = scene.moved.filter(({ from, to }) => from !== to), mine = ({ tile }) => shown < 0 || fill || Math.floor(tile / count) === shown;
    const any = moves.some(mine), groups = new Map();
    for (const move of moves) {  // of another buffer, where none of the buffer in view moves
      if (any && !mine(move)) continue;
      const key = `${move.axis} ${move.from} ${move.src}`;
      groups.set(key, [...(groups.get(key) ?? []), move]);
    }
    for (const group of groups.values()) {
      if (group.length > 2) this.bus(group);
      else group.forEach((move) => this.arrow(move.from, move.to, !mine(move)));
    }
    if (!moving) return;
    for (const { from, to, tile, sum } of moves) if (mine({ tile }) && shown >= 0 && !fill) this.travelling(from, to, rgb(this.colourOf(tile % count, shown, sum)));
  }

  colourOf(core, shown, sum) {
    const { scene } = this;
    if (this.show.startsWith("parts")) return amount((sum - 1) / Math.max(1, this.most(scene.buffers[shown].name) - 1));
    const [row, column] = scene.place(core);
    return this.byRow(scene.buffers[shown].name) ? amount(row / Math.max(1, scene.height - 1)) : amount(column / Math.max(1, scene.width - 1));
  }

  // Whether tiles of a buffer are coloured by their row: where they move along columns, on this map or the one beside it.
  byRow(name) { return [this.scene, this.twin?.scene].some((scene) => scene?.moving?.[name] === "y"); }

  drawChosen() {
    const [row, column] = this.corner(this.chosen), { fold } = this.scene.mesh, { context, view } = this;
    context.strokeStyle = "#d55e00";
    context.lineWidth = 3;
    context.strokeRect((column - view.x) * view.scale, (row - view.y) * view.scale, Math.max(4, view.scale / fold[1]), Math.max(4, view.scale / fold[0]));
  }
}
