// The wafer as a map: the device, the regions of a model, the mesh, its cores; zoomed and moved by wheel, drag and keys.
class WaferMap {
  constructor(canvas, choose) {
    Object.assign(this, { canvas, choose, scene: null, regions: [], place: [0, 0], show: "plain", chosen: 0, region: 0, travel: 1 });
    canvas.addEventListener("wheel", (event) => {
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
      this.draw();
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
    this.draw();
  }

  seeDevice() { this.see(0, 0, this.device.rows, this.device.cols); }

  seeMesh() {
    const mesh = this.scene ? this.scene.mesh : this.regions[this.region];
    const [row, column] = this.scene ? this.place : mesh.origin;
    this.see(row, column, mesh.rows, mesh.cols);
  }

  seeCore() {
    if (!this.scene) return this.seeMesh();
    const [row, column] = this.corner(this.chosen);
    return this.see(row - 1, column - 1, 3, 3);
  }

  zoom(factor, x = this.size().width / 2, y = this.size().height / 2) {
    const scale = Math.max(0.2, Math.min(400, this.view.scale * factor));
    this.view = { scale, x: this.view.x + x / this.view.scale - x / scale, y: this.view.y + y / this.view.scale - y / scale };
    this.draw();
  }

  // The device's row and column of a logical core's upper left corner.
  corner(core) {
    const { mesh, width } = this.scene;
    return [this.place[0] + Math.floor(core / width) / mesh.fold[0], this.place[1] + (core % width) / mesh.fold[1]];
  }

  // Where a row and a column of the device are in the window, in pixels.
  point(row, column) {
    const { left, top } = this.canvas.getBoundingClientRect(), { x, y, scale } = this.view;
    return [left + (column - x) * scale, top + (row - y) * scale];
  }

  // The same of the middle of a core.
  middle(core) {
    const [row, column] = this.corner(core), { fold } = this.scene.mesh;
    return this.point(row + 0.5 / fold[0], column + 0.5 / fold[1]);
  }

  click(x, y) {
    const column = this.view.x + x / this.view.scale, row = this.view.y + y / this.view.scale;
    const region = this.regions.findIndex(({ origin, rows, cols }) =>
      origin[0] <= row && row < origin[0] + rows && origin[1] <= column && column < origin[1] + cols);
    const down = this.scene ? Math.floor((row - this.place[0]) * this.scene.mesh.fold[0]) : -1;
    const across = this.scene ? Math.floor((column - this.place[1]) * this.scene.mesh.fold[1]) : -1;
    const inside = this.scene && down >= 0 && across >= 0 && down < this.scene.height && across < this.scene.width;
    this.choose(inside ? down * this.scene.width + across : null, region < 0 ? null : region);
  }

  draw() {
    const { context, width, height } = sharp(this.canvas);
    this.context = context;
    context.fillStyle = css("--paper");
    context.fillRect(0, 0, width, height);
    this.box(0, 0, this.device.rows, this.device.cols, css("--device"), css("--line"));
    this.regions.forEach((region, at) => this.drawRegion(region, at));
    if (!this.scene) return;
    if (this.scene.detailed && !this.show.startsWith("links")) this.drawCores();
    else this.drawBlocks();
    this.box(...this.place, this.scene.mesh.rows, this.scene.mesh.cols, null, css("--ink"));
    this.drawChosen();
  }

  box(row, column, rows, columns, fill, stroke) {
    const { x, y, scale } = this.view, at = [(column - x) * scale, (row - y) * scale, columns * scale, rows * scale];
    if (fill) { this.context.fillStyle = fill; this.context.fillRect(...at); }
    if (stroke) { this.context.strokeStyle = stroke; this.context.lineWidth = 1; this.context.strokeRect(...at); }
  }

  drawRegion(region, at) {
    const layers = Math.max(1, ...this.regions.map(({ layer }) => layer));
    const share = this.show === "fullness" ? region.sram / this.device.sram : region.layer / layers;
    const colour = this.show !== "fullness" && region.layer < 0 ? null : amount(share);
    this.box(...region.origin, region.rows, region.cols, colour ? rgb(colour) : REST, at === this.region ? css("--ink") : css("--paper"));
    if (region.cols * this.view.scale > 60 && (!this.scene || at !== this.region)) {
      const said = this.show === "fullness" ? `${number(100 * region.sram / this.device.sram)} %` : region.name;
      this.words(said, region.origin[1] + region.cols / 2, region.origin[0] + region.rows / 2, colour && isDark(colour) ? "#fff" : "#000", 12);
    }
  }

  words(said, column, row, colour, size) {
    this.context.fillStyle = colour;
    this.context.font = `${size}px system-ui, sans-serif`;
    this.context.textAlign = "center";
    this.context.fillText(said, (column - this.view.x) * this.view.scale, (row - this.view.y) * this.view.scale + size / 3);
  }

  // Blocks of cores in the colour of the bytes that they send, over all directions.
  drawBlocks() {
    const { scene } = this;
    if (this.regions.length && scene.block * this.view.scale < 4) return;  // too small to tell apart: the region's colour
    const frame = this.show === "links-run" || this.position === 0 ? null : scene.frameAt(this.position);
    const links = Object.values(scene.linksOf(frame)), rows = Math.ceil(scene.mesh.rows / scene.block), columns = Math.ceil(scene.mesh.cols / scene.block);
    const sums = Array.from({ length: rows * columns }, (_, at) => links.reduce((sum, load) => sum + load[at], 0)), top = Math.max(1, ...sums);
    sums.forEach((bytes, at) => {
      const row = Math.floor(at / columns) * scene.block, column = (at % columns) * scene.block;
      this.box(this.place[0] + row, this.place[1] + column, Math.min(scene.block, scene.mesh.rows - row), Math.min(scene.block, scene.mesh.cols - column), rgb(amount(bytes / top)));
    });
  }

  // Cores in the colour of the core where the tile that they hold began; tiles of the round in view on their way.
  drawCores() {
    const { scene } = this, high = 1 / scene.mesh.fold[0], wide = 1 / scene.mesh.fold[1], gap = wide * this.view.scale > 6 ? 0.04 : 0;
    const shown = scene.buffers.findIndex(({ name }) => `tiles ${name}` === this.show), count = scene.width * scene.height;
    if (this.regions.length && wide * this.view.scale < 2) return;  // too small to tell apart: the region's colour
    const moving = this.travel < 1;
    const tiles = shown < 0 ? null : moving ? scene.before[shown] : scene.last[shown];
    const colourAt = (core) => (tiles && tiles[core] >= 0 ? this.colourOf(tiles[core], scene.buffers[shown].name) : null), empty = css("--core");
    for (let core = 0; core < count; core += 1) {
      const [row, column] = this.corner(core), colour = colourAt(core);
      this.box(row + gap * high, column + gap * wide, high * (1 - 2 * gap), wide * (1 - 2 * gap), colour ? rgb(colour) : empty);
    }
    if (wide * this.view.scale < 8) return;
    for (const { from, to, tile } of scene.moved) {
      if (from === to) continue;
      const own = shown >= 0 && Math.floor(tile / count) === shown;
      if (own || shown < 0) this.arrow(from, to, moving && own ? rgb(this.colourOf(tile % count, scene.buffers[shown].name)) : null);
    }
    for (let core = 0; wide * this.view.scale > 34 && core < count; core += 1) {
      const colour = colourAt(core), [row, column] = this.corner(core), tall = 18 / this.view.scale;
      if (!colour) continue;
      this.box(row + high / 2 - tall / 2, column + wide * 0.2, tall, wide * 0.6, rgb(colour));  // above the arrows
      this.words(`${Math.floor(tiles[core] / scene.width)},${tiles[core] % scene.width}`, column + wide / 2, row + high / 2, isDark(colour) ? "#fff" : "#000", 12);
    }
  }

  colourOf(core, buffer) {
    const { scene } = this, byRow = scene.moving[buffer] === "y";
    return byRow ? amount(Math.floor(core / scene.width) / Math.max(1, scene.height - 1)) : amount((core % scene.width) / Math.max(1, scene.width - 1));
  }

  // The way of a tile as an arc from core to core, with the tile on it while it travels.
  arrow(from, to, tile) {
    const [row, column] = this.corner(from), [endRow, endColumn] = this.corner(to), { context } = this, { fold } = this.scene.mesh;
    const point = (r, c) => [(c + 0.5 / fold[1] - this.view.x) * this.view.scale, (r + 0.5 / fold[0] - this.view.y) * this.view.scale];
    const [x, y] = point(row, column), [endX, endY] = point(endRow, endColumn), bend = 0.18;
    const middle = [(x + endX) / 2 + (endY - y) * bend, (y + endY) / 2 - (endX - x) * bend];
    context.globalAlpha = 0.75;
    context.strokeStyle = css("--ink");
    context.lineWidth = 1.2;
    context.beginPath();
    context.moveTo(x, y);
    context.quadraticCurveTo(...middle, endX, endY);
    context.stroke();
    const angle = Math.atan2(endY - middle[1], endX - middle[0]), size = Math.min(7, this.view.scale / 5);
    context.fillStyle = css("--ink");
    context.beginPath();
    context.moveTo(endX, endY);
    for (const side of [0.45, -0.45]) context.lineTo(endX - size * Math.cos(angle + side), endY - size * Math.sin(angle + side));
    context.fill();
    context.globalAlpha = 1;
    if (!tile) return;
    const t = this.travel, at = [0, 1].map((n) => (1 - t) ** 2 * [x, y][n] + 2 * t * (1 - t) * middle[n] + t ** 2 * [endX, endY][n]);
    const side = Math.max(4, 0.42 * this.view.scale / fold[1]);
    context.fillStyle = tile;
    context.fillRect(at[0] - side / 2, at[1] - side / 2, side, side);
    context.strokeRect(at[0] - side / 2, at[1] - side / 2, side, side);
  }

  drawChosen() {
    const [row, column] = this.corner(this.chosen), { fold } = this.scene.mesh, { context, view } = this;
    context.strokeStyle = "#d55e00";
    context.lineWidth = 3;
    context.strokeRect((column - view.x) * view.scale, (row - view.y) * view.scale, Math.max(4, view.scale / fold[1]), Math.max(4, view.scale / fold[0]));
  }
}
