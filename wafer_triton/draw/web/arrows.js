// The moves of a round as arrows on a map, which has a scene, a view, a place and a context to draw in.
class Arrows {
  // The middle of a core in the canvas, in pixels.
  centre(core) {
    const [row, column] = this.corner(core), { fold } = this.scene.mesh, { x, y, scale } = this.view;
    return [(column + 0.5 / fold[1] - x) * scale, (row + 0.5 / fold[0] - y) * scale];
  }

  // The curve of a move from core to core: its ends, which leave the labels free, and the point that bends it.
  curve(from, to) {
    const [x, y] = this.centre(from), [endX, endY] = this.centre(to), long = Math.hypot(endX - x, endY - y), bend = 0.18;
    const side = this.view.scale / Math.max(...this.scene.mesh.fold);
    if (side < 34) {  // without labels: straight, and as long as neighbours leave room for
      const part = (share) => [x + (endX - x) * share, y + (endY - y) * share];
      return { start: part(0.2), middle: part(0.5), end: part(0.85) };
    }
    const free = Math.min(0.32 * side, long / 3), [across, down] = [(endX - x) / long, (endY - y) / long];
    const lift = 0.14 * side, [right, up] = [down * lift, -across * lift];
    const start = [x + across * free + right, y + down * free + up], end = [endX - across * free + right, endY - down * free + up];
    return { start, end, middle: [(x + endX) / 2 + (endY - y) * bend, (y + endY) / 2 - (endX - x) * bend] };
  }

  // A path in ink on a rim of paper, which any colour below it sets off.
  inked(path, others) {
    const { context } = this;
    for (const [colour, width] of [[css("--paper"), 3.6], [css(others ? "--soft" : "--ink"), 1.6]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.setLineDash(others && width < 2 ? [4, 3] : []);
      context.beginPath();
      path();
      context.stroke();
    }
    context.setLineDash([]);
  }

  head([x, y], angle) {
    const { context } = this, size = Math.max(4, Math.min(9, this.view.scale / 5));
    context.beginPath();
    context.moveTo(x, y);
    for (const side of [0.45, -0.45]) context.lineTo(x - size * Math.cos(angle + side), y - size * Math.sin(angle + side));
    context.closePath();
    context.fillStyle = css("--ink");
    context.strokeStyle = css("--paper");
    context.lineWidth = 1;
    context.stroke();
    context.fill();
  }

  arrow(from, to, others) {
    const { start, middle, end } = this.curve(from, to);
    this.inked(() => { this.context.moveTo(...start); this.context.quadraticCurveTo(...middle, ...end); }, others);
    this.head(end, Math.atan2(end[1] - middle[1], end[0] - middle[0]));
  }

  // One tile to many cores of a mesh row or column: a straight line from end to end, with a head at each core.
  bus(group) {
    const along = group[0].axis === "x" ? 0 : 1, side = 0.3 * this.view.scale / Math.max(...this.scene.mesh.fold);
    const place = (core) => { const point = this.centre(core); point[1 - along] += side; return point; };
    const from = place(group[0].from), ends = group.map(({ to }) => place(to)).sort((a, b) => a[along] - b[along]);
    const reach = [from, ...ends].sort((a, b) => a[along] - b[along]);
    this.inked(() => { this.context.moveTo(...reach[0]); this.context.lineTo(...reach.at(-1)); });
    for (const end of ends) this.head(end, along ? (end[1] > from[1] ? 1 : -1) * Math.PI / 2 : end[0] > from[0] ? 0 : Math.PI);
    this.context.fillStyle = css("--ink");
    this.context.fillRect(from[0] - 3, from[1] - 3, 6, 6);
  }

  travelling(from, to, colour) {
    const { start, middle, end } = this.curve(from, to), { context } = this, t = this.travel;
    const at = [0, 1].map((n) => (1 - t) ** 2 * start[n] + 2 * t * (1 - t) * middle[n] + t ** 2 * end[n]), side = Math.max(4, 0.42 * this.view.scale / this.scene.mesh.fold[1]);
    context.fillStyle = colour;
    context.fillRect(at[0] - side / 2, at[1] - side / 2, side, side);
    context.strokeStyle = css("--ink");
    context.lineWidth = 1.5;
    context.strokeRect(at[0] - side / 2, at[1] - side / 2, side, side);
  }
}
